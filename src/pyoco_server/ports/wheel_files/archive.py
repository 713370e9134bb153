"""Wheels as zip archives."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import BinaryIO

from pyoco_server.core.wheel import WheelName
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.dist_info import (
    check_wheel,
    is_stem_of,
    read_entry_points,
    read_metadata,
    read_record,
)
from pyoco_server.ports.wheel_files.paths import check_paths
from pyoco_server.ports.wheel_files.port import WheelFacts
from pyoco_server.ports.wheel_files.zip_archive import Member, ZipArchive, shown

__all__ = ["ArchiveWheelFiles"]

#: What is read into memory. The longest METADATA there are hold a page of documentation.
_BYTES_MAX = {"METADATA": 4 << 20, "WHEEL": 64 << 10, "entry_points.txt": 256 << 10}
_RECORD_BYTES_MAX = 64 << 20
_DIGESTS = frozenset({"sha256", "sha384", "sha512"})
#: Where pip puts what lies in `<package>-<version>.data/<scheme>/`.
_SCHEMES = frozenset({"purelib", "platlib", "scripts", "data", "headers"})
_LIBRARIES = frozenset({"purelib", "platlib"})
_SITES = frozenset({"site-packages", "dist-packages"})
#: A module's file: `name.py`, `name.pyc`, or `name.so`, `name.abi3.so`, `name.cp311-win_amd64.pyd`.
_MODULE = re.compile(r"([^.]+)(\.pyc?|(\.[\w-]+)*\.(so|pyd))")
#: Python runs these by itself when it starts, before anybody has asked for a task of the wheel.
_STARTERS = frozenset({"sitecustomize", "usercustomize"})


class ArchiveWheelFiles:
    """`unpacked_bytes_max` bounds the time, 1 s for some 250 MB; memory is some 500 bytes for each file in it."""

    def __init__(self, unpacked_bytes_max: int) -> None:
        self._unpacked_bytes_max = unpacked_bytes_max

    def check(self, file: BinaryIO, name: WheelName) -> WheelFacts:
        archive = ZipArchive(file)
        check_paths(archive.members)
        unpacked_bytes = sum(member.size_bytes for member in archive.members)
        if unpacked_bytes > self._unpacked_bytes_max:  # `pieces_of` sees to it that this is true
            raise InvalidWheel(f"it unpacks to {unpacked_bytes} bytes, and may to {self._unpacked_bytes_max}; split it")
        files = {member.name: member for member in archive.members if not member.is_directory}
        info = _dist_info(files, name)
        modules = _modules(files, name)
        requires, requires_python = read_metadata(_read(archive, files, info, "METADATA"), name)
        check_wheel(_read(archive, files, info, "WHEEL"), name)
        entry_points: tuple[tuple[str, str], ...] = ()
        if f"{info}/entry_points.txt" in files:
            entry_points = read_entry_points(_read(archive, files, info, "entry_points.txt"))
        _take_record(archive, files, info)
        for member in archive.members:
            _check_bytes(archive, member)
        return WheelFacts(modules, requires, requires_python, entry_points, len(files), unpacked_bytes)


def _dist_info(files: Iterable[str], name: WheelName) -> str:
    """The one directory by which a wheel tells of itself. A second one would be another package in disguise."""
    found = {top for path in files if _is_metadata(top := path.split("/", 1)[0])}
    if len(found) != 1:
        raise InvalidWheel(
            f"a wheel has one directory {name.file_name.split('-')[0]}-{name.version}.dist-info, "
            f"this one {', '.join(shown(each) for each in sorted(found)[:3]) or 'none'}; build it with a build tool"
        )
    [info] = found
    if not info.endswith(".dist-info") or not is_stem_of(info.removesuffix(".dist-info"), name):
        raise InvalidWheel(f"{shown(info)} is not of {name.package} {name.version}; do not rename wheels")
    return info


def _is_metadata(folder: str) -> bool:
    return folder.lower().endswith((".dist-info", ".egg-info"))  # in lower case: that is how Python finds them


def _place(path: str, name: WheelName) -> tuple[str, list[str]]:
    """Where a file goes once it is installed: one of `_SCHEMES`, and the path there."""
    scheme, parts = "purelib", path.split("/")
    if not parts[0].endswith(".data") or len(parts) == 1:
        return scheme, parts
    top, scheme, *parts = parts
    if not is_stem_of(top.removesuffix(".data"), name) or scheme not in _SCHEMES or not parts:
        raise InvalidWheel(
            f"{shown(path)}: a .data directory is the wheel's own, and holds {', '.join(sorted(_SCHEMES))}"
        )
    for folder in _SITES.intersection(parts[:-1]) if scheme == "data" else ():  # the back door to the same place
        scheme, parts = "purelib", parts[parts.index(folder) + 1 :]
    if scheme in _LIBRARIES and _is_metadata(parts[0]):
        raise InvalidWheel(f"{shown(path)} would be another package in disguise; leave it out of the wheel")
    return scheme, parts


def _modules(files: Iterable[str], name: WheelName) -> tuple[str, ...]:
    """What can be imported once it is installed, by its first name. Refuses what Python would run unasked."""
    modules = set()
    for path in files:
        scheme, parts = _place(path, name)
        if scheme not in _LIBRARIES:
            continue
        module = _MODULE.fullmatch(parts[-1])
        first = parts[0] if len(parts) > 1 else module[1] if module is not None else ""
        if first in _STARTERS or (len(parts) == 1 and parts[0].lower().endswith(".pth")):
            raise InvalidWheel(f"{shown(path)} would be run by every Python that starts; leave it out of the wheel")
        if module is not None and all(part.isidentifier() for part in (first, *parts[:-1])):
            modules.add(first)
    return tuple(sorted(modules))


def _read(archive: ZipArchive, files: dict[str, Member], info: str, file_name: str) -> bytes:
    member = files.get(f"{info}/{file_name}")
    if member is None:
        raise InvalidWheel(f"{shown(f'{info}/{file_name}')} is missing; build it with a build tool")
    if member.size_bytes > _BYTES_MAX[file_name]:
        raise InvalidWheel(f"{file_name} has {member.size_bytes} bytes, and may have {_BYTES_MAX[file_name]}")
    return b"".join(archive.pieces_of(member))


def _take_record(archive: ZipArchive, files: dict[str, Member], info: str) -> None:
    """Write beside each member what RECORD says of it. Whatever it does not list, or lists without need, is refused."""
    record = files.get(f"{info}/RECORD")
    if record is None:
        raise InvalidWheel(f"{shown(f'{info}/RECORD')} is missing; build it with a build tool")
    if record.size_bytes > _RECORD_BYTES_MAX:
        raise InvalidWheel(f"RECORD has {record.size_bytes} bytes, and may have {_RECORD_BYTES_MAX}")
    for path, algorithm, digest, size in read_record(archive.pieces_of(record)):
        member = files.get(path)
        if member is None or member.algorithm:
            raise InvalidWheel(f"RECORD lists {shown(path)}, which is {'listed twice' if member else 'not there'}")
        if member is record:
            continue
        if algorithm not in _DIGESTS:
            raise InvalidWheel(f"RECORD: {shown(path)} needs a sha256, sha384 or sha512 digest, not {shown(algorithm)}")
        if size and size != str(member.size_bytes):
            raise InvalidWheel(
                f"RECORD: {shown(path)} has {member.size_bytes} bytes, not {shown(size)}; build it again"
            )
        member.algorithm, member.digest = algorithm, digest
    unlisted = {record.name, f"{info}/RECORD.jws", f"{info}/RECORD.p7s"}
    for member in files.values():
        if not member.algorithm and member.name not in unlisted:
            raise InvalidWheel(f"RECORD does not list {shown(member.name)}; build it again")


def _check_bytes(archive: ZipArchive, member: Member) -> None:
    digest = hashlib.new(member.algorithm or "sha256")
    for piece in archive.pieces_of(member):
        digest.update(piece)
    if member.algorithm and _text_form(digest.digest()) != member.digest.rstrip("="):
        raise InvalidWheel(f"{shown(member.name)} is not what RECORD says; build it again")


def _text_form(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
