"""Frames that a router has yet to send to a client."""

from __future__ import annotations

import asyncio
from collections import deque

from pyoco_server.core.frames.codec import Frame
from pyoco_server.frames.wire import Wire

__all__ = ["Outbox"]

#: Limits in addition to the buffer of the wire. Groups, and requests of the client, wait for room above them.
_FRAMES_MAX = 64
_BYTES_MAX = 8 * 1024 * 1024


class Outbox:
    """Sends frames in the order of `put`, by one task. `put` never waits; callers that can wait call `room` after it.

    So a client that does not read stops its groups, and not the router.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._is_over = False
        #: Set when there is a frame to send; when there is room.
        self._mail, self._room = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame) -> None:
        if self._is_over:
            return
        self._frames.append(frame)
        self._bytes += len(frame.payload)
        self._mail.set()

    async def room(self) -> None:
        """Wait for room. If the client never reads, the wait ends only with the calling task."""
        while len(self._frames) >= _FRAMES_MAX or self._bytes >= _BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Send until cancelled. Raises WireClosed. Afterwards `put` drops frames, and `room` never waits."""
        try:
            while True:
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame.payload)
                    await self._wire.send(frame)
                    self._room.set()
                self._mail.clear()
                await self._mail.wait()
        finally:
            self._is_over = True
            self._frames.clear()
            self._bytes = 0
            self._room.set()
