"""The queue of priced runs in its own JetStream WorkQueue stream (contract 12.2).

After its maximum of deliveries JetStream stops delivering a message, but keeps it in the stream. So the consumer has no
maximum; the fourth delivery is moved to the dead-letter stream, and not handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.config import PricedConfig
from pyoco_server.core.backup_mark import restored_at
from pyoco_server.core.priced.constants import QUEUE_MAX_RECEIVE_COUNT
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.consumers import PARKED_PULLS_MAX, BoundConsumer, durable, find_or_make
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.messages import StoredMessages
from pyoco_server.ports.nats.puller import EXPIRES_SECONDS, JetStreamDelivery
from pyoco_server.ports.nats.resources import pack_queue_resources, priced_bucket_resources
from pyoco_server.ports.nats.storing import store_once
from pyoco_server.ports.pack_queue.hold import Hold
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.pack_queue.pull import Pull
from pyoco_server.ports.pack_queue.trial import StoreTrial
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.store_state import StoreState

__all__ = ["JetStreamPackQueue"]

log = get_logger(__name__)

CONSUMER = "dpp-worker"
_SECOND = 1_000_000_000
_PING_SECONDS = 2.0
#: Grace time for a pull to report its end.
_LATE_SECONDS = 0.25
#: Settings of the consumer that are corrected if they differ.
_REPAIRED = ("ack_wait", "max_deliver", "max_ack_pending")


class _State(msgspec.Struct):
    messages: int


class _StreamInfo(msgspec.Struct):
    state: _State
    config: dict[str, Any]
    created: datetime


@dataclass(frozen=True)
class _Held:
    """The receipt of a delivery."""

    message: JetStreamDelivery
    hold: Hold


@dataclass(frozen=True)
class _DeadLetter:
    """The receipt of a dead letter."""

    sequence: int


class JetStreamPackQueue:
    """Beyond the port: a cancelled `receive` loses nothing.

    Messages in transit to it are returned immediately, which counts as a delivery, like every delivery.
    """

    def __init__(self, link: Link, config: PricedConfig, replicas: int) -> None:
        self._link, self._config, self._replicas = link, config, replicas
        self._stream, self._subject = config.pack_stream, config.pack_subject
        self._dead_letters = StoredMessages(link, f"{self._stream}_DLQ")
        self._consumer: BoundConsumer | None = None
        #: Inboxes that are currently unused.
        self._pulls: list[Pull] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._trial = StoreTrial(link, f"probe.{self._stream}")

    async def start(self) -> None:
        with dependency_errors("make the queue of priced runs"):
            probed = priced_bucket_resources(self._replicas)
            await ensure(self._link, (*pack_queue_resources(self._config, self._replicas), *probed))
            await self._bind()

    async def close(self) -> None:
        await self._trial.close()
        pulls, self._pulls = self._pulls, []
        if self._link.is_clustered:  # as in the queue of flows: another node may have a message in transit
            await asyncio.gather(*(pull.expired(EXPIRES_SECONDS + _LATE_SECONDS) for pull in pulls))
        for pull in pulls:
            pull.leave()
        await asyncio.gather(*(pull.left() for pull in pulls))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def send(self, body: bytes, message_id: str) -> None:
        with dependency_errors("send a priced run"):
            await self._store(self._stream, self._subject, body, message_id)

    async def receive(self, at_most: int, wait_seconds: int) -> Sequence[Delivery]:
        with dependency_errors("receive priced runs"):
            consumer = self._consumer or await self._bind()
            pull = (
                self._pulls.pop() if self._pulls else Pull(self._link, self._stream, consumer, self._keep, self._return)
            )
            try:
                caught = await pull.catch(at_most, wait_seconds, self._bind)
            finally:
                if pull.is_owed and not self._link.is_clustered:
                    pull.leave()  # a parked pull ends with its inbox, and wastes no delivery
                self._pulls.append(pull)
        return [Delivery(each.data, each.count, _Held(each, Hold(consumer.ack_wait_seconds))) for each in caught]

    async def ack(self, delivery: Delivery) -> None:
        held = await self._holding(delivery, "acknowledge a priced run")
        if held is not None:
            held.hold.end()
            await held.message.answer(Reply.ACK)

    async def nack(self, delivery: Delivery, delay_seconds: int) -> None:
        held = await self._holding(delivery, "give a priced run back")
        if held is not None:
            held.hold.end()
            await held.message.answer(Reply.LATER, delay_seconds)

    async def extend(self, delivery: Delivery) -> None:
        held = await self._holding(delivery, "hold a priced run")
        if held is not None:
            with dependency_errors("hold a priced run"):
                await held.message.hold()
            held.hold.begin_anew()

    async def dead_letters(self, at_most: int) -> Sequence[Delivery]:
        dead_letters: list[Delivery] = []
        sequence = 0
        with dependency_errors("read the dead letters of priced runs"):
            while len(dead_letters) < at_most:
                stored = await self._dead_letters.next(self._dead_letter_subject, sequence + 1)
                if stored is None:
                    break
                sequence = stored.seq
                dead_letters.append(Delivery(stored.body, QUEUE_MAX_RECEIVE_COUNT, _DeadLetter(sequence)))
        return dead_letters

    async def redrive(self, dead_letter: Delivery) -> None:
        """Send first, then delete: a crash in between leaves a harmless second message, rather than none.

        If the dead letter no longer exists, another caller has redriven it.
        """
        assert isinstance(dead_letter.receipt, _DeadLetter), "not a dead letter"
        sequence = dead_letter.receipt.sequence
        with dependency_errors("redrive a priced run"):
            if await self._dead_letters.at(sequence) is None:
                return
            # Not its old id, which would count as a duplicate, and not a random one, so that two concurrent redrives
            # send it only once.
            await self._store(self._stream, self._subject, dead_letter.body, f"redrive:{sequence}")
            await self._dead_letters.remove(sequence)

    async def depth(self) -> tuple[int, int]:
        with dependency_errors("count priced runs"):
            queued, dead_letters = await asyncio.gather(self._count(self._stream), self._count(f"{self._stream}_DLQ"))
        return queued, dead_letters

    async def begun_at(self) -> int | None:
        with dependency_errors("look at the queue of priced runs"):
            info = await self._link.insist(f"STREAM.INFO.{self._stream}", {}, _StreamInfo)
        # Some servers give a restored stream the creation date of the original, so a restore records its own.
        return max(int(info.created.timestamp() * 1_000_000), restored_at(info.config) or 0)

    async def ping(self) -> None:
        with dependency_errors("reach the queue of priced runs"):
            await self._link.api(f"STREAM.INFO.{self._stream}", {}, _StreamInfo, seconds=_PING_SECONDS)

    async def probe(self) -> None:
        await self.ping()
        if self._link.store_state_of(self._stream) is not StoreState.TAKES:
            raise DependencyUnavailable("the queue of priced runs stores nothing: the disk of NATS is, or was, full")
        with dependency_errors("store what would be a priced run's message"):
            await self._trial.check()

    @property
    def _dead_letter_subject(self) -> str:
        return f"{self._subject}.dlq"

    async def _holding(self, delivery: Delivery, doing: str) -> _Held | None:
        """Return the held delivery. None: its timeout has passed.

        Waits for the connection: an answer given without one would be sent later, when the message may belong to
        another worker.
        """
        assert isinstance(delivery.receipt, _Held), "not a delivery of this queue"
        held = delivery.receipt
        if not held.hold.is_over:
            with dependency_errors(doing):
                await self._link.until_up(self._link.patience.down_seconds)
        return None if held.hold.is_over else held

    async def _bind(self) -> BoundConsumer:
        """Find, create or correct the consumer: its ack wait is that of the leases."""
        ack_wait_seconds = self._config.priced_lease_ttl_sec
        wanted = durable(CONSUMER, ack_wait_seconds, max_ack_pending=10_000, max_waiting=PARKED_PULLS_MAX)
        found = await find_or_make(self._link, self._stream, wanted)
        if any(found.get(name) != wanted[name] for name in _REPAIRED):
            repaired = found | {name: wanted[name] for name in _REPAIRED}
            request = {"stream_name": self._stream, "config": repaired, "action": "update"}
            await self._link.insist(f"CONSUMER.CREATE.{self._stream}.{CONSUMER}", request, dict[str, Any])
            log.warning("consumer of priced runs had other settings, corrected", stream=self._stream)
        self._consumer = BoundConsumer("", CONSUMER, ack_wait_seconds, 0)
        return self._consumer

    async def _store(self, stream: str, subject: str, body: bytes, message_id: str) -> None:
        await store_once(self._link, subject, body, message_id, stream=stream, where="the queue of priced runs")

    async def _count(self, stream: str) -> int:
        return (await self._link.insist(f"STREAM.INFO.{stream}", {}, _StreamInfo)).state.messages

    # Messages that are not handed out.

    def _keep(self, message: JetStreamDelivery) -> bool:
        """Bury a message instead of handing it out, after three deliveries (PRICED-107)."""
        if message.count <= QUEUE_MAX_RECEIVE_COUNT:
            return False
        self._in_background(self._bury(message))
        return True

    def _return(self, message: JetStreamDelivery) -> None:
        # Delayed in a cluster: workers that stop together would otherwise pass it around until it is a dead letter.
        delay_seconds = EXPIRES_SECONDS if self._link.is_clustered else 0.0
        self._in_background(message.answer(Reply.LATER, delay_seconds))

    async def _bury(self, message: JetStreamDelivery) -> None:
        """Move the message to the dead letters.

        A crash in between leaves both; the next delivery buries it again, under the same message id.
        """
        try:
            with dependency_errors("bury a priced run"):
                await self._store(f"{self._stream}_DLQ", self._dead_letter_subject, message.data, str(message.sequence))
        except DependencyUnavailable as error:
            log.warning("cannot bury a priced run, it will be redelivered", error=error)
            return
        log.error("priced run exceeded its deliveries, moved to dead letters", sequence=message.sequence)
        await message.answer(Reply.DROP)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
