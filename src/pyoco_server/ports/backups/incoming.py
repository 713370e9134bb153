"""Messages that the server sends to an inbox of ours, read one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link

__all__ = ["SILENCE_SECONDS", "Incoming", "listening"]

#: Time without a byte from the server before we give up.
SILENCE_SECONDS = 30.0
#: How soon a lost connection is noticed.
_LOOK_SECONDS = 0.25


class Incoming:
    def __init__(self, link: Link, subject: str) -> None:
        self.subject = subject
        self._link, self._connection = link, link.connection
        self._queue: asyncio.Queue[Raw] = asyncio.Queue()
        self.put = self._queue.put_nowait

    async def next(self) -> Raw:
        """Return the next message.

        Raises Unavailable if the connection was lost, or after SILENCE_SECONDS without a message.
        """
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    return await self._queue.get()
            if self._connection != self._link.connection:
                raise Unavailable("the connection to NATS was lost; begin anew")
            if time.monotonic() > deadline:
                raise Unavailable(f"NATS has said nothing for {SILENCE_SECONDS:.0f} s; begin anew")


@contextlib.asynccontextmanager
async def listening(link: Link) -> AsyncIterator[Incoming]:
    incoming = Incoming(link, link.nc.new_inbox())
    subscription = await link.nc.listen(incoming.subject, incoming.put)
    try:
        yield incoming
    finally:
        link.nc.forget(subscription)
        with contextlib.suppress(nats.errors.Error):  # a lost connection drops the subscription, too
            await subscription.unsubscribe()
