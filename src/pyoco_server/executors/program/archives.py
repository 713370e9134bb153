"""Archives of a program's files: packed reproducibly (equal content gives equal bytes), unpacked without ever writing
outside of the target directory. For workers and clients alike; independent of runs and servers.

    with path.open("rb") as file:
        unpack(file, folder, bytes_max=1 << 30)        # InvalidArchive: refused, and nothing was written
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from pyoco_server.core.zip_archive import ArchiveMember, ZipArchive, shown
from pyoco_server.errors import InvalidArchive

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["FILES_MAX", "ArchiveWriter", "entry_name", "open_archive", "unpack"]

#: GRID-97, GRID-102.
FILES_MAX = 10_000
_DRIVE = re.compile(r"[A-Za-z]:")
#: A backslash, and the surrogates for bytes that are not UTF-8: their last two hex digits are the byte.
_NOT_TAKEN = re.compile("[\\\\\udc80-\udcff]")
#: A file that may grow above 2 GiB while it is packed needs ZIP64 sizes.
_NARROW_BYTES_MAX = 2_000_000_000
#: Seven times as fast as the default level 6 on tables of numbers, and 3% larger (measured).
_LEVEL = 1


def open_archive(file: BinaryIO, *, bytes_max: int, files_max: int = FILES_MAX) -> ZipArchive:
    """Open an archive after checking every entry: its name, its type and its declared size.

    Reading a member through `pieces_of` yields exactly as many bytes as declared, or raises InvalidArchive. Raises
    InvalidArchive (GRID-97). O(entries).
    """
    archive = ZipArchive(file, files_max)
    files: set[str] = set()
    folders: set[str] = set()
    for member in archive.members:
        problem = _problem(member)
        name = member.name.removesuffix("/")
        if problem is None and (name in files or (name in folders and not member.is_directory)):
            problem = "is there twice"
        if problem is not None:
            raise InvalidArchive(f"{shown(member.name)} {problem}")
        (folders if member.is_directory else files).add(name)
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in folders:
                break
            folders.add(name)
    if files & folders:
        raise InvalidArchive(f"{shown(min(files & folders))} is a file, and others lie in it")
    size = sum(member.size_bytes for member in archive.members)
    if size > bytes_max:
        raise InvalidArchive(f"it unpacks to {size} bytes, and may to {bytes_max}")
    return archive


def unpack(file: BinaryIO, into: Path, *, bytes_max: int, files_max: int = FILES_MAX) -> list[str]:
    """Write the files of an archive into a directory, which is created if needed, replacing files of the same name.

    Returns their names. Raises InvalidArchive before anything is written: every byte is decompressed once to be counted
    and checked, and again to be written. Raises OSError, possibly after writing some files. Blocks: use a thread.
    """
    archive = open_archive(file, bytes_max=bytes_max, files_max=files_max)
    for member in archive.members:
        for _ in archive.pieces_of(member):
            pass
    into.mkdir(parents=True, exist_ok=True)
    for member in archive.members:
        _write(archive, member, into)
    return [member.name for member in archive.members if not member.is_directory]


def _write(archive: ZipArchive, member: ArchiveMember, into: Path) -> None:
    folders = Path(member.name).parts if member.is_directory else Path(member.name).parts[:-1]
    place = into
    for folder in folders:
        place /= folder
        place.mkdir(exist_ok=True)
        if place.is_symlink():  # another process created it
            raise InvalidArchive(f"{shown(str(place))} is a link: the file would land elsewhere")
    if member.is_directory:
        return
    path = into / member.name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with open(descriptor, "wb") as target:
        target.writelines(archive.pieces_of(member))


def _problem(member: ArchiveMember) -> str | None:
    """GRID-97: return why an entry must not be unpacked, or None."""
    name = member.name
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or _DRIVE.match(name) or ".." in parts:
        return "leaves the directory it is unpacked to"
    if "\\" in name or "\0" in name:
        return "has a backslash or NUL in its name"
    if any(part in {"", "."} for part in parts):
        return "has another name besides this one"
    wanted = stat.S_IFDIR if member.is_directory else stat.S_IFREG
    if stat.S_IFMT(member.mode) not in {0, wanted}:
        return "is a link or a special file"
    return "is a directory with bytes in it" if member.is_directory and member.size_bytes else None


def entry_name(path: str) -> str:
    """Return the name of a file in an archive, so that it can be unpacked on any system. Characters that are not
    portable are percent-encoded: a backslash, the colon of a drive, bytes that are not UTF-8 (as Python reads them from
    the disk).
    """
    name = _NOT_TAKEN.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", path)
    return f"{name[0]}%3A{name[2:]}" if _DRIVE.match(name) else name


class ArchiveWriter:
    """A zip that is written sequentially: to a file, a socket or a hash. Files must be added sorted by name.

    Times (1980-01-01), modes and the level of compression are fixed: equal content gives equal bytes (GRID-102).
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._out = _OneWay(write)
        self._zip = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._out.forget()  # closing writes the directory, which is not needed any more
        self._zip.close()

    def add(self, name: str, pieces: Iterable[bytes], size_max: int) -> int:
        """Add one file. Returns its number of bytes; reads at most `size_max`."""
        left = size_max
        with self._zip.open(name, "w", force_zip64=size_max > _NARROW_BYTES_MAX) as target:
            for piece in pieces:
                left -= target.write(piece[:left])
                if not left:  # a process may still be writing to it
                    break
        return size_max - left

    @property
    def size(self) -> int:
        return self._out.size

    @property
    def sha256(self) -> str:
        return self._out.hash.hexdigest()


class _OneWay(io.RawIOBase):
    """A stream that cannot seek: the sizes of a file then follow its data, and one pass yields both the archive and the
    hash."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self.size, self.hash = write, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def forget(self) -> None:
        self._write = len

    def write(self, data: ReadableBuffer, /) -> int:
        view = bytes(data)
        self._write(view)
        self.hash.update(view)
        self.size += len(view)
        return len(view)
