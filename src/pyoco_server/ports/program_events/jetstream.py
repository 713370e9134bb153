"""The history of jobs in a JetStream stream: `pyoco.execev.<group>.<event>`."""

from __future__ import annotations

import time
from contextlib import aclosing

import msgspec
import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.storing import RefusedStore, store_until_certain
from pyoco_server.ports.nats.watch import next_batch, watch
from pyoco_server.ports.program_events.port import Event, EventName

__all__ = ["SUBJECTS", "JetStreamEvents"]

log = get_logger(__name__)

SUBJECTS = "pyoco.execev"
#: The number of newest messages that `recent` reads.
_LOOK_BACK = 10_000
#: During an outage, log once per this interval instead of once per event.
_LOG_SECONDS = 10.0


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _StreamInfo(msgspec.Struct):
    created: str
    state: _State


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class JetStreamEvents:
    def __init__(self, link: Link, stream: str, *, is_kept: bool = True) -> None:
        """`is_kept`: the setting EXEC_EVENTS; if false, nothing is sent."""
        self._link, self._is_kept = link, is_kept
        self._history = Bucket(link, stream, stream=stream, prefix=f"{SUBJECTS}.")
        self._logged_at = -_LOG_SECONDS

    async def tell(self, event: Event) -> None:
        if not self._is_kept:
            return
        try:
            # Fire and forget: no answer is expected. While disconnected the client buffers up to two megabytes.
            await self._link.nc.send(_subject(event), _encode(event), headers=_headers(event))
        except nats.errors.Error as error:
            if time.monotonic() - self._logged_at > _LOG_SECONDS:
                self._logged_at = time.monotonic()
                log.warning("cannot send events, the history has a gap", error=error)

    async def record(self, event: Event) -> None:
        if not self._is_kept:
            return
        subject, data, headers = _subject(event), _encode(event), _headers(event)
        stream = self._history.stream
        try:
            await store_until_certain(
                self._link, subject, data, headers, stream=stream, doing="cannot write the history"
            )
        except RefusedStore as error:
            raise error.failure("the history refuses an event") from error

    async def recent(self, *, job_id: str | None, event: str | None, group: str | None, limit: int) -> list[Event]:
        stream = self._history.stream
        try:
            info = await self._link.insist(f"STREAM.INFO.{stream}", {}, _StreamInfo)
        except Rejected as error:
            raise Unavailable(f"cannot read the history: {error}") from error
        mark = None if job_id is None else job_id.encode()
        found: list[Event] = []
        after = max(0, info.state.last_seq - _LOOK_BACK)
        async with aclosing(watch(self._link, self._history, after, info.created)) as batches:
            while True:
                batch = await next_batch(batches, "cannot read the history")
                for entry in batch.entries:
                    of, _, name = entry.key.partition(".")
                    if (group or of) != of or (event or name) != name or entry.value is None:
                        continue
                    if mark is None or mark in entry.value:  # most events are of other jobs, and need not be decoded
                        found += (
                            each for each in [_read(entry.value)] if each and (job_id or each.job_id) == each.job_id
                        )
                if batch.caught_up:
                    return found[: -limit - 1 : -1]

    async def counts(self, event: EventName) -> dict[str, int]:
        request = {"subjects_filter": f"{SUBJECTS}.*.{event.value}"}
        try:
            info = await self._link.insist(f"STREAM.INFO.{self._history.stream}", request, _StreamInfo)
        except Rejected as error:
            raise Unavailable(f"cannot read the history: {error}") from error
        return {subject.split(".")[-2]: count for subject, count in (info.state.subjects or {}).items()}


def _subject(event: Event) -> str:
    return f"{SUBJECTS}.{event.group}.{event.event.value}"


def _headers(event: Event) -> dict[str, str] | None:
    """Return the deduplication header (GRID-173).

    Events that are not about a run have no id: setting a cap twice is two events.
    """
    return {"Nats-Msg-Id": f"{event.run_id}:{event.attempt}:{event.event.value}"} if event.run_id else None


def _read(data: bytes) -> Event | None:
    try:
        return _decode(data)
    except msgspec.DecodeError:  # written by another program
        return None
