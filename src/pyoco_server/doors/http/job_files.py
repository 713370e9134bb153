"""The input files of one job during upload: in memory while they are small, then on disk."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pyoco_server.core.programs.job import InputFile
from pyoco_server.ports.spool import Spool

__all__ = ["HELD_BYTES_MAX", "JobFiles"]

#: Most jobs have small inputs and need neither a thread nor a file.
HELD_BYTES_MAX = 256 * 1024


@dataclass(frozen=True)
class _Piece:
    """The position of one file in the concatenated bytes."""

    file: InputFile
    start: int


class JobFiles:
    """The files of a job, stored back to back and hashed as they arrive.

    Holds at most two batches of the spool in memory (GRID-157). The file on disk has no name, so nothing remains after
    a crash.
    """

    def __init__(self, directory: Path, turn: Callable[[], AbstractContextManager[None]]) -> None:
        """`turn` is acquired before anything is written to disk. It raises TooManyTransfers."""
        self._directory, self._turn = directory, turn
        self._resources = contextlib.AsyncExitStack()
        self._held = bytearray()
        self._hash = hashlib.sha256()
        self._spool: Spool | None = None
        self._name: str | None = None
        self._start = self.size_bytes = 0
        self._pieces: dict[str, _Piece] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()

    async def begin(self, name: str) -> None:
        """Start the next file. Names must be unique. Raises NoRoom."""
        await self.finish()
        self._name = name

    async def write(self, data: bytes) -> None:
        """Append to the current file. Raises NoRoom, TooManyTransfers."""
        if self._spool is None and len(self._held) + len(data) <= HELD_BYTES_MAX:
            self._held += data
            self._hash.update(data)
        else:
            await (self._spool or await self._spill()).write(data)
        self.size_bytes += len(data)

    async def finish(self) -> tuple[InputFile, ...]:
        """Complete the last file, and return all files in order of arrival. Raises NoRoom."""
        if self._name is not None:
            sha256 = self._hash.hexdigest() if self._spool is None else await self._spool.cut()
            file = InputFile(self._name, self.size_bytes - self._start, sha256)
            self._pieces[self._name] = _Piece(file, self._start)
            self._name, self._start, self._hash = None, self.size_bytes, hashlib.sha256()
        return tuple(piece.file for piece in self._pieces.values())

    async def open(self, name: str) -> AsyncIterator[bytes]:
        """Yield the bytes of one file. Can be called repeatedly. Raises KeyError."""
        piece = self._pieces[name]
        end = piece.start + piece.file.size
        if self._spool is None:
            yield bytes(self._held[piece.start : end])
            return
        async for chunk in self._spool.chunks(piece.start, end):
            yield chunk

    async def _spill(self) -> Spool:
        """Spill the received data to disk. The cut after the completed files starts a hash for the current one."""
        self._resources.enter_context(self._turn())
        spool = await self._resources.enter_async_context(Spool(self._directory))
        await spool.write(bytes(self._held[: self._start]))
        await spool.cut()
        await spool.write(bytes(self._held[self._start :]))
        self._held.clear()
        self._spool = spool
        return spool
