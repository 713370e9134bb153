"""Questions to consumers for what is there now: many lanes at once over one inbox, and nothing that comes late is lost.

A job comes under its own subject, and not under that of the question. So its lane is known, and the question as well
while there is one at a time for each lane: those who ask meanwhile are asked for together, once that one is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import nats.errors

from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.client import Raw, Subscription
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.queue.puller import JetStreamDelivery

__all__ = ["ConsumerMissing", "Pulls"]

log = get_logger(__name__)

#: Nobody listens: the consumer is not there, or has no leader at the moment.
_NO_RESPONDERS = "503"
#: Nothing there; expired.
_VOID = frozenset({"404", "408"})
#: A question that does not wait is answered within a round trip. One that is not has been lost.
_ANSWER_SECONDS = 2.0
#: How soon a lost connection is noticed meanwhile.
_LOOK_SECONDS = 0.25
_BATCH_MAX = 256


class ConsumerMissing(NotStored):
    """There is no such consumer, or it has no leader."""


@dataclass
class _Pull:
    """A question that was sent."""

    count: int
    done: asyncio.Future[None]
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass
class _Ask:
    """Somebody who waits for the question after this one."""

    count: int
    answer: asyncio.Future[list[Delivery]]


@dataclass
class _Lane:
    consumer: str
    pull: _Pull | None = None
    waiting: deque[_Ask] = field(default_factory=deque)


class Pulls:
    """The pulls of one process from one stream. Memory is O(lanes that are being asked)."""

    def __init__(self, link: Link, stream: str, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._link, self._answer_seconds = link, answer_seconds
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}."
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._gate = asyncio.Lock()
        self._count = 0
        self._by_name: dict[str, _Pull] = {}
        #: Those for which a question is under way, by how their subjects begin.
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Jobs that came when nobody waited for them any more, and were given back.
        self.late = 0

    async def take(self, consumer: str, prefix: str, count: int) -> list[Delivery]:
        """Up to `count` jobs that are there now: one round trip, or two. Subjects of the lane are `<prefix>.<run_id>`.

        Raises ConsumerMissing, Unavailable. Whoever is cancelled meanwhile gets nothing, and nothing is lost.
        """
        lane = self._lanes.get(prefix)
        if lane is not None:
            return await self._wait_for_turn(lane, count)
        lane = self._lanes[prefix] = _Lane(consumer)
        try:
            return await self._ask(lane, count)
        finally:
            self._pass_on(prefix, lane)

    async def _wait_for_turn(self, lane: _Lane, count: int) -> list[Delivery]:
        ask = _Ask(count, asyncio.get_running_loop().create_future())
        lane.waiting.append(ask)
        try:
            return await ask.answer
        except asyncio.CancelledError:
            if ask.answer.done() and not ask.answer.cancelled() and ask.answer.exception() is None:
                self._give_back(ask.answer.result())
            raise

    def _pass_on(self, prefix: str, lane: _Lane) -> None:
        """The next question for those who wait, if there are any."""
        if not lane.waiting:
            del self._lanes[prefix]
            return
        task = asyncio.get_running_loop().create_task(self._serve(prefix, lane), name="pull for several")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, prefix: str, lane: _Lane) -> None:
        asks: list[_Ask] = []
        while lane.waiting and (not asks or sum(ask.count for ask in asks) + lane.waiting[0].count <= _BATCH_MAX):
            ask = lane.waiting.popleft()
            if not ask.answer.done():
                asks.append(ask)
        try:
            found = await self._ask(lane, sum(ask.count for ask in asks)) if asks else []
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_result(found[: ask.count])
                    found = found[ask.count :]
            self._give_back(found)  # of those who have gone meanwhile
        except Unavailable as error:
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_exception(error)
        finally:
            self._pass_on(prefix, lane)

    async def _ask(self, lane: _Lane, count: int) -> list[Delivery]:
        await self._link.until_up(self._link.patience.down_seconds)
        if self._subscription is None:
            await self._open()
        self._count += 1
        name = str(self._count)
        pull = lane.pull = self._by_name[name] = _Pull(count, asyncio.get_running_loop().create_future())
        try:
            request = b'{"batch":%d,"no_wait":true}' % count
            await self._link.nc.send(self._subject + lane.consumer, request, f"{self._inbox}.{name}")
            await self._until_answered(pull)
        except nats.errors.Error as error:
            raise NotStored("the queue was not asked") from error
        except asyncio.CancelledError:
            self._give_back(pull.deliveries)
            raise
        finally:
            lane.pull = None
            del self._by_name[name]
        if pull.done.done():
            pull.done.result()
        elif not pull.deliveries:  # after some have come, silence is no error: those are in hand
            raise Unavailable("the queue did not answer")
        return pull.deliveries

    async def _until_answered(self, pull: _Pull) -> None:
        """Or until it is known that no answer comes."""
        connection, ends_at = self._link.connection, time.monotonic() + self._answer_seconds
        while not pull.done.done() and self._link.connection == connection:
            left = ends_at - time.monotonic()
            if left <= 0:
                return
            await asyncio.wait({pull.done}, timeout=min(left, _LOOK_SECONDS))

    async def _open(self) -> None:
        async with self._gate:
            if self._subscription is None:
                self._inbox = self._link.nc.new_inbox()
                try:
                    self._subscription = await self._link.nc.listen(f"{self._inbox}.*", self._on_message)
                except nats.errors.Error as error:
                    raise NotStored("the queue was not asked") from error

    def _on_message(self, message: Raw) -> None:
        status = message.status
        if status is None:
            self._on_job(message)
            return
        pull = self._by_name.get(message.subject.rpartition(".")[2])
        if pull is None or pull.done.done():
            return
        if status in _VOID or pull.deliveries:  # the consumer may go in the middle; what it gave is in hand
            pull.done.set_result(None)
        elif status == _NO_RESPONDERS:
            pull.done.set_exception(ConsumerMissing("the lane has no consumer"))
        else:
            log.info("a pull was refused", status=status, description=message.description)
            pull.done.set_exception(ConsumerMissing(f"the queue refuses: {message.description}"))

    def _on_job(self, message: Raw) -> None:
        prefix = message.subject.rpartition(".")[0]
        delivery = JetStreamDelivery(self._link, message, prefix.split(".")[-2])
        lane = self._lanes.get(prefix)
        pull = lane.pull if lane is not None else None
        if pull is None or pull.done.done():
            self.late += 1
            self._give_back([delivery])
            return
        pull.deliveries.append(delivery)
        if len(pull.deliveries) == pull.count:
            pull.done.set_result(None)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            task = asyncio.get_running_loop().create_task(delivery.answer(Reply.LATER))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask for nothing more, and give back what comes within a round trip. May be called twice."""
        async with self._gate:
            subscription, self._subscription = self._subscription, None
            if subscription is None:
                return
            try:
                if self._link.is_up:
                    # Nothing is parked at the server: whatever is under way arrives ahead of the answer to a ping.
                    async with asyncio.timeout(self._answer_seconds):
                        await self._link.nc.flush()
                await subscription.unsubscribe()
            except (TimeoutError, nats.errors.Error) as error:
                log.debug("the queue was left without a farewell", error=error)
            self._link.nc.forget(subscription)
        while self._tasks:
            await asyncio.wait(set(self._tasks))
