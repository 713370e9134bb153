"""A strict zip reader: an archive has exactly one interpretation, or it is refused.

The standard library's reader extracts what it can. It finds an archive embedded in other bytes, trusts the directory
where it differs from the entries, accepts overlapping entries, and reads a directory of any size into memory. All of
these let one file mean different things to different readers, or let a small file expand into a very large one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

from pyoco_server.errors import InvalidArchive

__all__ = ["PIECE_BYTES", "ArchiveMember", "ZipArchive", "shown"]

#: How much of a file is held in memory at a time.
PIECE_BYTES = 1 << 20
#: Each takes some 300 bytes of memory. The largest known wheels have some 30,000.
MEMBERS_MAX = 100_000
#: Room for the directory of 100,000 names of 250 bytes.
_DIRECTORY_BYTES_MAX = 32 << 20
#: The maximum length of a path.
_NAME_BYTES_MAX = 4096
#: Other tools write two or three: times, owners. A file could hold millions, and each costs time.
_EXTRAS_MAX = 16

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")

_STORED, _DEFLATED = 0, 8
_HAS_DESCRIPTOR = 1 << 3
_IS_UTF8 = 1 << 11
#: In addition to these two: the compression level.
_FLAGS_KNOWN = _HAS_DESCRIPTOR | _IS_UTF8 | 0b110
_FLAGS_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
#: Marks a number that does not fit here and is in the extra field.
_FULL = 0xFFFFFFFF
#: Marks the numbers that are in the zip64 end record, in the order of the narrow record.
_END_FULL = (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, _FULL, _FULL)
_EXTRA_ZIP64, _EXTRA_OTHER_NAME = 0x0001, 0x7075
_CUT = "it is not a whole zip archive: it was cut off, or something follows it; build or upload it again"


@dataclass(slots=True)
class ArchiveMember:
    """One entry of the directory."""

    name: str
    flags: int
    method: int
    crc: int
    packed_bytes: int
    size_bytes: int
    offset: int
    #: Unix file type and permissions; 0: not given.
    mode: int
    #: The offset of the next entry.
    end: int = 0
    #: From RECORD: the algorithm, such as "sha256", and the digest as text.
    algorithm: str = ""
    digest: str = ""

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/")


class ZipArchive:
    """The directory of an archive, and the contents of its members. Every read may raise InvalidArchive.

    Memory is O(members). `members` are in the order of their position in the file, without gaps.
    """

    def __init__(self, file: BinaryIO, members_max: int | None = None) -> None:
        self._file = file
        self._members_max = MEMBERS_MAX if members_max is None else members_max
        count, at, end = self._find_directory()
        self.members = self._read_directory(count, at, end)
        self.members.sort(key=lambda member: member.offset)
        if (self.members[0].offset if self.members else at) != 0:
            raise InvalidArchive("there is something before the zip archive; build it again")
        for member, following in pairwise(self.members):
            member.end = following.offset
        if self.members:
            self.members[-1].end = at

    def pieces_of(self, member: ArchiveMember) -> Iterator[bytes]:
        """Yield a member's contents in pieces. Once all have been read, size and checksum are known to match the
        directory.

        Stops as soon as there are more bytes than that, so a zip bomb costs one piece.
        """
        self._file.seek(member.offset)
        self._enter(member)
        is_stored = member.method == _STORED
        size, crc = 0, 0
        for piece in self._raw(member.packed_bytes) if is_stored else self._inflated(member):
            size += len(piece)
            if size > member.size_bytes:
                raise InvalidArchive(f"{shown(member.name)} unpacks to more bytes than the archive says")
            crc = zlib.crc32(piece, crc)
            yield piece
        if size != member.size_bytes or crc != member.crc:
            raise InvalidArchive(f"{shown(member.name)} is damaged: not the bytes that were packed; build it again")
        self._leave(member)

    def _find_directory(self) -> tuple[int, int, int]:
        """Return the number of entries, and the start and end of the directory."""
        size = self._file.seek(0, 2)
        end = size - _END.size
        if end < 0:
            raise InvalidArchive(_CUT)
        sign, *numbers, comment = _END.unpack(self._at(end, _END.size))
        if sign != b"PK\5\6" or comment:
            raise InvalidArchive(_CUT)
        if end >= _LOCATOR.size:
            sign, disk64, at64, disks = _LOCATOR.unpack(self._at(end - _LOCATOR.size, _LOCATOR.size))
            if sign == b"PK\6\7":
                end -= _LOCATOR.size + _END64.size
                if end < 0 or at64 != end or disk64 or disks > 1:
                    raise InvalidArchive(_CUT)
                sign, rest, _, _, *wide = _END64.unpack(self._at(end, _END64.size))
                # Some readers use the zip64 record whenever it exists, others only for numbers marked as not fitting.
                agrees = all(
                    number in {full, real} for number, full, real in zip(numbers, _END_FULL, wide, strict=True)
                )
                if sign != b"PK\6\6" or rest != _END64.size - 12 or not agrees:
                    raise InvalidArchive(_CUT)
                numbers = wide
        disk, start_disk, here, count, length, at = numbers
        if disk or start_disk or here != count or at + length != end or length < count * _ENTRY.size:
            raise InvalidArchive(_CUT)
        if count > self._members_max or length > _DIRECTORY_BYTES_MAX:
            raise InvalidArchive(f"it holds {count} files, and may hold {self._members_max}; split it")
        return count, at, end

    def _read_directory(self, count: int, at: int, end: int) -> list[ArchiveMember]:
        self._file.seek(at)
        members = []
        for _ in range(count):
            member, length = self._read_entry()
            members.append(member)
            at += length
            if at > end:
                break
        if at != end:
            raise InvalidArchive("the directory of the zip archive is damaged; build it again")
        return members

    def _read_entry(self) -> tuple[ArchiveMember, int]:
        fields = _ENTRY.unpack(self._exactly(_ENTRY.size))
        sign, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size, disk = fields[:14]
        attributes, offset = fields[15:]
        if sign != b"PK\1\2" or disk:
            raise InvalidArchive("the directory of the zip archive is damaged; build it again")
        name = _name(self._exactly(name_size), flags)
        extras = _extras(self._exactly(extra_size), name)
        self._exactly(comment_size)
        _check_kind(name, flags, method, extras)
        size, packed, offset = _wide(extras, (size, packed, offset), name)
        member = ArchiveMember(name, flags, method, crc, packed, size, offset, attributes >> 16)
        return member, _ENTRY.size + name_size + extra_size + comment_size

    def _enter(self, member: ArchiveMember) -> None:
        """Read the entry's local header, which must match the directory, and move to its first byte."""
        fields = _LOCAL.unpack(self._exactly(_LOCAL.size))
        sign, _, flags, method, _, _, crc, packed, size, name_size, extra_size = fields
        raw_name = self._exactly(name_size)
        extras = _extras(self._exactly(extra_size), member.name)
        agrees = sign == b"PK\3\4" and (raw_name, flags, method) == (member.name.encode(), member.flags, member.method)
        size, packed = _wide(extras, (size, packed), member.name)
        for local, expected in ((crc, member.crc), (packed, member.packed_bytes), (size, member.size_bytes)):
            agrees = agrees and (local == expected or (local == 0 and bool(flags & _HAS_DESCRIPTOR)))
        begin = member.offset + _LOCAL.size + name_size + extra_size
        if not agrees or begin + member.packed_bytes > member.end or _EXTRA_OTHER_NAME in extras:
            raise InvalidArchive(
                f"{shown(member.name)}: the zip archive contradicts itself about this file; build it again"
            )

    def _leave(self, member: ArchiveMember) -> None:
        """Check the bytes between the end of the entry and the next entry: none, or a data descriptor that repeats its
        sizes."""
        gap = member.end - self._file.tell()
        ends = [b""]
        if member.flags & _HAS_DESCRIPTOR:
            sizes = [struct.pack("<LQQ", member.crc, member.packed_bytes, member.size_bytes)]
            if max(member.packed_bytes, member.size_bytes) <= _FULL:
                sizes.append(struct.pack("<LLL", member.crc, member.packed_bytes, member.size_bytes))
            ends = [sign + each for each in sizes for sign in (b"", b"PK\7\x08")]
        if not 0 <= gap <= 24 or self._exactly(gap) not in ends:
            raise InvalidArchive(
                f"there is something behind {shown(member.name)} that belongs to no file; build it again"
            )

    def _raw(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._exactly(min(left, PIECE_BYTES))
            left -= len(piece)
            yield piece

    def _inflated(self, member: ArchiveMember) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        left = member.packed_bytes
        try:
            for packed in self._raw(left):
                left -= len(packed)
                while packed and not inflater.eof:
                    yield inflater.decompress(packed, PIECE_BYTES)
                    packed = inflater.unconsumed_tail  # noqa: PLW2901 - the rest of the same piece
                if inflater.eof:
                    break
            while not inflater.eof and (piece := inflater.decompress(b"", PIECE_BYTES)):
                yield piece
        except zlib.error as error:
            raise InvalidArchive(f"{shown(member.name)} is damaged: {error}; build it again") from error
        if left or not inflater.eof or inflater.unused_data:
            raise InvalidArchive(f"{shown(member.name)} is damaged: its packed bytes end elsewhere; build it again")

    def _at(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        return self._exactly(count)

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise InvalidArchive(_CUT)
        return data


def shown(name: str) -> str:
    """Return a name for a message: quoted, without control characters, limited in length."""
    return repr(name if len(name) <= 120 else f"{name[:117]}...")


def _name(raw: bytes, flags: int) -> str:
    if not 0 < len(raw) <= _NAME_BYTES_MAX:
        raise InvalidArchive(f"the name of a file has 1 to {_NAME_BYTES_MAX} bytes, not {len(raw)}")
    try:
        return raw.decode("utf-8" if flags & _IS_UTF8 else "ascii")
    except UnicodeDecodeError as error:
        problem = f"the name of a file cannot be read: {raw[:120]!r}; it must be UTF-8, marked so"
        raise InvalidArchive(problem) from error


def _extras(data: bytes, name: str) -> dict[int, bytes]:
    """Parse the extra fields, each kind once: of two, some readers take the first, others the last."""
    extras: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<HH", data, at) if len(data) - at >= 4 else (0, _FULL)
        at += 4 + size
        if at > len(data) or kind in extras or len(extras) == _EXTRAS_MAX:
            raise InvalidArchive(f"{shown(name)}: the zip archive is damaged here; build it again")
        extras[kind] = data[at - size : at]
    return extras


def _check_kind(name: str, flags: int, method: int, extras: dict[int, bytes]) -> None:
    problem = ""
    if flags & _FLAGS_ENCRYPTED:
        problem = "is encrypted"
    elif flags & ~_FLAGS_KNOWN:
        problem = f"has unknown zip flags {flags:#x}"
    elif method not in {_STORED, _DEFLATED}:
        problem = f"is compressed in a way that is not known here (method {method}); use deflate"
    elif _EXTRA_OTHER_NAME in extras:
        problem = "has a second name in the zip archive"
    if problem:
        raise InvalidArchive(f"{shown(name)} {problem}")


def _wide(extras: dict[int, bytes], narrow: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the numbers, with those that did not fit replaced from the zip64 extra field: exactly these, in order.

    Bazel's wheels, such as protobuf's, repeat numbers there that do fit: all of them, with the same values.
    """
    extra, count = extras.get(_EXTRA_ZIP64), narrow.count(_FULL)
    if not count and extra in (None, struct.pack(f"<{len(narrow)}Q", *narrow)):
        return narrow
    if not count or extra is None or len(extra) != 8 * count:
        raise InvalidArchive(f"{shown(name)}: the zip archive is damaged here; build it again")
    numbers = iter(struct.unpack(f"<{count}Q", extra))
    return tuple(next(numbers) if number == _FULL else number for number in narrow)
