"""The four files with the metadata of a wheel: METADATA, WHEEL, RECORD and entry_points.txt."""

from __future__ import annotations

import codecs
import configparser
import csv
import re
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import HeaderParser

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from pyoco_server.core.wheel import WheelName
from pyoco_server.core.zip_archive import shown
from pyoco_server.errors import InvalidWheel

__all__ = ["check_entry_points", "check_metadata", "check_wheel", "is_stem_of", "read_record"]

_REQUIRES_MAX = 2000
_HEADER_LINES_MAX = 20_000
#: Python refuses to parse numbers of more than 4,300 digits, in any context.
_REQUIREMENT_LENGTH_MAX = 4000
_LINE_LENGTH_MAX = 8192
#: The syntax of entry points: module:object [extras].
_REFERENCE = re.compile(r"[\w.]+\s*(:\s*[\w.]+\s*)?(\[[\w\s,.-]*\])?", re.ASCII)
#: Replacements for values that are valid versions on some systems only.
_ANYWHERE = {"extra": "", "platform_release": "1", "platform_version": "1"}
_COMMANDS = frozenset({"console_scripts", "gui_scripts"})
_COMMAND = re.compile(r"[\w+-][\w.+-]*")
#: Some parsers take it for a part of the first word, others skip it.
_ORDER_MARK = "\ufeff"


def is_stem_of(stem: str, name: WheelName) -> bool:
    """Return whether a stem such as "my_tasks-1.0" belongs to this wheel's directories."""
    package, _, version = stem.rpartition("-")
    try:
        return canonicalize_name(package) == name.package and Version(version) == name.version
    except ValueError:
        return False


def check_metadata(data: bytes, name: WheelName) -> None:
    """Check that METADATA matches the file name, and that its requirements can be parsed. Raises InvalidWheel."""
    headers = _headers(data, "METADATA")
    package, version = _one(headers, "Name", "METADATA"), _one(headers, "Version", "METADATA")
    if canonicalize_name(package) != name.package or not _is_version(version, name.version):
        raise InvalidWheel(
            f"METADATA names {shown(package)} {shown(version)}, the file name of "
            f"{name.package} {name.version}; do not rename wheels"
        )
    requires = [str(each) for each in headers.get_all("Requires-Dist", ())]
    if len(requires) > _REQUIRES_MAX:
        raise InvalidWheel(f"METADATA has more than {_REQUIRES_MAX} lines of Requires-Dist")
    for each in requires:
        _check_requirement(each)
    requires_python = str(headers.get("Requires-Python", "")).strip()
    try:
        SpecifierSet(_short(requires_python))
    except ValueError as error:
        raise InvalidWheel(f"METADATA: Requires-Python {shown(requires_python)} cannot be read") from error


def check_wheel(data: bytes, name: WheelName) -> None:
    """Check that WHEEL has a known version, and that its tags match the file name. Raises InvalidWheel."""
    headers = _headers(data, "WHEEL")
    form = _one(headers, "Wheel-Version", "WHEEL").strip()
    if re.fullmatch(r"1\.[0-9]{1,9}", form, re.ASCII) is None:
        raise InvalidWheel(f"WHEEL: Wheel-Version {shown(form)} is not known here; 1.0 is")
    tags: set[Tag] = set()
    for line in map(str, headers.get_all("Tag", ())):
        try:
            if line.count("-") != 2 or line.count(".") > 16:
                raise ValueError(line)  # noqa: TRY301 - reported like any other problem of the tag
            tags |= parse_tag(line.strip())
        except ValueError as error:
            raise InvalidWheel(f"WHEEL: Tag {shown(line)} is not a tag such as py3-none-any") from error
        if len(tags) > len(name.platforms):
            break
    if tags != name.platforms:
        raise InvalidWheel(
            f"WHEEL is tagged {_some(tags)}, the file name {_some(name.platforms)}; do not rename wheels"
        )


