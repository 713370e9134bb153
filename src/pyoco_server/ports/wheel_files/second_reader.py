"""Read the archive with the standard library, which is how pip reads it on a worker."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from typing import BinaryIO

from pyoco_server.core.zip_archive import ArchiveMember, shown
from pyoco_server.errors import InvalidWheel

__all__ = ["check_agreement"]


def check_agreement(file: BinaryIO, members: Sequence[ArchiveMember]) -> None:
    """Raise InvalidWheel unless both readers find the same files at the same offsets.

    As far as we can see, `ZipArchive` is strict enough to guarantee that. This check is for what we overlooked, and for
    later versions of Python that may read differently. `members` are in file order. O(n) time, and temporarily about
    600 bytes of memory per member.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            found = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise InvalidWheel(f"Python cannot read the zip archive: {shown(str(error))}; build it again") from error
    if len(found) != len(members):
        raise InvalidWheel(f"the zip archive has {len(members)} files, and {len(found)} for Python; build it again")
    for member, entry in zip(members, found, strict=True):
        if _own_fields(member) != _zipfile_fields(entry):
            raise InvalidWheel(f"{shown(member.name)} is another file to Python; build the wheel again")


def _own_fields(member: ArchiveMember) -> tuple[object, ...]:
    sizes = (member.offset, member.packed_bytes, member.size_bytes)
    return (member.name, *sizes, member.crc, member.method, member.flags, member.mode)


def _zipfile_fields(entry: zipfile.ZipInfo) -> tuple[object, ...]:
    sizes = (entry.header_offset, entry.compress_size, entry.file_size)
    return (entry.filename, *sizes, entry.CRC, entry.compress_type, entry.flag_bits, entry.external_attr >> 16)
