"""Write a file from a store to the disk: complete and verified, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pyoco_server.errors import DependencyUnavailable, NoRoom, TooLarge

__all__ = ["Landing"]

#: Bytes per write: a switch to another thread costs as much as writing some ten kilobytes.
_BATCH_BYTES = 1024 * 1024


class Landing:
    """Uses one batch of memory, whatever the file size. All disk access happens in another thread."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path, self._bytes_max = path, bytes_max
        self._hash = hashlib.sha256()
        self._batch = bytearray()
        self._file: io.FileIO | None = None
        self._is_complete = False
        self.size_bytes = 0

    async def __aenter__(self) -> Self:
        """Create the file. Raises NoRoom."""
        await self._in_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self._close))

    async def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises TooLarge before anything beyond the limit is stored, and NoRoom."""
        self.size_bytes += len(chunk)
        if self.size_bytes > self._bytes_max:
            raise TooLarge(f"the file has more than {self._bytes_max} bytes")
        self._batch += chunk
        if len(self._batch) >= _BATCH_BYTES:
            await self._flush()

    async def finish(self, sha256: str | None) -> None:
        """Flush and verify the file. Raises DependencyUnavailable if the digest does not match, and NoRoom."""
        await self._flush()
        if sha256 is not None and self._hash.hexdigest() != sha256:
            raise DependencyUnavailable("cannot read an input: its bytes do not match its digest")
        self._is_complete = True

    async def _flush(self) -> None:
        batch, self._batch = self._batch, bytearray()
        await self._in_thread(lambda: self._append(batch))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:  # usually a full disk; in any case this process cannot store the file
            raise NoRoom(f"the disk does not take a file: {error.strerror}") from error

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = io.FileIO(os.open(self._path, flags, 0o600), "wb")  # closed by `_close`

    def _append(self, batch: bytearray) -> None:
        assert self._file is not None
        self._hash.update(batch)
        rest = memoryview(batch)
        while rest:  # a nearly full disk may accept only a part
            rest = rest[self._file.write(rest) :]

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        if not self._is_complete:
            with contextlib.suppress(OSError):
                self._path.unlink()