def read_record(pieces: Iterable[bytes]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of a RECORD: path, name of the digest, digest, size.

    Memory use is constant. Raises InvalidWheel.
    """
    try:
        for row in csv.reader(_lines(pieces), strict=True):
            if len(row) != 3:
                raise InvalidWheel(f"RECORD: a line is not path, digest, size: {shown(','.join(row))}")
            path, digest, size = row
            _unmarked(path, "RECORD")
            algorithm, _, value = digest.partition("=")
            yield path, algorithm, value, size
    except csv.Error as error:
        raise InvalidWheel(f"RECORD cannot be read: {error}") from error


def check_entry_points(data: bytes) -> None:
    """Check that each entry point names an object, and that command names are safe: pip creates files with these names.

    Raises InvalidWheel.
    """
    parser = configparser.RawConfigParser(delimiters=("=",), default_section="\0")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(_text(data, "entry_points.txt"))
    except configparser.Error as error:
        raise InvalidWheel(f"entry_points.txt cannot be read: {shown(str(error))}") from error
    for group in parser.sections():
        for key, value in parser.items(group):
            if not key or not value or _REFERENCE.fullmatch(value) is None:
                raise InvalidWheel(f"entry_points.txt: {shown(f'{key} = {value}')} in [{group[:80]}] names no object")
            if group in _COMMANDS and _COMMAND.fullmatch(key) is None:
                raise InvalidWheel(f"entry_points.txt: {shown(key)} in [{group}] is not the name of a command")


def _text(data: bytes, file_name: str) -> str:
    try:
        return _unmarked(data.decode("utf-8"), file_name)
    except UnicodeDecodeError as error:
        raise InvalidWheel(f"{file_name} is not UTF-8") from error


def _unmarked(text: str, file_name: str) -> str:
    if text.startswith(_ORDER_MARK):
        raise InvalidWheel(f"{file_name} begins with a byte order mark; write it as UTF-8 without one")
    return text


def _headers(data: bytes, file_name: str) -> Message:
    # Only the headers: the text after them may pretend to be a mail with a thousand parts.
    head = re.split(r"\r?\n\r?\n", _text(data, file_name), maxsplit=1)[0]
    if head.count("\n") > _HEADER_LINES_MAX:
        raise InvalidWheel(f"{file_name} has more than {_HEADER_LINES_MAX} lines before its text")
    return HeaderParser().parsestr(head)


def _one(headers: Message, field: str, file_name: str) -> str:
    values = headers.get_all(field, ())
    if len(values) != 1:
        raise InvalidWheel(f"{file_name} must say {field} once, and says it {len(values)} times")
    return str(values[0])


def _is_version(text: str, version: Version) -> bool:
    try:
        return len(text) < 256 and Version(text) == version
    except ValueError:
        return False


def _check_requirement(text: str) -> None:
    try:
        marker = Requirement(_short(text)).marker
        if marker is not None:  # evaluates every comparison in it, on any system
            marker.evaluate(_ANYWHERE)
    except (ValueError, LookupError, RecursionError) as error:
        raise InvalidWheel(f"METADATA: Requires-Dist {shown(text)} cannot be read: {shown(str(error))}") from error


def _short(text: str) -> str:
    if len(text) > _REQUIREMENT_LENGTH_MAX:
        raise ValueError(f"more than {_REQUIREMENT_LENGTH_MAX} characters")
    return text


def _some(tags: Iterable[Tag]) -> str:
    return ", ".join(sorted(map(str, tags))[:8]) or "nothing"


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    try:
        for piece in pieces:
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            if len(rest) > _LINE_LENGTH_MAX or any(len(line) > _LINE_LENGTH_MAX for line in lines):
                raise InvalidWheel(f"RECORD: a line is longer than {_LINE_LENGTH_MAX} characters")
            yield from (f"{line}\n" for line in lines)
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidWheel("RECORD is not UTF-8") from error
    if rest:
        yield rest
