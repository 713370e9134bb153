"""The queue in a JetStream WorkQueue stream, one durable consumer per tag."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter, encode_dead_letter
from pyoco_server.core.job import Job, encode_job, to_message
from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.ports.nats.link import Link, NoConnection, Rejected
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.port import Delivery, Leftover
from pyoco_server.ports.queue.puller import Lane

__all__ = ["JetStreamQueue"]

_CONSUMER_NOT_FOUND = 10014
#: Somebody made it a moment ago (10105), with settings of their own (10148).
_CONSUMER_EXISTS = frozenset({10148, 10105})
_NO_MESSAGE_FOUND = 10037
_SEQUENCE_NOT_FOUND = 10043
_SECOND = 1_000_000_000


class _FirstMessage(msgspec.Struct):
    seq: int
    time: datetime
    data: str = ""


class _Floor(msgspec.Struct):
    stream_seq: int


class _ConsumerState(msgspec.Struct):
    ack_floor: _Floor


def _consumer_name(tag: str) -> str:
    """FLOW-288: the same everywhere, since a WorkQueue stream allows one consumer per filter."""
    return f"pyoco_worker_{tag}"


class _First(msgspec.Struct):
    message: _FirstMessage


class _ConsumerInfo(msgspec.Struct):
    config: dict[str, Any]


_encode_quickly = msgspec.json.Encoder().encode


def _encode(job: Job) -> bytes:
    """The core's own encoder for whatever the fast one cannot encode."""
    try:
        return _encode_quickly(to_message(job))
    except (TypeError, ValueError, OverflowError):
        return encode_job(job)


class JetStreamQueue:
    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self._link, self._config = link, config

    async def put(self, job: Job) -> None:
        subject = f"{self._config.work_subject_prefix}.{job.tag}"
        await self._store(subject, _encode(job), job.run_id)

    async def bury(self, letter: DeadLetter, letter_id: str) -> None:
        subject = f"{self._config.dlq_subject_prefix}.{letter.tag}"
        await self._store(subject, encode_dead_letter(letter), letter_id)

    async def _store(self, subject: str, data: bytes, message_id: str) -> None:
        """The message id makes a repeat harmless (FLOW-77), so silence is answered by asking again."""
        deadline = time.monotonic() + self._link.patience.unanswered_seconds
        ambiguous = False
        pause = 0.05
        while True:
            try:
                await self._link.store(subject, data, {"Nats-Msg-Id": message_id})
            except Rejected as error:
                raise NotStored(f"the queue refuses {subject}: {error}") from error
            except Unavailable as error:
                ambiguous = ambiguous or not isinstance(error, NotStored)
                if isinstance(error, NoConnection) or time.monotonic() > deadline:
                    raise (Unavailable if ambiguous else NotStored)(f"cannot reach the queue: {error}") from error
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def oldest(self, tag: str) -> float | None:
        first = await self._first(tag)
        return None if first is None else first.time.timestamp()

    async def leftover(self, tag: str) -> Leftover | None:
        first = await self._first(tag)
        if first is None:
            return None
        subject = f"CONSUMER.INFO.{self._config.work_stream}.{_consumer_name(tag)}"
        try:
            info = await self._link.insist(subject, {}, _ConsumerState)
        except Rejected as error:
            if error.code == _CONSUMER_NOT_FOUND:  # nobody has ever served the tag
                return None
            raise Unavailable(f"cannot look into the queue of tag {tag}: {error}") from error
        # An acked job leaves the stream: one that is still there below the ack floor was given up by the consumer.
        if first.seq > info.ack_floor.stream_seq:
            return None
        return Leftover(tag, first.seq, base64.b64decode(first.data))

    async def remove(self, leftover: Leftover) -> None:
        request = {"seq": leftover.sequence, "no_erase": True}
        try:
            await self._link.insist(f"STREAM.MSG.DELETE.{self._config.work_stream}", request, dict[str, Any])
        except Rejected as error:
            if error.code not in (_NO_MESSAGE_FOUND, _SEQUENCE_NOT_FOUND):
                raise Unavailable(f"cannot remove a job of tag {leftover.tag}: {error}") from error

    async def _first(self, tag: str) -> _FirstMessage | None:
        request = {"seq": 1, "next_by_subj": f"{self._config.work_subject_prefix}.{tag}"}
        try:
            found = await self._link.insist(f"STREAM.MSG.GET.{self._config.work_stream}", request, _First)
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return None
            raise Unavailable(f"cannot look into the queue of tag {tag}: {error}") from error
        return found.message

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> JetStreamIntake:
        lanes = [await self._lane(tag) for tag in tags]
        return JetStreamIntake(self._link, self._config.work_stream, lanes, on_delivery, self._lane)

    async def _lane(self, tag: str) -> Lane:
        """FLOW-288 to FLOW-292: one durable consumer per tag; an existing one keeps its settings."""
        config = self._config
        name = _consumer_name(tag)
        subject = f"{config.work_subject_prefix}.{tag}"
        wanted = {
            "durable_name": name,
            "name": name,
            "filter_subject": subject,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": int(config.consumer_ack_wait_sec * _SECOND),
            "max_deliver": config.consumer_max_deliver,
            "max_ack_pending": config.consumer_max_ack_pending,
            # One parked pull per worker; the server's own limit of 512 would turn further workers away.
            "max_waiting": 8192,
        }
        try:
            info = await self._consumer(name) or await self._make_consumer(name, subject, wanted)
        except Rejected as error:
            raise Unavailable(f"cannot bind to the queue of tag {tag}: {error}") from error
        found = info.config
        return Lane(tag, name, found["ack_wait"] / _SECOND, max(0, found.get("max_deliver", 0)))

    async def _consumer(self, name: str) -> _ConsumerInfo | None:
        try:
            return await self._link.insist(f"CONSUMER.INFO.{self._config.work_stream}.{name}", {}, _ConsumerInfo)
        except Rejected as error:
            if error.code == _CONSUMER_NOT_FOUND:
                return None
            raise

    async def _make_consumer(self, name: str, subject: str, wanted: dict[str, Any]) -> _ConsumerInfo:
        stream = self._config.work_stream
        request = {"stream_name": stream, "config": wanted, "action": "create"}
        try:
            return await self._link.insist(f"CONSUMER.CREATE.{stream}.{name}.{subject}", request, _ConsumerInfo)
        except Rejected as error:
            found = await self._consumer(name) if error.code in _CONSUMER_EXISTS else None
            if found is None:
                raise
            return found
