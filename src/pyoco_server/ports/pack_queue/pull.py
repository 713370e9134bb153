"""One receive from a JetStream consumer, which never gets more messages than it requested."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.consumers import BoundConsumer
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.puller import EXPIRES_SECONDS, JetStreamDelivery, Puller
from pyoco_server.ports.queue.port import Delivery

__all__ = ["Pull"]

#: How soon a lost connection, or a silent server, is noticed.
_LOOK_SECONDS = 0.25
#: Pause between a refusal and the next request.
_REFUSED_SECONDS = 0.5


class Pull:
    """An inbox that serves one receive at a time, and is reused by the next.

    Available messages are fetched with a pull that does not wait. Only if there are none, a single message is requested
    with a waiting pull. So no more arrive than were requested, and what arrives is returned immediately.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        consumer: BoundConsumer,
        is_spent: Callable[[JetStreamDelivery], bool],
        on_stray: Callable[[JetStreamDelivery], None],
    ) -> None:
        """`is_spent` takes messages that must not be handed out.

        `on_stray` gets messages that no receive is waiting for.
        """
        self._link, self._is_spent, self._on_stray = link, is_spent, on_stray
        self._puller = Puller(link, stream, consumer, self._on_delivery, self._on_change)
        self._caught: list[JetStreamDelivery] = []
        self._is_wanted = False
        self._has_kept = False
        #: The connection of the last request. Pulls parked at the server end with it.
        self._connection = link.connection
        self._changed = asyncio.Event()

    @property
    def is_owed(self) -> bool:
        """Whether the server may still send messages."""
        return self._puller.asked > 0

    async def catch(
        self, at_most: int, wait_seconds: float, bind: Callable[[], Awaitable[object]]
    ) -> Sequence[JetStreamDelivery]:
        """Return up to `at_most` messages, or none after the wait. `bind` recreates the consumer if it was deleted.

        Raises Unavailable. Messages that arrive for a cancelled call go to `on_stray`.
        """
        ends_at = time.monotonic() + wait_seconds
        self._is_wanted, self._has_kept = True, False
        try:
            await self._settled()  # of an earlier receive that was cancelled
            waits = at_most == 1 and wait_seconds > 0
            while not self._caught:
                await self._link.until_up(self._link.patience.down_seconds)
                left = ends_at - time.monotonic()
                if waits and left <= 0:
                    break
                self._connection = self._link.connection
                if waits:
                    await self._puller.park(1, min(left, EXPIRES_SECONDS))
                else:
                    await self._puller.probe(at_most)
                await self._settled()
                if self._puller.is_refused:
                    await asyncio.sleep(_REFUSED_SECONDS)
                    await bind()
                    self._puller.is_refused = False
                # There may be others after those that `is_spent` took.
                waits, self._has_kept = waits or not self._has_kept, False
            caught, self._caught = self._caught, []
            return caught
        finally:
            self._is_wanted = False
            for delivery in self._caught:
                self._on_stray(delivery)
            self._caught = []

    def leave(self) -> None:
        """Withdraw the request. Messages in transit are still received, as strays."""
        self._puller.leave()

    async def left(self) -> None:
        """Wait until everything in transit has arrived, or the server has been silent for too long."""
        await self._puller.left()

    async def expired(self, seconds: float) -> None:
        """Wait until no request is pending at the server, at most for this long."""
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(seconds):
                await self._settled()

    async def _settled(self) -> None:
        """Wait until the request is fulfilled or has expired. Raises Unavailable if the server does not answer."""
        while self._puller.asked:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            if self._puller.is_deaf:
                self._puller.leave()
                if self._link.is_up and self._connection == self._link.connection:
                    raise Unavailable("the queue is silent")

    def _on_change(self) -> None:
        self._changed.set()

    def _on_delivery(self, delivery: Delivery) -> None:
        assert isinstance(delivery, JetStreamDelivery)
        if self._is_spent(delivery):
            self._has_kept = True
        elif self._is_wanted:
            self._caught.append(delivery)
        else:
            self._on_stray(delivery)
