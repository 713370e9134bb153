"""Alarms as scheduled messages of JetStream: the server publishes each to its due subject at its time (ADR 45)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.alarms.port import Alarm, AlarmKind, DueAlarm
from pyoco_server.ports.nats.consumers import BoundConsumer, bind, durable
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.storing import RefusedStore, store_until_certain
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.port import Delivery, Reply

__all__ = ["JetStreamAlarms"]

log = get_logger(__name__)

#: Shared by all keepers.
_CONSUMER: Final = "pyoco_keeper"
#: A keeper that has not answered by then has probably crashed.
_ACK_WAIT_SECONDS: Final = 15
#: Of all keepers together.
_PENDING_MAX: Final = 10_000
#: The largest list of subjects that the server sends in one answer.
_PAGE: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The server fires what is due at most four times a second, all of it together. So it is asked for an alarm that much
#: earlier, and the keeper waits for the rest.
_LEAD_SECONDS: Final = 0.25


class _State(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: _State
    total: int = 0


def _at(instant: float) -> str:
    """Format an instant, rounded up to a microsecond."""
    moment = _EPOCH + timedelta(microseconds=-int(-instant * 1_000_000 // 1))
    return f"@at {moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _due_at(data: bytes) -> float:
    """Read the time that an alarm was set to. One of an earlier version does not say it, and comes at its time."""
    try:
        return float(data or 0.0)
    except ValueError:
        return 0.0


class _DueAlarm:
    __slots__ = ("_delivery", "due_at", "id", "kind")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.kind, self.id = delivery.subject.split(".")[-2:]
        self.due_at = _due_at(delivery.data)

    async def settle(self) -> None:
        await self._delivery.answer(Reply.ACK)

    async def put_off(self, seconds: float) -> None:
        await self._delivery.answer(Reply.LATER, seconds)


class JetStreamAlarms:
    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream

    async def put(self, alarm: Alarm) -> None:
        name = f"{alarm.kind}.{alarm.id}"
        at = _at(max(0.0, alarm.due_at - _LEAD_SECONDS))
        headers = {"Nats-Schedule": at, "Nats-Schedule-Target": f"{self._stream}.due.{name}"}
        subject, doing = f"{self._stream}.at.{name}", "cannot set an alarm"
        try:
            await store_until_certain(
                self._link, subject, repr(alarm.due_at).encode(), headers, stream=self._stream, doing=doing
            )
        except RefusedStore as error:
            raise error.failure(f"the clock refuses {subject}") from error

    async def known(self, kind: AlarmKind) -> set[str]:
        found: set[str] = set()
        for place in ("at", "due"):
            offset = 0
            while True:
                asked = {"subjects_filter": f"{self._stream}.{place}.{kind}.*", "offset": offset}
                try:
                    info = await self._link.insist(f"STREAM.INFO.{self._stream}", asked, _Info)
                except Rejected as error:
                    raise Unavailable(f"cannot read {self._stream}: {error}") from error
                subjects = info.state.subjects or {}
                found.update(subject.rpartition(".")[2] for subject in subjects)
                offset += len(subjects)
                if len(subjects) < _PAGE:
                    break
        return found

    async def open_due(self, on_due: Callable[[DueAlarm], None]) -> JetStreamIntake:
        consumer = await self._bind("")
        return JetStreamIntake(
            self._link, self._stream, [consumer], lambda delivery: on_due(_DueAlarm(delivery)), self._bind
        )

    async def _bind(self, _: str) -> BoundConsumer:
        due = f"{self._stream}.due.>"
        wanted = durable(_CONSUMER, _ACK_WAIT_SECONDS, filter_subject=due, max_ack_pending=_PENDING_MAX)
        return await bind(self._link, self._stream, wanted)
