"""The server's advisories that it gives up a job. Each is sent once; a stream keeps it until a keeper has handled it.

The server detects an exhausted job only when work of its tag is requested: measured, an advisory arrives 25 ms after
the last ack timer while a worker has a pull parked, and never without a request. `stir` sends a request that cannot be
fulfilled with a job, because no job fits into one byte. It makes the server process the jobs that are due, give up the
exhausted ones, and put the first other one back, at the end of the queue and without counting a delivery.
"""

from __future__ import annotations

import msgspec
import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.consumers import BoundConsumer, bind, durable
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.messages import StoredMessages
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.port import Delivery, Leftover, Reply

__all__ = ["JetStreamNotices", "open_notices"]

log = get_logger(__name__)

_SECOND = 1_000_000_000
#: Shared by all keepers.
_CONSUMER = "pyoco_keeper"
#: If a keeper has not handled a notice by then, it has probably crashed, and another one gets the notice.
_ACK_WAIT_SECONDS = 30
#: Each request advances the queue of one tag by one job, so the jobs after them wait for the next call.
_KNOCKS_MAX = 20
_KNOCK = msgspec.json.encode({"batch": 1, "no_wait": True, "max_bytes": 1})
#: No more jobs are due.
_NO_MESSAGES = "404"


class _Advisory(msgspec.Struct):
    stream_seq: int
    deliveries: int = 0


_read_advisory = msgspec.json.Decoder(_Advisory).decode


class _Consumer(msgspec.Struct):
    name: str
    num_ack_pending: int = 0
    num_waiting: int = 0


class _Consumers(msgspec.Struct):
    total: int
    consumers: list[_Consumer] | None = None


class _Notice:
    def __init__(self, delivery: Delivery, advisory: _Advisory, jobs: StoredMessages) -> None:
        self._delivery, self._sequence, self._jobs = delivery, advisory.stream_seq, jobs
        self.deliveries = advisory.deliveries

    async def leftover(self) -> Leftover | None:
        job = await self._jobs.at(self._sequence)
        if job is None:
            return None
        return Leftover(job.subject.rpartition(".")[2], job.seq, job.body, job.subject)

    async def settle(self) -> None:
        await self._delivery.answer(Reply.ACK)

    async def put_off(self, seconds: float) -> None:
        await self._delivery.answer(Reply.LATER, seconds)


class JetStreamNotices:
    """Use `open_notices` to create it."""

    def __init__(self, link: Link, work_stream: str, intake: JetStreamIntake) -> None:
        self._link, self._stream, self._intake = link, work_stream, intake
        self._jobs = StoredMessages(link, work_stream)

    async def take(self, seconds: float) -> _Notice | None:
        delivery = await self._intake.take(seconds)
        if delivery is None:
            return None
        try:
            return _Notice(delivery, _read_advisory(delivery.data), self._jobs)
        except msgspec.DecodeError as error:
            log.warning("dropping unreadable advisory", subject=delivery.subject, error=error)
            await delivery.answer(Reply.DROP)
            return None

    async def stir(self) -> None:
        seen = 0
        while True:
            try:
                listed = await self._link.insist(f"CONSUMER.LIST.{self._stream}", {"offset": seen}, _Consumers)
            except Rejected as error:
                raise Unavailable(f"cannot look at the consumers of {self._stream}: {error}") from error
            consumers = listed.consumers or []
            for consumer in consumers:
                # If a pull is waiting, the server processes due jobs by itself.
                if consumer.num_ack_pending and not consumer.num_waiting:
                    await self._knock(consumer)
            seen += len(consumers)
            if not consumers or seen >= listed.total:
                return

    async def _knock(self, consumer: _Consumer) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer.name}"
        for _ in range(min(consumer.num_ack_pending, _KNOCKS_MAX)):
            answer = await self._link.ask(subject, _KNOCK, seconds=2.0)
            if answer.status is None:  # the server ignored the size limit: return the job, it is not for us
                await self._return(answer.reply)
                return
            if answer.status == _NO_MESSAGES:
                return

    async def _return(self, reply: str) -> None:
        try:
            await self._link.nc.send(reply, b"-NAK")
        except nats.errors.Error as error:
            log.warning("cannot return a job delivered to a probe, it will be redelivered", error=error)

    async def close(self) -> None:
        await self._intake.close()


async def open_notices(link: Link, work_stream: str, advisory_stream: str) -> JetStreamNotices:
    """Bind to the consumer that all keepers share, creating it if missing. Raises Unavailable."""

    async def bound(_: str) -> BoundConsumer:
        return await bind(link, advisory_stream, durable(_CONSUMER, _ACK_WAIT_SECONDS))

    intake = JetStreamIntake(link, advisory_stream, [await bound("")], _unexpected, bound)
    return JetStreamNotices(link, work_stream, intake)


def _unexpected(delivery: Delivery) -> None:
    """Handle a delivery outside of `take`, which receives every delivery itself."""
    log.error("unexpected notice, it will be redelivered", subject=delivery.subject)
