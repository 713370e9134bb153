"""The server's word that it gives a job up. It says so once; a stream keeps it until a keeper has dealt with it.

The server notices that a job may not be delivered again only when it is asked for work of that job's tag: measured,
an advisory comes 25 ms after the last ack timer while a worker has a pull parked, and never while nobody asks. `stir`
asks, in a way that cannot be answered with a job: nothing fits into one byte. Such a pull makes the server go through
the jobs that are due, give up those that may not be delivered again, and put the first other one back, at the end of
the line and without counting a delivery.
"""

from __future__ import annotations

from typing import Any

import msgspec
import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.queue.consumers import find_or_make
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.port import Delivery, Leftover, Reply
from pyoco_server.ports.queue.puller import TagConsumer
from pyoco_server.ports.queue.stored_jobs import StoredJobs

__all__ = ["JetStreamNotices", "open_notices"]

log = get_logger(__name__)

_SECOND = 1_000_000_000
#: Every keeper shares it.
_CONSUMER = "pyoco_keeper"
#: A keeper that has not dealt with a notice by then has died; another one gets it.
_ACK_WAIT_SECONDS = 30
#: Each moves the line of one tag on by one job, so what is behind them waits for the next look.
_KNOCKS_MAX = 20
_KNOCK = msgspec.json.encode({"batch": 1, "no_wait": True, "max_bytes": 1})
#: Nothing is due any more.
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
    def __init__(self, delivery: Delivery, advisory: _Advisory, jobs: StoredJobs) -> None:
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
    """Made by `open_notices`."""

    def __init__(self, link: Link, work_stream: str, intake: JetStreamIntake) -> None:
        self._link, self._stream, self._intake = link, work_stream, intake
        self._jobs = StoredJobs(link, work_stream)

    async def take(self, seconds: float) -> _Notice | None:
        delivery = await self._intake.take(seconds)
        if delivery is None:
            return None
        try:
            return _Notice(delivery, _read_advisory(delivery.data), self._jobs)
        except msgspec.DecodeError as error:
            log.warning("an advisory that cannot be read is dropped", subject=delivery.subject, error=error)
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
                # Where somebody waits for work, the server goes through what is due by itself.
                if consumer.num_ack_pending and not consumer.num_waiting:
                    await self._knock(consumer)
            seen += len(consumers)
            if not consumers or seen >= listed.total:
                return

    async def _knock(self, consumer: _Consumer) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer.name}"
        for _ in range(min(consumer.num_ack_pending, _KNOCKS_MAX)):
            answer = await self._link.ask(subject, _KNOCK, seconds=2.0)
            if answer.status is None:  # a server that does as it likes: back with it, it is not for us
                await self._return(answer.reply)
                return
            if answer.status == _NO_MESSAGES:
                return

    async def _return(self, reply: str) -> None:
        try:
            await self._link.nc.send(reply, b"-NAK")
        except nats.errors.Error as error:
            log.warning("a job that came unasked was not put back; it comes again", error=error)

    async def close(self) -> None:
        await self._intake.close()


async def open_notices(link: Link, work_stream: str, advisory_stream: str) -> JetStreamNotices:
    """Bind to the consumer that all keepers share, making it if missing. Raises Unavailable."""

    async def bind(_: str) -> TagConsumer:
        wanted: dict[str, Any] = {
            "durable_name": _CONSUMER,
            "name": _CONSUMER,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": _ACK_WAIT_SECONDS * _SECOND,
            "max_deliver": -1,
        }
        try:
            found = await find_or_make(link, advisory_stream, wanted)
        except Rejected as error:
            raise Unavailable(f"cannot bind to {advisory_stream}: {error}") from error
        return TagConsumer("", _CONSUMER, found["ack_wait"] / _SECOND, 0)

    intake = JetStreamIntake(link, advisory_stream, [await bind("")], _unexpected, bind)
    return JetStreamNotices(link, work_stream, intake)


def _unexpected(delivery: Delivery) -> None:
    """`take` receives every delivery itself."""
    log.error("a notice nobody asked for; it comes again", subject=delivery.subject)
