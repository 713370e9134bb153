"""The pulls of one process from one consumer, and the resulting deliveries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.client import Raw, Subscription
from pyoco_server.ports.nats.consumers import BoundConsumer
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery, Reply

__all__ = ["EXPIRES_SECONDS", "JetStreamDelivery", "Puller"]

log = get_logger(__name__)

_SECOND = 1_000_000_000
#: Short, because a pull parked while a consumer was paused wakes up only when it expires, and because stopping a worker
#: of a cluster takes as long.
EXPIRES_SECONDS = 2.0
#: The server reports an expired pull, so heartbeats would add nothing.
_DEAF_SECONDS = EXPIRES_SECONDS + 2.0
#: The server may send a job to an inbox just after confirming its unsubscribe: 2 in 7000 times, under load. If dropped,
#: the job would wait for its complete ack timer.
_STRAGGLER_SECONDS = 0.1
#: After a stall the server may send a job to an inbox that we have left, because it has not processed our unsubscribe.
#: So we listen until it confirms, within the time after which the job is redelivered anyway.
_CONFIRM_SECONDS = 30.0
#: How soon a lost connection is noticed meanwhile.
_LOOK_SECONDS = 0.5
#: The maximum wait for confirmations when stopping.
_STOP_SECONDS = 2.0
_NO_MESSAGES, _EXPIRED = "404", "408"


class JetStreamDelivery:
    __slots__ = ("_connection", "_link", "_message", "_reply", "count", "tag")

    def __init__(self, link: Link, message: Raw, tag: str) -> None:
        self._link, self._message, self.tag = link, message, tag
        self._reply, self._connection = message.reply, link.connection
        tokens = self._reply.split(".")
        self.count = int(tokens[4 if len(tokens) == 9 else 6])

    @property
    def data(self) -> bytes:
        return self._message.data

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def sequence(self) -> int:
        """Its sequence in the stream."""
        tokens = self._reply.split(".")
        return int(tokens[5 if len(tokens) == 9 else 7])

    @property
    def waiting(self) -> int:
        """How many messages its consumer had not delivered yet when it delivered this one."""
        tokens = self._reply.split(".")
        return int(tokens[8 if len(tokens) == 9 else 10])

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        if reply is Reply.NOTHING:
            return
        if reply is Reply.LATER and (not self._link.is_up or self._connection != self._link.connection):
            return  # after a reconnect it might put off the delivery of a new owner
        if reply is Reply.LATER:
            reply_bytes = b'-NAK {"delay": %d}' % int(delay_seconds * _SECOND)
        else:
            reply_bytes = b"+ACK" if reply is Reply.ACK else b"+TERM"
        try:
            await self._link.nc.send(self._reply, reply_bytes)
        except nats.errors.Error as error:
            log.warning("cannot answer the queue, the job will be redelivered", reply=reply.value, error=error)

    async def hold(self) -> None:
        try:
            if not self._link.is_up:
                raise Unavailable("there is no connection to NATS")
            await self._link.nc.send(self._reply, b"+WPI")
        except nats.errors.Error as error:
            raise Unavailable("the in-progress ack was not sent") from error


class Puller:
    """The pulls of one consumer. The owner decides how much to request; this class tracks the requests."""

    def __init__(
        self,
        link: Link,
        stream: str,
        bound: BoundConsumer,
        on_delivery: Callable[[Delivery], None],
        on_change: Callable[[], None],
    ) -> None:
        self.tag = bound.tag
        #: How many messages the server may still send.
        self.asked = 0
        self.heard_at = time.monotonic()
        #: The last probe found nothing, and nothing has arrived since.
        self.is_empty = False
        #: The server refused the request, other than "no messages": find out why before the next one.
        self.is_refused = False
        self._link, self._on_delivery, self._on_change = link, on_delivery, on_change
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{bound.consumer}"
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._waits = True
        self._connection = 0
        self._leaving: set[asyncio.Task[None]] = set()

    async def probe(self, count: int) -> None:
        """Request what is available now."""
        self._waits = False
        await self._ask(count, {"batch": count, "no_wait": True})

    async def park(self, count: int, seconds: float) -> None:
        """Request what is available or arrives within `seconds`."""
        self._waits = True
        await self._ask(count, {"batch": count, "expires": max(1_000_000, int(seconds * _SECOND))})

    async def _ask(self, count: int, request: dict[str, object]) -> None:
        if not self.asked:
            self.heard_at = time.monotonic()
        self.asked += count
        try:
            if self._subscription is None:
                self._connection = self._link.connection
                self._inbox = self._link.nc.new_inbox()
                self._subscription = await self._link.nc.listen(self._inbox, self._listener(self._inbox))
            await self._link.nc.send(self._subject, msgspec.json.encode(request), self._inbox)
        except nats.errors.Error:
            self.leave()
            raise

    def _listener(self, inbox: str) -> Callable[[Raw], None]:
        def listen(message: Raw) -> None:
            self.heard_at = time.monotonic()
            status = message.status
            if status is None:
                self._on_job(message, inbox)
            elif inbox == self._inbox:
                self._on_void(status, message)

        return listen

    def _on_job(self, message: Raw, inbox: str) -> None:
        self.is_empty = False
        if inbox == self._inbox:
            self.asked = max(0, self.asked - 1)
        self._on_delivery(JetStreamDelivery(self._link, message, self.tag))
        self._on_change()

    def _on_void(self, status: str, message: Raw) -> None:
        """Handle the part of a request that will not be fulfilled: nothing found, expired, or refused."""
        self.asked -= min(self.asked, int(message.headers.get("Nats-Pending-Messages", self.asked)))
        self.is_empty = True
        if status not in {_NO_MESSAGES, _EXPIRED}:
            log.info("pull refused", tag=self.tag, status=status, description=message.description)
            self.is_refused = True
        self._on_change()

    def leave(self) -> None:
        """Withdraw the request: drop the inbox, but still receive what is in transit."""
        seconds = _STRAGGLER_SECONDS if self.asked else 0.0
        subscription, self._subscription, self._inbox, self.asked = self._subscription, None, "", 0
        self.is_empty = False
        if subscription is not None:
            task = asyncio.create_task(_drain(self._link, subscription, seconds))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def left(self) -> None:
        """Wait until everything in transit has arrived, or the server has been silent for too long."""
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=_STOP_SECONDS)
        for task in set(self._leaving):
            task.cancel()
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=_STOP_SECONDS)  # the library may swallow the first cancel

    @property
    def is_probing(self) -> bool:
        return self.asked > 0 and not self._waits

    @property
    def is_deaf(self) -> bool:
        """Whether pulls are pending but lost: they end with their connection, and occasionally without a status
        message."""
        silent = time.monotonic() - self.heard_at > _DEAF_SECONDS
        return self.asked > 0 and (silent or self._connection != self._link.connection)


async def _drain(link: Link, subscription: Subscription, seconds: float) -> None:
    """Drain like the library, but keep listening until the server confirms, and for a moment after that.

    An inbox ends with its connection: after a loss nothing arrives there, and no unsubscribe is needed.
    """
    nc, connection = link.nc, link.connection
    try:
        if link.is_up:
            confirmed = await nc.leave(subscription)
            ends_at = time.monotonic() + _CONFIRM_SECONDS
            while not confirmed.done() and link.is_up and link.connection == connection and time.monotonic() < ends_at:
                await asyncio.wait({confirmed}, timeout=_LOOK_SECONDS)
            await asyncio.sleep(seconds)
    except (nats.errors.Error, OSError, RuntimeError) as error:  # uvloop raises RuntimeError for a closed connection
        log.debug("could not unsubscribe old inbox", error=error)
    finally:
        nc.forget(subscription)
        nc.unsubscribe(subscription)
