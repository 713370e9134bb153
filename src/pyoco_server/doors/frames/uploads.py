"""Files of an attempt received in parts: into a temporary file, checked, then into the object store (GRID-144)."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from typing import IO

from pyoco_server.core.frames.messages import BinaryPart
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.errors import NoRoom
from pyoco_server.ports.objects.port import ObjectInfo, Objects

__all__ = ["NAMES", "SILENCE_SECONDS", "IncomingUpload", "bytes_max"]

#: The outputs that a worker may upload.
NAMES = frozenset({"output.zip", "stdout.txt", "stderr.txt"})
#: An upload is dropped if no part arrives for this long.
SILENCE_SECONDS = 60.0
_PIECE_BYTES = 128 * 1024
#: What a zip needs besides the bytes of its files: names and headers of ten thousand of them.
_ZIP_OVERHEAD = 16 * 1024 * 1024
_TEXT_BYTES_MAX = 8 * 1024 * 1024


def bytes_max(name: str, output_bytes_max: int) -> int:
    return output_bytes_max + _ZIP_OVERHEAD if name == "output.zip" else _TEXT_BYTES_MAX


class IncomingUpload:
    """One upload. Memory: one part. Its temporary file has no name, and is deleted when this process exits."""

    def __init__(self, first: BinaryPart, now: float) -> None:
        self.name, self.size = first.name, first.size
        self.received = 0
        #: When the last part arrived.
        self.heard_at = now
        #: All parts have arrived and the file is being stored: no timeout applies.
        self.is_complete = False
        #: A part is being written to disk, which may be slow: the timeout does not apply.
        self.is_writing = False
        self._sha256 = hashlib.sha256()
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="pyoco-door-")  # noqa: SIM115 - `close` closes it

    async def add(self, part: BinaryPart, now: float) -> None:
        """Append a part. Raises GridRefused: BAD_OBJECT, and NoRoom. The caller drops the upload then."""
        if self.is_complete or part.offset != self.received or part.size != self.size:
            raise GridRefused(Code.BAD_OBJECT, "the part does not follow the one before", job_id=part.job_id)
        self.heard_at, self.is_writing = now, True
        try:
            await asyncio.to_thread(self._write, part.data)
        except OSError as error:
            raise NoRoom("a part of a result could not be kept") from error
        finally:
            self.is_writing = False
        self.received += len(part.data)
        if not part.last:
            return
        if self._sha256.hexdigest() != part.sha256:
            raise GridRefused(Code.BAD_OBJECT, "the sha256 of what came is another", job_id=part.job_id)
        self.is_complete = True

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)

    async def store(self, artifacts: Objects, object_name: str) -> ObjectInfo:
        """Store a complete file. Raises Unavailable."""
        return await artifacts.put(object_name, self._pieces(), self.size)

    async def _pieces(self) -> AsyncIterator[bytes]:
        await asyncio.to_thread(self._file.seek, 0)
        while piece := await asyncio.to_thread(self._file.read, _PIECE_BYTES):
            yield piece

    def close(self) -> None:
        """Idempotent."""
        self._file.close()
