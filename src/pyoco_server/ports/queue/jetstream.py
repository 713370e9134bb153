"""The queue in a JetStream WorkQueue stream, one durable consumer per tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter, encode_dead_letter
from pyoco_server.core.job import Job, decode_job, encode_job, to_message
from pyoco_server.core.names import tag_problem
from pyoco_server.errors import InvalidJob, NotStored, Unavailable, UsageError
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.storing import RefusedStore, store_until_certain
from pyoco_server.ports.queue.consumers import CONSUMER_NOT_FOUND, find_or_make
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.notices import JetStreamNotices, open_notices
from pyoco_server.ports.queue.port import Delivery, Leftover, Stock
from pyoco_server.ports.queue.puller import TagConsumer
from pyoco_server.ports.queue.stored_jobs import StoredJob, StoredJobs

__all__ = ["JetStreamQueue"]

_SECOND = 1_000_000_000
#: Subject token for dead letters whose tag cannot be one; the dead letter itself contains the tag.
_NO_LANE = "_"
#: Maximum number of waiting jobs that are read one by one, 0.2 ms each.
_WAITING_MAX = 1_000


class _Reached(msgspec.Struct):
    stream_seq: int


class _ConsumerState(msgspec.Struct):
    delivered: _Reached
    ack_floor: _Reached


class _StreamState(msgspec.Struct):
    messages: int
    #: Number of messages per subject, if requested.
    subjects: dict[str, int] | None = None


class _StreamInfo(msgspec.Struct):
    state: _StreamState


@lru_cache(maxsize=1024)
def _is_lane(tag: str) -> bool:
    """Return whether a tag is valid in a subject and in a consumer name. A stored record may contain any text."""
    return tag_problem(tag) is None


def _consumer_name(tag: str) -> str:
    """Return the consumer's name (FLOW-288), the same in all processes: a WorkQueue stream allows one consumer per
    filter."""
    return f"pyoco_worker_{tag}"


_encode_quickly = msgspec.json.Encoder().encode


def _encode(job: Job) -> bytes:
    """Encode a job. Falls back to the core's own encoder for values that the fast one cannot encode."""
    try:
        return _encode_quickly(to_message(job))
    except (TypeError, ValueError, OverflowError):
        return encode_job(job)


