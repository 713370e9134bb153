"""A file that comes in parts (GRID-146): checked as it arrives, taken up again where it broke off."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from pyoco_server.client.frames.faults import OutputDamaged
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet

__all__ = ["Fetch"]

#: Parts of 1 MiB that may wait for a slow disk; then the connection is not read.
_PARTS_MAX = 4


class Fetch:
    """One file on its way. The connection puts parts in, one reader takes them out."""

    def __init__(self, job_id: str, name: str, size: int, sha256: str) -> None:
        self._job_id, self._name, self._size, self._sha256 = job_id, name, size, sha256
        self._parts: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_PARTS_MAX)
        self._received = 0
        self._hash = hashlib.sha256()
        self.is_over = False
        self.tries = 0

    def ask(self) -> ObjectGet:
        """For what is still missing."""
        return ObjectGet(job_id=self._job_id, name=self._name, offset=self._received)

    async def put(self, part: BinaryPart) -> None:
        """Waits while the reader is slow. What is not the next part of the file ends it."""
        if self.is_over:
            return
        if part.offset != self._received or part.size != self._size:
            self.fail(OutputDamaged(f"{self._name}: a part is not the next one of the file"))
            return
        await self._parts.put(part.data)  # if the connection ends here, it is asked for again
        self._received += len(part.data)
        self._hash.update(part.data)
        if part.last and self._received == self._size and self._hash.hexdigest() == self._sha256:
            self.is_over = True
            await self._parts.put(None)
        elif part.last:
            self.fail(OutputDamaged(f"{self._name} does not have its sha256"))

    def fail(self, error: Exception) -> None:
        """What has come is of no use any more."""
        if not self.is_over:
            self.forget()
            self._parts.put_nowait(error)

    def forget(self) -> None:
        """The reader has gone."""
        self.is_over = True
        while not self._parts.empty():  # whoever waits to put something is let go
            self._parts.get_nowait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """To the end of the file. Raises OutputDamaged, GridRefused, ClientClosed."""
        while True:
            item = await self._parts.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
