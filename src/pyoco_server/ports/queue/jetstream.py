"""The queue in a JetStream WorkQueue stream, one durable consumer per tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter, encode_dead_letter
from pyoco_server.core.job import Job, decode_job, encode_job, to_message
from pyoco_server.core.names import tag_problem
from pyoco_server.errors import InvalidJob, NotStored, Unavailable, UsageError
from pyoco_server.ports.nats.consumers import PARKED_PULLS_MAX, BoundConsumer, bind, durable, find_consumer
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.messages import StoredMessage, StoredMessages
from pyoco_server.ports.nats.storing import store_once
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.notices import JetStreamNotices, open_notices
from pyoco_server.ports.queue.port import Delivery, Leftover, Stock

__all__ = ["JetStreamQueue"]

_SECOND = 1_000_000_000
#: Subject token for dead letters whose tag cannot be one; the dead letter itself contains the tag.
_NO_TAG = "_"
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
def _is_tag(tag: str) -> bool:
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
        self._jobs = StoredMessages(link, config.work_stream)

    async def put(self, job: Job, message_id: str | None = None) -> None:
        if not _is_tag(job.tag):
            raise NotStored(f"no queue can have the tag {job.tag!r}")
        await self._store(self._config.work_stream, self._subject(job.tag), _encode(job), message_id or job.run_id)

    async def bury(self, dead_letter: DeadLetter, letter_id: str) -> None:
        subject = f"{self._config.dlq_subject_prefix}.{dead_letter.tag if _is_tag(dead_letter.tag) else _NO_TAG}"
        await self._store(self._config.dlq_stream, subject, encode_dead_letter(dead_letter), letter_id)

    async def _store(self, stream: str, subject: str, data: bytes, message_id: str) -> None:
        await store_once(self._link, subject, data, message_id, stream=stream, where="the queue")

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
        if not _is_tag(tag):
            return None
        first = await self._jobs.next(self._subject(tag), after + 1)
        state = None if first is None else await self._state(tag)
        # An acked job leaves the stream: if it is still there below the ack floor, the consumer has given it up.
        if first is None or state is None or first.seq > state.ack_floor.stream_seq:
            return None
        return Leftover(tag, first.seq, first.body, first.subject)

    async def remove(self, leftover: Leftover) -> None:
        await self._jobs.remove(leftover.sequence)

    async def stock(self, tag: str) -> Stock:
        """Return the jobs of a tag.

        Jobs only ever move from "never delivered" to "delivered" and out. So those never delivered are read first: a
        job that moves meanwhile is seen at least once.
        """
        if not _is_tag(tag):
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

    async def _waiting(self, job: StoredMessage | None) -> frozenset[str] | None:
        """Return the run ids of the jobs of this consumer that follow this one. None: there are more than are read."""
        found: set[str] = set()
        for _ in range(_WAITING_MAX):
            if job is None:
                return frozenset(found)
            found.add(_run_id(job))
            job = await self._jobs.next(job.subject, job.seq + 1)
        return None

    async def _state(self, tag: str) -> _ConsumerState | None:
        """Return the progress of a tag's consumer. None: no worker has ever served the tag."""
        return await find_consumer(self._link, self._config.work_stream, _consumer_name(tag), _ConsumerState)

    async def open_notices(self) -> JetStreamNotices:
        return await open_notices(self._link, self._config.work_stream, self._config.advisory_stream)

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> JetStreamIntake:
        consumers = [await self._bind(tag) for tag in tags]
        return JetStreamIntake(self._link, self._config.work_stream, consumers, on_delivery, self._bind)

    async def _bind(self, tag: str) -> BoundConsumer:
        """Bind to the durable consumer of a tag (FLOW-288 to FLOW-292). An existing one keeps its settings."""
        if not _is_tag(tag):
            raise UsageError(tag_problem(tag) or "")
        config = self._config
        name = _consumer_name(tag)
        wanted = durable(
            name,
            config.consumer_ack_wait_sec,
            filter_subject=self._subject(tag),
            max_deliver=config.consumer_max_deliver,
            max_ack_pending=config.consumer_max_ack_pending,
            max_waiting=PARKED_PULLS_MAX,
        )
        return await bind(self._link, config.work_stream, wanted, tag)


def _run_id(job: StoredMessage) -> str:
    """Return the run id of a job; empty if it cannot be decoded."""
    try:
        return decode_job(job.body).run_id
    except InvalidJob as error:
        return error.run_id or ""
