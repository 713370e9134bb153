"""The download of a file in parts (GRID-146), checked on arrival and resumed after a broken connection."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from pyoco_server.client.frames.faults import OutputDamaged
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet

__all__ = ["Fetch"]

#: Parts of 1 MiB that may be buffered for a slow disk; after that the connection is not read.
_PARTS_MAX = 4


class Fetch:
    """The download of one file. The connection puts parts in, a single reader takes them out."""

    def __init__(self, job_id: str, name: str, size: int, sha256: str) -> None:
        self._job_id, self._name, self._size, self._sha256 = job_id, name, size, sha256
        self._parts: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_PARTS_MAX)
        self._received = 0
        self._hash = hashlib.sha256()
        self.is_over = False
        self.tries = 0

    def ask(self) -> ObjectGet:
        """Return the request for the missing rest."""
        return ObjectGet(job_id=self._job_id, name=self._name, offset=self._received)

    async def put(self, part: BinaryPart) -> None:
        """Buffer a part; waits while the buffer is full. A part that is not the next one fails the download."""
        if self.is_over:
            return
        if part.offset != self._received or part.size != self._size:
            self.fail(OutputDamaged(f"{self._name}: a part is not the next one of the file"))
            return
        await self._parts.put(part.data)  # if cancelled here, the part is requested again
        self._received += len(part.data)
        self._hash.update(part.data)
        if part.last and self._received == self._size and self._hash.hexdigest() == self._sha256:
            self.is_over = True
            await self._parts.put(None)
        elif part.last:
            self.fail(OutputDamaged(f"{self._name} does not have its sha256"))

    def fail(self, error: Exception) -> None:
        """End the download with an error. Buffered parts are dropped."""
        if not self.is_over:
            self.forget()
            self._parts.put_nowait(error)

    def forget(self) -> None:
        """End the download without an error; the reader has stopped."""
        self.is_over = True
        while not self._parts.empty():  # releases a blocked `put`
            self._parts.get_nowait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the parts up to the end of the file. Raises OutputDamaged, GridRefused, ClientClosed."""
        while True:
            item = await self._parts.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
