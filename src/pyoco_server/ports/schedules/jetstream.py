"""Schedules in a JetStream KV bucket: records below `s.`, by their key; chunks of histories below `h.`, by schedule id
and slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from pyoco_server.core.rounds import Rounds
from pyoco_server.core.schedules.history import Chunk, full_chunks, newest_chunks, slot_of, without_chunks
from pyoco_server.core.schedules.record import Definition, Schedule, check_schedule
from pyoco_server.core.schedules.record import Entry as ScheduleEntry
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry, TtlRefused
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror
from pyoco_server.ports.schedules.port import Kept

__all__ = ["JetStreamSchedules", "read_chunk", "read_stored"]

log = get_logger(__name__)

_RECORDS, _HISTORIES = "s.", "h."
#: Deleting leaves a marker, so that followers that were away for less than a day see the deletion.
_DELETION: Final = {"KV-Operation": "DEL"}
_MARKER: Final = _DELETION | {"Nats-TTL": "86400s"}

_encoder = msgspec.json.Encoder()
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_chunk = msgspec.json.Decoder(Chunk).decode


def _members(value: Schedule | Definition | ScheduleEntry) -> dict[str, Any]:
    """Leave out members without a value, which most entries of a history have many of."""
    return {name: item for name, item in vars(value).items() if item is not None}


def _encode(schedule: Schedule) -> bytes:
    """Without a copy of all that is in it, as `asdict` makes: that cost half as much as all the rest of a tick."""
    shallow = {"definition": _members(schedule.definition), "tail": [_members(each) for each in schedule.tail]}
    return _encoder.encode(_members(schedule) | shallow)


def _encode_chunk(chunk: Chunk) -> bytes:
    return _encoder.encode({"number": chunk.number, "entries": [_members(each) for each in chunk.entries]})


def read_stored(data: bytes) -> Schedule:
    """Raises Corrupt."""
    try:
        return check_schedule(_decode_schedule(data))
    except (KeyError, TypeError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise Corrupt(f"not a schedule: {error}") from error


class _RecordMirror(Mirror[Schedule]):
    """A mirror of the records, without the histories."""

    def __init__(self, link: Link, bucket: Bucket) -> None:
        super().__init__(link, bucket, read_stored)
        self.listeners: list[Callable[[Schedule], None]] = []

    def _apply(self, entry: Entry) -> None:
        if not entry.key.startswith(_RECORDS):
            return
        before = self.get(entry.key)
        super()._apply(entry)
        after = self.get(entry.key)
        if after is not None and after is not before:
            for listener in self.listeners:
                listener(after)


class JetStreamSchedules:
    def __init__(self, link: Link, bucket: str, history: int) -> None:
        self._bucket = Bucket(link, bucket)
        self._mirror = _RecordMirror(link, self._bucket)
        self._history = history

    async def start(self) -> None:
        await self._mirror.start()

    async def stop(self) -> None:
        await self._mirror.stop()

    def listen(self, listener: Callable[[Schedule], None]) -> None:
        self._mirror.listeners.append(listener)

    def known(self) -> list[Schedule]:
        return self._mirror.all()

    def look(self, key: str) -> Schedule | None:
        return self._mirror.get(_RECORDS + key)

    def recall(self, key: str) -> Kept | None:
        held = self._mirror.get_held(_RECORDS + key) if self._mirror.is_fresh else None
        return None if held is None else Kept(held[1], held[0])

    @property
    def is_fresh(self) -> bool:
        return self._mirror.is_fresh

    async def find(self, key: str) -> Kept | None:
        entry = await self._bucket.get(_RECORDS + key)
        if entry is None or entry.value is None:
            return None
        return Kept(read_stored(entry.value), entry.revision)

    async def create(self, schedule: Schedule) -> Kept | None:
        revision = 0
        rounds = Rounds(f"the schedule {schedule.name}")
        while True:
            rounds.begin()
            written = await self._write(schedule, revision)
            if written is not None:
                return written
            entry = await self._bucket.get(_RECORDS + schedule.key)
            if entry is not None and entry.value is not None:
                return None
            revision = 0 if entry is None else entry.revision  # a deleted one left a marker

    async def replace(self, schedule: Schedule, kept: Kept) -> Kept | None:
        for chunk in full_chunks(kept.schedule, self._history):
            await self._keep_chunk(schedule.id, chunk)
        tail, spilled = without_chunks(kept.schedule, schedule.tail)
        return await self._write(replace(schedule, tail=tail, spilled=spilled), kept.revision)

    async def _write(self, schedule: Schedule, revision: int) -> Kept | None:
        written = await self._bucket.write(_RECORDS + schedule.key, _encode(schedule), revision)
        if written is None:
            return None
        self._mirror.note(written)
        return Kept(schedule, written.revision)

    async def _keep_chunk(self, schedule_id: str, chunk: Chunk) -> None:
        """Write a chunk over the one that has its slot, unless this or a later one is there already."""
        key = self._slot(schedule_id, chunk.number)
        data = _encode_chunk(chunk)
        rounds = Rounds(f"the history of schedule {schedule_id}")
        while True:
            rounds.begin()
            entry = await self._bucket.get(key)
            found = _chunk(entry)
            if found is not None and found.number >= chunk.number:
                return
            if await self._bucket.write(key, data, 0 if entry is None else entry.revision) is not None:
                return

    async def delete(self, kept: Kept) -> bool:
        schedule = kept.schedule
        slots = {self._slot(schedule.id, number) for number in newest_chunks(schedule, self._history + 20)}
        await asyncio.gather(*(self._drop(slot) for slot in slots))
        deleted = await self._mark(_RECORDS + schedule.key, kept.revision)
        if deleted is not None:
            self._mirror.note(deleted)
        return deleted is not None

    async def _drop(self, key: str) -> None:
        entry = await self._bucket.get(key)
        if entry is not None and entry.value is not None:
            await self._mark(key, entry.revision)

    async def _mark(self, key: str, revision: int) -> Entry | None:
        try:
            written = await self._bucket.write(key, b"", revision, _MARKER)
        except TtlRefused:  # the bucket was made by hand
            written = await self._bucket.write(key, b"", revision, _DELETION)
        return None if written is None else Entry(key, written.revision, None)

    async def chunk(self, schedule_id: str, number: int) -> Chunk | None:
        found = _chunk(await self._bucket.get(self._slot(schedule_id, number)))
        return found if found is not None and found.number == number else None

    def _slot(self, schedule_id: str, number: int) -> str:
        return f"{_HISTORIES}{schedule_id}.{slot_of(number, self._history)}"


def read_chunk(data: bytes) -> Chunk:
    """Raises ValueError."""
    return _decode_chunk(data)


def _chunk(entry: Entry | None) -> Chunk | None:
    if entry is None or entry.value is None:
        return None
    try:
        return read_chunk(entry.value)
    except (ValueError, UnicodeDecodeError):
        log.warning("unreadable part of the history of a schedule", entry=entry.key)
        return None
