"""Archives that must not be unpacked, and how to make some more (GRID-97)."""

from __future__ import annotations

import io
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable

__all__ = ["HOSTILE", "handmade", "listed", "lying", "named", "special"]

MIB = 1 << 20


def handmade(write: Callable[[zipfile.ZipFile], None]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        write(archive)
    return buffer.getvalue()


def listed(*files: tuple[str, bytes]) -> bytes:
    def write(archive: zipfile.ZipFile) -> None:
        for name, data in files:
            archive.writestr(name, data)

    return handmade(write)


def named(*names: str) -> bytes:
    """An archive whose entries are called exactly so: the standard library would tidy some of these names up."""
    stand_ins = [f"{number:03d}" + "x" * (len(name.encode()) - 3) for number, name in enumerate(names, 100)]
    assert all(len(name.encode()) >= 3 for name in names)
    content = listed(*((name, b"evil") for name in stand_ins))
    for stand_in, name in zip(stand_ins, names, strict=True):
        content = content.replace(stand_in.encode(), name.encode())
    return content


def special(kind: int, target: bytes = b"/etc/passwd") -> bytes:
    def write(archive: zipfile.ZipFile) -> None:
        entry = zipfile.ZipInfo("entry")
        entry.external_attr = (kind | 0o777) << 16
        archive.writestr(entry, target)

    return handmade(write)


def lying(size: int) -> bytes:
    """An archive that says `size` where 4 MiB come out."""
    content = bytearray(listed(("bomb", bytes(4 * MIB))))
    directory = content.index(b"PK\1\2")
    struct.pack_into("<L", content, directory + 24, size)
    struct.pack_into("<L", content, 22, size)
    return bytes(content)


#: For a reader with limits of 2 MiB and 100 files.
HOSTILE = {
    "absolute": named("/etc/x"),
    "drive": named("C:/x"),
    "drive without a slash": named("c:x"),
    "up": named("../x"),
    "up in the middle": named("a/../../x"),
    "up at the end": named("aa/.."),
    "backslash": named("a\\..\\..\\x"),
    "backslash alone": named("a\\b"),
    "NUL": named("a\0b"),
    "twice": named("same", "same"),
    "twice as file and directory": named("same", "same/"),
    "a file in a file": named("same", "same/inside"),
    "a file in a file, before it": named("same/inside", "same"),
    "another spelling": named("a/./b"),
    "an empty part": named("a//b"),
    "link": special(stat.S_IFLNK),
    "block device": special(stat.S_IFBLK),
    "character device": special(stat.S_IFCHR),
    "FIFO": special(stat.S_IFIFO),
    "socket": special(stat.S_IFSOCK),
    "bomb": listed(("bomb", bytes(4 * MIB))),
    "bomb of many": listed(*((f"b{number}", bytes(MIB)) for number in range(3))),
    "bomb that says it is small": lying(10),
    "bomb that says it is as large as it may be": lying(2 * MIB),
    "too many": listed(*((str(number), b"") for number in range(101))),
    "cut": named("abc")[:-1],
    "nothing": b"",
    "no archive": b"hello, I am no archive at all, whatever you think",
}
