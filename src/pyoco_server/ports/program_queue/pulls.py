"""Non-waiting pulls from many queues over a single inbox. Jobs that arrive late are returned, not lost.

A job arrives under its own subject, not under that of the request. So its queue is known, and the request as well, as
long as each queue has only one at a time: calls made meanwhile are combined into the next request.
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
from pyoco_server.ports.nats.puller import JetStreamDelivery
from pyoco_server.ports.queue.port import Delivery, Reply

__all__ = ["ConsumerMissing", "Pulls"]

log = get_logger(__name__)

#: No responders: the consumer does not exist, or has no leader at the moment.
_NO_RESPONDERS = "503"
#: No messages; expired.
_VOID = frozenset({"404", "408"})
#: A request that does not wait is answered within a round trip, or it is lost.
_ANSWER_SECONDS = 2.0
#: How soon a lost connection is noticed meanwhile.
_LOOK_SECONDS = 0.25
_BATCH_MAX = 256


class ConsumerMissing(NotStored):
    """The consumer does not exist, or has no leader."""


@dataclass
class _Pull:
    """A request that was sent."""

    count: int
    done: asyncio.Future[None]
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass
class _Ask:
    """A call that waits for the next request."""

    count: int
    answer: asyncio.Future[list[Delivery]]


@dataclass
class _ConsumerPulls:
    consumer: str
    pull: _Pull | None = None
    waiting: deque[_Ask] = field(default_factory=deque)


class Pulls:
    """The pulls of one process from one stream. Memory is O(queues with a pending request)."""

    def __init__(self, link: Link, stream: str, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._link, self._answer_seconds = link, answer_seconds
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}."
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._gate = asyncio.Lock()
        self._count = 0
        self._by_name: dict[str, _Pull] = {}
        #: Queues with a pending request, by subject prefix.
        self._by_prefix: dict[str, _ConsumerPulls] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: The number of jobs that arrived after their request had ended, and were returned.
        self.late = 0

    async def take(self, consumer: str, prefix: str, count: int) -> list[Delivery]:
        """Return up to `count` jobs that are available now. One or two round trips. Subjects of the queue are
        `<prefix>.<run_id>`.

        Raises ConsumerMissing, Unavailable. The jobs of a cancelled call are returned to the queue.
        """
        pulls = self._by_prefix.get(prefix)
        if pulls is not None:
            return await self._wait_for_turn(pulls, count)
        pulls = self._by_prefix[prefix] = _ConsumerPulls(consumer)
        try:
            return await self._ask(pulls, count)
        finally:
            self._pass_on(prefix, pulls)

    async def _wait_for_turn(self, pulls: _ConsumerPulls, count: int) -> list[Delivery]:
        ask = _Ask(count, asyncio.get_running_loop().create_future())
        pulls.waiting.append(ask)
        try:
            return await ask.answer
        except asyncio.CancelledError:
            if ask.answer.done() and not ask.answer.cancelled() and ask.answer.exception() is None:
                self._return(ask.answer.result())
            raise

    def _pass_on(self, prefix: str, pulls: _ConsumerPulls) -> None:
        """Send the next request for the calls that wait, if there are any."""
        if not pulls.waiting:
            del self._by_prefix[prefix]
            return
        task = asyncio.get_running_loop().create_task(self._serve(prefix, pulls), name="pull for several")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, prefix: str, pulls: _ConsumerPulls) -> None:
        asks: list[_Ask] = []
        while pulls.waiting and (not asks or sum(ask.count for ask in asks) + pulls.waiting[0].count <= _BATCH_MAX):
            ask = pulls.waiting.popleft()
            if not ask.answer.done():
                asks.append(ask)
        try:
            found = await self._ask(pulls, sum(ask.count for ask in asks)) if asks else []
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_result(found[: ask.count])
                    found = found[ask.count :]
            self._return(found)  # the share of calls cancelled meanwhile
        except Unavailable as error:
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_exception(error)
        finally:
            self._pass_on(prefix, pulls)

    async def _ask(self, pulls: _ConsumerPulls, count: int) -> list[Delivery]:
        await self._link.until_up(self._link.patience.down_seconds)
        if self._subscription is None:
            await self._open()
        self._count += 1
        name = str(self._count)
        pull = pulls.pull = self._by_name[name] = _Pull(count, asyncio.get_running_loop().create_future())
        try:
            request = b'{"batch":%d,"no_wait":true}' % count
            await self._link.nc.send(self._subject + pulls.consumer, request, f"{self._inbox}.{name}")
            await self._until_answered(pull)
        except nats.errors.Error as error:
            raise NotStored("the queue was not asked") from error
        except asyncio.CancelledError:
            self._return(pull.deliveries)
            raise
        finally:
            pulls.pull = None
            del self._by_name[name]
        if pull.done.done():
            pull.done.result()
        elif not pull.deliveries:  # after some jobs have arrived, silence is no error: return those
            raise Unavailable("the queue did not answer")
        return pull.deliveries

    async def _until_answered(self, pull: _Pull) -> None:
        """Wait until the request is answered, or can no longer be answered."""
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
        if status in _VOID or pull.deliveries:  # the consumer was lost midway: keep its jobs
            pull.done.set_result(None)
        elif status == _NO_RESPONDERS:
            pull.done.set_exception(ConsumerMissing("the queue has no consumer"))
        else:
            log.info("pull refused", status=status, description=message.description)
            pull.done.set_exception(ConsumerMissing(f"the queue refuses: {message.description}"))

    def _on_job(self, message: Raw) -> None:
        prefix = message.subject.rpartition(".")[0]
        delivery = JetStreamDelivery(self._link, message, prefix.split(".")[-2])
        pulls = self._by_prefix.get(prefix)
        pull = pulls.pull if pulls is not None else None
        if pull is None or pull.done.done():
            self.late += 1
            self._return([delivery])
            return
        pull.deliveries.append(delivery)
        if len(pull.deliveries) == pull.count:
            pull.done.set_result(None)

    def _return(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            task = asyncio.get_running_loop().create_task(delivery.answer(Reply.LATER))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop requesting jobs, and return those that arrive within a round trip. Idempotent."""
        async with self._gate:
            subscription, self._subscription = self._subscription, None
            if subscription is None:
                return
            try:
                if self._link.is_up:
                    # No pull is parked at the server: everything in transit arrives before the answer to a ping.
                    async with asyncio.timeout(self._answer_seconds):
                        await self._link.nc.flush()
                await subscription.unsubscribe()
            except (TimeoutError, nats.errors.Error) as error:
                log.debug("could not unsubscribe inbox of the program queue", error=error)
            self._link.nc.forget(subscription)
        while self._tasks:
            await asyncio.wait(set(self._tasks))
