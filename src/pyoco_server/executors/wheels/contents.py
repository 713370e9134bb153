"""The contents of a wheel: of the file, and of the directory in which pip installed it."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.markers import default_environment
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pyoco_server.core.wheel_needs import Needs, read_needs
from pyoco_server.errors import InvalidWheel

__all__ = [
    "code_in",
    "is_intact",
    "is_intact_fetch",
    "modules_in",
    "needs_of_directory",
    "needs_of_file",
    "write_fetch",
]

#: METADATA may contain a complete README, but not more.
_METADATA_BYTES_MAX = 16 * 1024 * 1024
_CODE = (".py", ".pyc", ".so", ".pyd")
#: A file in a directory of downloaded packages that lists them.
_FETCH = ".fetched.json"


def needs_of_file(file: Path) -> Needs:
    """Return the requirements of a wheel file. Raises InvalidWheel, OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if _is_metadata(name)]
            if len(names) != 1:
                raise InvalidWheel("the file is not a wheel: it has no METADATA, or more than one")
            with archive.open(names[0]) as member:
                data = member.read(_METADATA_BYTES_MAX)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InvalidWheel(f"the file is not a wheel: {error}") from error
    return _needs(data)


def needs_of_directory(home: Path, package: str, version: str) -> Needs:
    """Return the requirements of an installed wheel, and check that the directory contains exactly this wheel.

    Raises InvalidWheel, OSError.
    """
    infos = [path for path in home.iterdir() if path.name.lower().endswith((".dist-info", ".egg-info"))]
    if len(infos) != 1 or not _is_info_of(infos[0].name, package, version):
        names = ", ".join(sorted(repr(info.name[:120]) for info in infos)[:3]) or "nothing"
        raise InvalidWheel(f"of {package} {version} pip made {names}")
    return _needs((infos[0] / "METADATA").read_bytes()[:_METADATA_BYTES_MAX])


def _is_info_of(folder: str, package: str, version: str) -> bool:
    found, _, found_version = folder.removesuffix(".dist-info").rpartition("-")
    try:
        return canonicalize_name(found) == package and Version(found_version) == Version(version)
    except InvalidVersion:
        return False


def _is_metadata(name: str) -> bool:
    folder, _, file = name.partition("/")
    return folder.endswith(".dist-info") and file == "METADATA"


def _needs(data: bytes) -> Needs:
    head: Message = BytesHeaderParser().parsebytes(data)
    requires = [str(text) for text in head.get_all("Requires-Dist", [])]
    here: Mapping[str, str] = {name: str(value) for name, value in default_environment().items()}
    return read_needs(requires, str(head.get("Requires-Python", "")), here)


def modules_in(home: Path) -> tuple[str, ...]:
    """Return the top-level modules of a directory, sorted. O(its entries), plus a scan of each subdirectory."""
    found = set()
    with os.scandir(home) as entries:
        for entry in entries:
            name = entry.name.partition(".")[0]
            if not name.isidentifier() or name == "__pycache__":
                continue
            if entry.is_dir():
                # pip installs commands into `bin`: it is a package only with an `__init__.py`
                is_module = entry.name == name and (name != "bin" or (home / "bin" / "__init__.py").exists())
                is_module = is_module and any(file.endswith(_CODE) for file in _files_below(entry.path))
            else:
                is_module = entry.name.endswith(_CODE)
            if is_module:
                found.add(name)
    return tuple(sorted(found))


def code_in(home: Path) -> Iterator[str]:
    """Yield the modules of a directory by their full names, including those of nested packages. O(files)."""
    for folder, folders, files in os.walk(home):
        folders[:] = [name for name in folders if name.isidentifier() and name != "__pycache__"]
        parts = Path(folder).relative_to(home).parts
        for file in files:
            name = file.partition(".")[0]
            if file.endswith(_CODE) and name.isidentifier():
                yield ".".join(parts if name == "__init__" and parts else (*parts, name))


def _files_below(folder: str) -> Iterator[str]:
    for _, _, files in os.walk(folder):
        yield from files


def is_intact(home: Path) -> bool:
    """Return whether all files listed in a directory's RECORD exist with their sizes. O(files).

    After a power failure, a file that was written just before may exist but be empty.
    """
    try:
        records = list(home.glob("*.dist-info/RECORD"))
        for record in records:
            with record.open(encoding="utf-8", newline="") as lines:
                for path, _, size in csv.reader(lines):
                    if size and ".." not in path and (home / path).stat().st_size != int(size):
                        return False
    except (OSError, ValueError, csv.Error):
        return False
    return bool(records)


def write_fetch(home: Path, pins: list[str]) -> None:
    """Record which packages were downloaded into a directory."""
    (home / _FETCH).write_text(json.dumps(pins), encoding="utf-8")


def is_intact_fetch(home: Path) -> bool:
    """Return whether all packages that were downloaded into a directory are complete. O(files)."""
    try:
        pins = json.loads((home / _FETCH).read_bytes())
        count = sum(1 for _ in home.glob("*.dist-info/RECORD"))
    except (OSError, ValueError):
        return False
    return isinstance(pins, list) and count == len(pins) and (not pins or is_intact(home))
