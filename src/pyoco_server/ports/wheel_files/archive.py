"""Validate wheels as zip archives."""

from __future__ import annotations

import base64
import hashlib
from typing import BinaryIO

from pyoco_server.core.wheel import WheelName
from pyoco_server.core.zip_archive import ArchiveMember, ZipArchive, shown
from pyoco_server.errors import InvalidArchive, InvalidWheel
from pyoco_server.ports.wheel_files.dist_info import check_entry_points, check_metadata, check_wheel, read_record
from pyoco_server.ports.wheel_files.paths import check_paths
from pyoco_server.ports.wheel_files.places import check_places, find_dist_info
from pyoco_server.ports.wheel_files.second_reader import check_agreement

__all__ = ["ArchiveWheelFiles"]

#: Limits of the files that are read into memory. The longest known METADATA contain a page of documentation.
_BYTES_MAX = {"METADATA": 4 << 20, "WHEEL": 64 << 10, "entry_points.txt": 256 << 10}
_RECORD_BYTES_MAX = 64 << 20
_DIGESTS = frozenset({"sha256", "sha384", "sha512"})


class ArchiveWheelFiles:
    """`unpacked_bytes_max` bounds the time, 1 s per 250 MB or so; memory is about 900 bytes per file in the wheel."""

    def __init__(self, unpacked_bytes_max: int) -> None:
        self._unpacked_bytes_max = unpacked_bytes_max

    def check(self, file: BinaryIO, name: WheelName) -> None:
        try:
            self._check(file, name)
        except InvalidArchive as error:
            raise InvalidWheel(str(error)) from error

    def _check(self, file: BinaryIO, name: WheelName) -> None:
        archive = ZipArchive(file)
        check_paths(archive.members)
        check_agreement(file, archive.members)
        unpacked_bytes = sum(member.size_bytes for member in archive.members)
        if unpacked_bytes > self._unpacked_bytes_max:  # `pieces_of` verifies these sizes
            raise InvalidWheel(f"it unpacks to {unpacked_bytes} bytes, and may to {self._unpacked_bytes_max}; split it")
        files = {member.name: member for member in archive.members if not member.is_directory}
        info = find_dist_info(files, name)
        check_places(files, name)
        check_metadata(_read(archive, files, info, "METADATA"), name)
        check_wheel(_read(archive, files, info, "WHEEL"), name)
        if f"{info}/entry_points.txt" in files:
            check_entry_points(_read(archive, files, info, "entry_points.txt"))
        _take_record(archive, files, info)
        for member in archive.members:
            _check_bytes(archive, member)


def _read(archive: ZipArchive, files: dict[str, ArchiveMember], info: str, file_name: str) -> bytes:
    member = files.get(f"{info}/{file_name}")
    if member is None:
        raise InvalidWheel(f"{shown(f'{info}/{file_name}')} is missing; build it with a build tool")
    if member.size_bytes > _BYTES_MAX[file_name]:
        raise InvalidWheel(f"{file_name} has {member.size_bytes} bytes, and may have {_BYTES_MAX[file_name]}")
    return b"".join(archive.pieces_of(member))


def _take_record(archive: ZipArchive, files: dict[str, ArchiveMember], info: str) -> None:
    """Store on each member its entry in RECORD.

    Raises InvalidWheel for files that RECORD lacks, and for entries without a file.
    """
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


def _check_bytes(archive: ZipArchive, member: ArchiveMember) -> None:
    digest = hashlib.new(member.algorithm or "sha256")
    for piece in archive.pieces_of(member):
        digest.update(piece)
    if member.algorithm and _text_form(digest.digest()) != member.digest.rstrip("="):
        raise InvalidWheel(f"{shown(member.name)} is not what RECORD says; build it again")


def _text_form(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