class JetStreamQueue:
    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self._link, self._config = link, config
        self._jobs = StoredJobs(link, config.work_stream)

    async def put(self, job: Job, message_id: str | None = None) -> None:
        if not _is_lane(job.tag):
            raise NotStored(f"no queue can have the tag {job.tag!r}")
        await self._store(self._config.work_stream, self._subject(job.tag), _encode(job), message_id or job.run_id)

    async def bury(self, letter: DeadLetter, letter_id: str) -> None:
        subject = f"{self._config.dlq_subject_prefix}.{letter.tag if _is_lane(letter.tag) else _NO_LANE}"
        await self._store(self._config.dlq_stream, subject, encode_dead_letter(letter), letter_id)

    async def _store(self, stream: str, subject: str, data: bytes, message_id: str) -> None:
        """Store a message. Retries after no answer, because the message id makes a repeat harmless (FLOW-77)."""
        headers = {"Nats-Msg-Id": message_id}
        try:
            await store_until_certain(self._link, subject, data, headers, stream=stream, doing="cannot reach the queue")
        except RefusedStore as error:
            raise error.failure(f"the queue refuses {subject}") from error

    async def buried(self, tag: str | None = None) -> int:
        stream = self._config.dlq_stream
        wanted = {} if tag is None else {"subjects_filter": f"{self._config.dlq_subject_prefix}.{tag}"}
        try:
            state = (await self._link.insist(f"STREAM.INFO.{stream}", wanted, _StreamInfo)).state
            return state.messages if tag is None else sum((state.subjects or {}).values())
        except Rejected as error:
            raise Unavailable(f"cannot read {stream}: {error}") from error

    def _subject(self, tag: str) -> str:
        return f"{self._config.work_subject_prefix}.{tag}"

    async def leftover(self, tag: str, after: int = 0) -> Leftover | None:
        if not _is_lane(tag):
            return None
        first = await self._jobs.next(self._subject(tag), after + 1)
        state = None if first is None else await self._state(tag)
        # An acked job leaves the stream: if it is still there below the ack floor, the consumer has given it up.
        if first is None or state is None or first.seq > state.ack_floor.stream_seq:
            return None
        return Leftover(tag, first.seq, first.body, first.subject)

    async def remove(self, leftover: Leftover) -> None:
        request = {"seq": leftover.sequence, "no_erase": True}
        try:
            await self._link.insist(f"STREAM.MSG.DELETE.{self._config.work_stream}", request, dict[str, Any])
        except Rejected as error:
            # The server uses one code for every failure here, including a job that is already deleted.
            if await self._jobs.at(leftover.sequence) is not None:
                raise Unavailable(f"cannot remove a job of tag {leftover.tag}: {error}") from error

    async def stock(self, tag: str) -> Stock:
        """Return the jobs of a tag.

        Jobs only ever move from "never delivered" to "delivered" and out. So those never delivered are read first: a
        job that moves meanwhile is seen at least once.
        """
        if not _is_lane(tag):
            return Stock(None, frozenset(), frozenset())
        state = await self._state(tag)
        delivered = 0 if state is None else state.delivered.stream_seq
        first = await self._jobs.next(self._subject(tag), delivered + 1)
        waiting = await self._waiting(first)
        in_hand, at = set(), 1
        while delivered and (job := await self._jobs.next(self._subject(tag), at)) is not None and job.seq <= delivered:
            in_hand.add(_run_id(job))
            at = job.seq + 1
        return Stock(None if first is None else first.time.timestamp(), frozenset(in_hand), waiting)

    async def _waiting(self, job: StoredJob | None) -> frozenset[str] | None:
        """Return the run ids of the jobs of this lane from this one on. None: there are more than are read."""
        found: set[str] = set()
        for _ in range(_WAITING_MAX):
            if job is None:
                return frozenset(found)
            found.add(_run_id(job))
            job = await self._jobs.next(job.subject, job.seq + 1)
        return None

    async def _state(self, tag: str) -> _ConsumerState | None:
        """Return the progress of a tag's consumer. None: no worker has ever served the tag."""
        subject = f"CONSUMER.INFO.{self._config.work_stream}.{_consumer_name(tag)}"
        try:
            return await self._link.insist(subject, {}, _ConsumerState)
        except Rejected as error:
            if error.code == CONSUMER_NOT_FOUND:
                return None
            raise Unavailable(f"cannot look into the queue of tag {tag}: {error}") from error

    async def open_notices(self) -> JetStreamNotices:
        return await open_notices(self._link, self._config.work_stream, self._config.advisory_stream)

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> JetStreamIntake:
        lanes = [await self._lane(tag) for tag in tags]
        return JetStreamIntake(self._link, self._config.work_stream, lanes, on_delivery, self._lane)

    async def _lane(self, tag: str) -> TagConsumer:
        """Bind to the durable consumer of a tag (FLOW-288 to FLOW-292). An existing one keeps its settings."""
        if not _is_lane(tag):
            raise UsageError(tag_problem(tag) or "")
        config = self._config
        name = _consumer_name(tag)
        wanted = {
            "durable_name": name,
            "name": name,
            "filter_subject": self._subject(tag),
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": int(config.consumer_ack_wait_sec * _SECOND),
            "max_deliver": config.consumer_max_deliver,
            "max_ack_pending": config.consumer_max_ack_pending,
            # One parked pull per worker; the server's default limit of 512 would turn further workers away.
            "max_waiting": 8192,
        }
        try:
            found = await find_or_make(self._link, config.work_stream, wanted)
        except Rejected as error:
            raise Unavailable(f"cannot bind to the queue of tag {tag}: {error}") from error
        return TagConsumer(tag, name, found["ack_wait"] / _SECOND, max(0, found.get("max_deliver", 0)))


def _run_id(job: StoredJob) -> str:
    """Return the run id of a job; empty if it cannot be decoded."""
    try:
        return decode_job(job.body).run_id
    except InvalidJob as error:
        return error.run_id or ""
