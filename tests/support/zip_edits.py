"""Zip archives with edited fields, for tests."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator

import pytest

from pyoco_server.core.wheel import read_wheel_name
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record

__all__ = [
    "FIELDS",
    "GOOD",
    "INFO",
    "MODULE",
    "NAME",
    "OneWay",
    "a_wheel_with",
    "check",
    "edited",
    "entries_of",
    "numbers_of",
    "refused",
    "unpacked",
    "wide",
    "with_extra",
]

NAME, GOOD = build_wheel(entry_points={"pyoco.tasks": {"one": "my_tasks:one"}})
INFO = dist_info_of()
MODULE = "my_tasks/__init__.py"
#: The position of a field in an entry of the directory, in an entry's own header, and how wide it is.
FIELDS = {
    "flags": (8, 6, "<H"),
    "method": (10, 8, "<H"),
    "crc": (16, 14, "<L"),
    "packed": (20, 18, "<L"),
    "size": (24, 22, "<L"),
    "attributes": (38, None, "<L"),
    "offset": (42, None, "<L"),
}


def check(content: bytes, unpacked_bytes_max: int = 10_000_000) -> None:
    ArchiveWheelFiles(unpacked_bytes_max).check(io.BytesIO(content), read_wheel_name(NAME))


def refused(content: bytes, message: str | None = None) -> None:
    with pytest.raises(InvalidWheel, match=message):
        check(content)


def unpacked(content: bytes) -> dict[str, bytes]:
    """As the standard library reads it, and so pip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def entries_of(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Of each file: name, where its entry in the directory is, and where its own header is."""
    at = struct.unpack_from("<L", content, len(content) - 6)[0]
    while content[at : at + 4] == b"PK\1\2":
        name_size, extra_size, comment_size = struct.unpack_from("<3H", content, at + 28)
        name = content[at + 46 : at + 46 + name_size].decode()
        yield name, at, struct.unpack_from("<L", content, at + 42)[0]
        at += 46 + name_size + extra_size + comment_size


def edited(content: bytes, path: str, where: str = "both", **values: int) -> bytes:
    """The same archive, with other numbers about one file: in the "directory", in its own "header", or in both."""
    data = bytearray(content)
    [(in_directory, in_header)] = [places for name, *places in entries_of(content) if name == path]
    for field, value in values.items():
        directory_offset, header_offset, form = FIELDS[field]
        if where != "header":
            struct.pack_into(form, data, in_directory + directory_offset, value)
        if where != "directory" and header_offset is not None:
            struct.pack_into(form, data, in_header + header_offset, value)
    return bytes(data)


def with_extra(content: bytes, path: str, extra: bytes, where: str = "directory") -> bytes:
    """The same archive with an extra field about one file: in the "directory", or in its own "header"."""
    [(in_directory, in_header)] = [places for name, *places in entries_of(content) if name == path]
    size, at = struct.unpack_from("<LL", content, len(content) - 10)
    fixed, begin = (46, in_directory) if where == "directory" else (30, in_header)
    data = bytearray(content)
    struct.pack_into("<H", data, begin + fixed - (16 if where == "directory" else 2), len(extra))
    if where == "directory":
        struct.pack_into("<L", data, len(data) - 10, size + len(extra))
    else:
        struct.pack_into("<L", data, len(data) - 6, at + len(extra))
        for _, entry, header in entries_of(content):
            struct.pack_into("<L", data, entry + 42, header + len(extra) if header > in_header else header)
    split = begin + fixed + len(path)
    return bytes(data[:split] + extra + data[split:])


def wide(*numbers: int) -> bytes:
    """The extra field for numbers that do not fit their place."""
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers)


def numbers_of(content: bytes, path: str) -> tuple[int, int, int]:
    """Of one file: size, packed size, and where it begins."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.getinfo(path)
        return entry.file_size, entry.compress_size, entry.header_offset


def a_wheel_with(write: Callable[[zipfile.ZipFile], None], **more: bytes) -> bytes:
    """A wheel whose last entries are written by hand. `more` are files that RECORD is to list besides."""
    buffer = io.BytesIO(pack(with_record({**wheel_files(), **more}, INFO)))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")  # of duplicates
        write(archive)
    return buffer.getvalue()


class OneWay(io.RawIOBase):
    """What cannot go back, such as a socket: archives written there have their sizes behind each file."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.data += memoryview(data)  # type: ignore[arg-type]
        return len(memoryview(data))  # type: ignore[arg-type]
