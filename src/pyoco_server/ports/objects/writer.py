"""Write the bytes of one object to the store, a few chunks at a time."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterable

from pyoco_server.errors import NotStored, TooLarge, Unavailable
from pyoco_server.ports.nats.link import Link, Rejected, gave_up

__all__ = ["CHUNK_BYTES", "IDLE_SECONDS_MAX", "ChunkWriter"]

#: The size that other clients use.
CHUNK_BYTES = 128 * 1024
#: Chunks in flight: bounds memory to 2 MiB per transfer.
_WINDOW = 16
#: After this time without a new chunk a put fails. The sweeper of strays relies on it (`loops/object_sweeper.py`).
IDLE_SECONDS_MAX = 300.0


class ChunkWriter:
    """Sends one object's chunks. The order of acknowledgements proves their order in the store."""

    def __init__(self, link: Link, stream: str, subject: str, bytes_max: int) -> None:
        self._link, self._stream, self._subject, self._bytes_max = link, stream, subject, bytes_max
        self._hash = hashlib.sha256()
        self._window: deque[asyncio.Task[int]] = deque()
        self._last = 0
        self._sent_at = 0.0
        self.size_bytes = 0
        self.count = 0

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    async def send(self, pieces: AsyncIterable[bytes]) -> None:
        """Send all chunks. Raises TooLarge or NotStored. Does not retry: a late chunk would be out of order."""
        buffer = bytearray()
        async for piece in pieces:
            self.check_idle()
            self.size_bytes += len(piece)
            if self.size_bytes > self._bytes_max:
                raise TooLarge(f"more than {self._bytes_max} bytes")
            buffer += piece
            while len(buffer) >= CHUNK_BYTES:
                await self._send_chunk(bytes(buffer[:CHUNK_BYTES]))
                del buffer[:CHUNK_BYTES]
        if buffer:
            await self._send_chunk(bytes(buffer))
        while self._window:
            await self._acknowledged()

    def check_idle(self) -> None:
        """Raise NotStored if the chunks have been idle for so long that the sweeper may have taken them for strays."""
        if self.count and time.monotonic() - self._sent_at > IDLE_SECONDS_MAX:
            raise NotStored(f"nothing was added to an object for {IDLE_SECONDS_MAX:.0f} s")

    async def settle(self) -> None:
        """Wait until no chunk is in flight. Called after a failure."""
        if self._window:
            await asyncio.wait(self._window)
        for task in self._window:
            if not task.cancelled():
                task.exception()  # retrieve it: the first failure was raised, the others add nothing
        self._window.clear()

    async def _send_chunk(self, chunk: bytes) -> None:
        if len(self._window) >= _WINDOW:
            await self._acknowledged()
        self._hash.update(chunk)
        self.count += 1
        self._sent_at = time.monotonic()
        self._window.append(asyncio.create_task(self._link.store(self._subject, chunk, stream=self._stream)))

    async def _acknowledged(self) -> None:
        """Wait for the acknowledgement of the oldest chunk in flight."""
        try:
            sequence = await asyncio.shield(self._window[0])
        except Rejected as error:
            raise NotStored(f"the object store refuses a chunk: {error}") from error
        except Unavailable as error:  # this chunk may be stored, but certainly no meta refers to it
            raise gave_up("a chunk of an object may be missing", error, ambiguous=False) from error
        self._window.popleft()
        if sequence <= self._last:
            raise NotStored("the chunks of an object were stored out of order")
        self._last = sequence
