"""Spool bytes on disk while they pass through this process: too many for memory, and not yet validated."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from pyoco_server.errors import NoRoom

__all__ = ["Spool"]

#: Batch size: a switch to another thread costs as much as writing some ten kilobytes.
_BATCH_BYTES = 1024 * 1024
#: EFBIG: the process may not have files of that size (`ulimit -f`).
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

T = TypeVar("T")


class Spool:
    """One unnamed file: however this process ends, kill -9 included, nothing of it remains.

    All disk access happens in its own thread, in order, and never on the event loop. At most two batches are in memory.
    A cancelled caller returns immediately; the file is closed after the operation in progress.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "spool")
        self._hash = hashlib.sha256()
        self._batch = bytearray()
        self._file: io.FileIO | None = None
        self.size_bytes = 0

    async def __aenter__(self) -> Self:
        """Create the file. Raises NoRoom."""
        try:
            await self._in_thread(self._open)
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises NoRoom."""
        self.size_bytes += len(data)
        self._batch += data
        if len(self._batch) >= _BATCH_BYTES:
            await self._flush()

    async def finish(self) -> str:
        """Flush. Return the sha256 in hex of all bytes, or of those since the last `cut`. Raises NoRoom."""
        await self._flush()
        return self._hash.hexdigest()

    async def cut(self) -> str:
        """End one part and begin the next. Return the digest of the part, as `finish` does."""
        digest = await self.finish()
        self._hash = hashlib.sha256()
        return digest

    async def examine(self, look: Callable[[BinaryIO], T]) -> T:
        """Run `look` on the complete file in the spool's thread, where it may block and seek. Return its result."""

        def lend() -> T:
            with io.BufferedReader(io.FileIO(self._opened.fileno(), closefd=False)) as file:
                file.seek(0)
                return look(file)

        return await self._in_thread(lend)

    async def chunks(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of a range, by default all. Repeatable."""
        offset = start
        end = self.size_bytes if end is None else end
        while offset < end:
            size = min(_BATCH_BYTES, end - offset)
            chunk = await self._in_thread(partial(os.pread, self._opened.fileno(), size, offset))
            if not chunk:
                raise OSError(errno.EIO, "a spooled file is shorter than it was")
            offset += len(chunk)
            yield chunk

    @property
    def _opened(self) -> io.FileIO:
        assert self._file is not None, "used outside of `async with`"
        return self._file

    def _open(self) -> None:
        with _no_room():
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115  (closed by `_close`)

    async def _flush(self) -> None:
        batch, self._batch = self._batch, bytearray()
        await self._in_thread(lambda: self._append(batch))

    def _append(self, batch: bytearray) -> None:
        self._hash.update(batch)
        rest = memoryview(batch)
        with _no_room():
            while rest:  # a nearly full disk may accept only a part
                rest = rest[self._opened.write(rest) :]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _close(self) -> None:
        """Close the file after everything the thread still has to do. Does not wait."""
        self._thread.submit(lambda: self._file.close() if self._file is not None else None)
        self._thread.shutdown(wait=False)


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise NoRoom(f"the disk takes no more: {error.strerror}") from error
