"""Flow control by credits: a worker requests exactly as many jobs as it has room for, and never gets more.

A single consumer gets all the room in one parked pull. Several consumers share the room: each is probed in turn with a
pull that does not wait, and only when all are empty, each is asked for one job. So more jobs than there is room for are
asked for only while the queues are empty. A job that arrives without room is kept briefly, in case a slot becomes free,
and is then returned.

A parked pull cannot be cancelled. It ends with its inbox; but in a cluster a job may be in transit to that inbox from
another node, and would be stuck until its ack timer ends: measured, 3 in 100 times under load. So pulls are short, and
in a cluster they are left to expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.ports.nats.consumers import BoundConsumer
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.puller import EXPIRES_SECONDS, Puller
from pyoco_server.ports.queue.port import Delivery, Reply

__all__ = ["JetStreamIntake"]

log = get_logger(__name__)

#: The minimum wait of a `take`: one request and its answer.
_TAKE_SECONDS_MIN = 0.05
#: Grace time for a pull to report its end.
_LATE_SECONDS = 0.25
#: Pause between a refusal and the next request.
_REFUSED_SECONDS = 0.5
#: How long a job without room is kept; less if the ack timer is short.
_SURPLUS_SECONDS = 1.0


class JetStreamIntake:
    def __init__(
        self,
        link: Link,
        stream: str,
        consumers: Sequence[BoundConsumer],
        on_delivery: Callable[[Delivery], None],
        bind: Callable[[str], Awaitable[BoundConsumer]],
    ) -> None:
        self._link, self._on_delivery, self._bind = link, on_delivery, bind
        self._pullers = [Puller(link, stream, consumer, self._receive, self._kick) for consumer in consumers]
        self._room = 0
        self._turn = 0
        #: Jobs that arrived when there was no room.
        self._surplus: deque[Delivery] = deque()
        self._taker: asyncio.Future[Delivery] | None = None
        #: New jobs are unwanted: the last `take` has ended, or the intake is closed.
        self._is_over = False
        #: When the current `take` ends.
        self._ends_at = float("inf")
        self._pumping: asyncio.Task[None] | None = None
        self._binding: asyncio.Task[None] | None = None
        self._dirty = False
        self._changed = asyncio.Event()
        self._returning: set[asyncio.Task[None]] = set()
        self._outage = Outage(log)
        self.ack_wait_seconds = min(consumer.ack_wait_seconds for consumer in consumers)
        self.max_deliver = min((consumer.max_deliver for consumer in consumers if consumer.max_deliver), default=0)

    @property
    def heard_at(self) -> float:
        return max(puller.heard_at for puller in self._pullers)

    async def want(self, count: int) -> None:
        self._room = count
        self._turn += 1  # FLOW-294: start with another tag each time
        self._kick()

    async def tick(self) -> None:
        self._changed.set()
        self._start_pump()

    async def _bind_again(self) -> None:
        """Recreate the consumer after a refusal, as at the start: it may have been deleted."""
        try:
            await asyncio.sleep(_REFUSED_SECONDS)
            for puller in self._pullers:
                if puller.is_refused:
                    try:
                        await self._bind(puller.tag)
                        puller.is_refused = False
                        self._outage.worked()
                    except Unavailable as error:
                        self._outage.failed("the queue cannot be pulled from; trying again", error, tag=puller.tag)
        finally:
            self._binding = None
            self._kick()

    async def take(self, seconds: float) -> Delivery | None:
        """Take one delivery (FLOW-365).

        The pulls expire with the timeout, so that nothing is sent to a caller that has left.
        """
        await self._link.until_up(max(seconds, self._link.patience.down_seconds))
        taker: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._ends_at = time.monotonic() + max(seconds, _TAKE_SECONDS_MIN)
        self._taker, self._is_over = taker, False
        try:
            await self.want(1)
            while not taker.done() and (left := self._ends_at - time.monotonic()) > 0:
                await asyncio.wait({taker}, timeout=min(left, 1.0))
                await self.tick()
            if not taker.done():
                await self._settle(_LATE_SECONDS)
            taken, taker = taker, asyncio.get_running_loop().create_future()
            return taken.result() if taken.done() else None
        finally:
            self._room, self._is_over, self._taker = 0, True, None
            if taker.done():  # cancelled with a job already taken
                self._return(taker.result())

    async def close(self) -> None:
        self._room, self._is_over = 0, True
        self._outage.forget()
        while self._surplus:
            self._return(self._surplus.popleft())
        if self._binding is not None:
            self._binding.cancel()
            await asyncio.wait({self._binding})
        while self._pumping is not None and not self._pumping.done():
            await asyncio.wait({self._pumping})
        if self._link.is_clustered:
            await self._settle(EXPIRES_SECONDS + _LATE_SECONDS)
        for puller in self._pullers:
            puller.leave()
        await asyncio.gather(*(puller.left() for puller in self._pullers))
        while self._returning:
            await asyncio.wait(set(self._returning))

    async def _settle(self, seconds: float) -> None:
        """Wait until no request is pending: each was fulfilled or has expired."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._link.is_up and any(puller.asked for puller in self._pullers):
                    self._changed.clear()
                    await self._changed.wait()

    def _receive(self, delivery: Delivery) -> None:
        if self._room > 0:
            self._hand_over(delivery)
        elif self._is_over:
            # Delayed in a cluster: other workers that also stop would pass it around until its deliveries are
            # exhausted.
            self._return(delivery, EXPIRES_SECONDS if self._link.is_clustered else 0.0)
        else:
            self._surplus.append(delivery)
            seconds = min(_SURPLUS_SECONDS, self.ack_wait_seconds / 3)
            asyncio.get_running_loop().call_later(seconds, self._return_surplus, delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        self._room -= 1
        if self._taker is None:
            self._on_delivery(delivery)
        else:
            self._taker.set_result(delivery)

    def _return_surplus(self, delivery: Delivery) -> None:
        if delivery in self._surplus:
            self._surplus.remove(delivery)
            self._return(delivery)

    def _return(self, delivery: Delivery, delay_seconds: float = 0.0) -> None:
        task = asyncio.create_task(delivery.answer(Reply.LATER, delay_seconds))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    # What to request next. Only one task at a time decides that.

    def _kick(self) -> None:
        """Recheck what to request. Usually that is nothing, and costs no task."""
        self._changed.set()
        if self._may_ask():
            self._start_pump()

    def _may_ask(self) -> bool:
        """Return whether a request may be due. Everything else that a tick checks can wait for the next tick."""
        if any(puller.is_refused for puller in self._pullers):
            return True
        if self._room <= 0:
            return False
        only = self._pullers[0] if len(self._pullers) == 1 else None
        return only is None or bool(self._surplus) or only.asked <= self._room // 2

    def _start_pump(self) -> None:
        self._dirty = True
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._pump(), name="intake")

    async def _pump(self) -> None:
        while self._dirty:
            self._dirty = False
            while self._surplus and self._room > 0:
                self._hand_over(self._surplus.popleft())
            for puller in self._pullers:
                if puller.is_deaf:
                    log.warning("queue is silent, pulling anew", tag=puller.tag)
                    puller.leave()
            if any(puller.is_refused for puller in self._pullers) and self._binding is None and not self._is_over:
                self._binding = asyncio.create_task(self._bind_again(), name="intake binds")
            seconds = min(EXPIRES_SECONDS, self._ends_at - time.monotonic())
            # If the connection is down, the tick after the reconnect sends the request.
            if self._room > 0 and seconds > 0 and self._link.is_up:
                try:
                    await (self._ask_one if len(self._pullers) == 1 else self._ask_each)(seconds)
                except nats.errors.Error as error:
                    log.warning("cannot request jobs", error=error)

    async def _ask_one(self, seconds: float) -> None:
        puller = self._pullers[0]
        # Below half, so that short runs are requested in batches rather than one by one.
        if puller.asked <= self._room // 2 and not puller.is_refused:
            await puller.park(self._room - puller.asked, seconds)

    async def _ask_each(self, seconds: float) -> None:
        if any(puller.is_probing for puller in self._pullers):
            return
        turn = self._turn % len(self._pullers)
        idle = [puller for puller in self._pullers[turn:] + self._pullers[:turn] if not puller.asked]
        idle = [puller for puller in idle if not puller.is_refused]
        for puller in idle:
            if not puller.is_empty:
                self._turn += 1
                await puller.probe(max(1, self._room - sum(other.asked for other in self._pullers)))
                return
        for puller in idle:
            await puller.park(1, seconds)
