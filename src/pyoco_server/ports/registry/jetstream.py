"""The worker registry in a JetStream KV bucket, by worker id."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.core.rounds import Rounds
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_over, encode_worker, hide, read_worker, take_over
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry, TtlRefused
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror

__all__ = ["JetStreamRegistry"]

log = get_logger(__name__)

#: An operator's update takes two round trips, a worker's heartbeat one: it must hit a gap between many heartbeats.
_HIDE_ROUNDS_MAX = 100
#: How long a list waits for the watch to catch up, after a reconnect or during an election.
_FRESH_SECONDS = 2.0
#: Deleting a record leaves a marker, so that followers that were away for less than a day see the deletion.
_MARKER = {"KV-Operation": "DEL", "Nats-TTL": "86400s"}


class JetStreamRegistry:
    def __init__(self, link: Link, bucket: str, disconnect_seconds: float) -> None:
        self._link, self._bucket = link, Bucket(link, bucket)
        self._mirror = Mirror(link, self._bucket, read_worker)
        self._disconnect_seconds = disconnect_seconds
        #: The last known revisions of our own records: saves the read before each heartbeat.
        self._seen: dict[str, tuple[int, WorkerRecord | None]] = {}

    async def start(self) -> None:
        await self._mirror.start()

    async def stop(self) -> None:
        await self._mirror.stop()

    async def announce(self, record: WorkerRecord) -> WorkerRecord:
        seen = self._seen.get(record.worker_id)
        remembered = seen[1] if seen is not None else None
        rounds = Rounds(f"the record of worker {record.worker_id}")
        while True:
            rounds.begin()
            revision, stored = seen or await self._read_stored(record.worker_id)
            self._warn_of_duplicate(record, stored)
            merged = take_over(record, stored or remembered)  # a deleted record is restored with its operator fields
            written = await self._bucket.write(record.worker_id, encode_worker(merged), revision)
            if written is not None:
                self._mirror.note(written)
                self._seen[record.worker_id] = (written.revision, merged)
                return merged
            seen = None

    async def retire(self, record: WorkerRecord) -> bool:
        rounds = Rounds(f"the record of worker {record.worker_id}")
        while True:
            rounds.begin()
            revision, stored = await self._read_stored(record.worker_id)
            if stored is not None and stored.instance_id != record.instance_id:
                return False
            data = encode_worker(take_over(record, stored))
            written = await self._bucket.write(record.worker_id, data, revision)
            if written is not None:
                self._mirror.note(written)
                return True

    async def find(self, worker_id: str) -> WorkerRecord | None:
        if self._mirror.is_fresh:
            return self._mirror.get(worker_id)
        return (await self._read_stored(worker_id))[1]

    async def all(self) -> list[WorkerRecord]:
        if not self._mirror.is_fresh and self._mirror.is_following and self._link.is_up:
            await self._bucket.last_revision()  # SAFE-14: names a missing bucket immediately
        deadline = time.monotonic() + _FRESH_SECONDS
        while not self._mirror.is_fresh:
            if not self._mirror.is_following or not self._link.is_up or time.monotonic() > deadline:
                raise Unavailable("what is known of the workers may be out of date")
            await asyncio.sleep(0.02)
        return self._mirror.all()

    def known(self) -> list[WorkerRecord]:
        return self._mirror.all()

    async def hide(self, worker_id: str, hidden: bool, now: float) -> WorkerRecord | None:
        rounds = Rounds(f"the record of worker {worker_id}", most=_HIDE_ROUNDS_MAX)
        while True:
            rounds.begin()
            entry = await self._bucket.get(worker_id)
            stored = _read(entry)
            if entry is None or entry.value is None or stored is None:
                return None
            wanted = hide(stored, hidden, now)
            if wanted is stored:
                self._mirror.note(entry)
                return stored
            written = await self._bucket.write(worker_id, encode_over(wanted, entry.value), entry.revision)
            if written is not None:
                self._mirror.note(written)
                return wanted

    async def remove(self, record: WorkerRecord) -> bool:
        revision, stored = await self._read_stored(record.worker_id)
        if stored != record:
            return False
        marker = await self._mark(record.worker_id, revision)
        if marker is None:
            return False
        self._mirror.note(Entry(marker.key, marker.revision, None))
        return True

    async def _mark(self, worker_id: str, revision: int) -> Entry | None:
        try:
            return await self._bucket.write(worker_id, b"", revision, _MARKER)
        except TtlRefused:  # bucket of an older version: its markers stay, about 150 bytes per worker id ever used
            return await self._bucket.write(worker_id, b"", revision, {"KV-Operation": "DEL"})

    async def _read_stored(self, worker_id: str) -> tuple[int, WorkerRecord | None]:
        entry = await self._bucket.get(worker_id)
        return (entry.revision if entry is not None else 0), _read(entry)

    def _warn_of_duplicate(self, record: WorkerRecord, stored: WorkerRecord | None) -> None:
        if stored is None or stored.instance_id == record.instance_id or stored.state is WorkerState.STOPPED_GRACEFUL:
            return
        if stored.is_alive(record.last_seen_at, self._disconnect_seconds):
            log.warning(
                "another live worker uses this id, taking over its record",
                worker_id=record.worker_id,
                other_instance=stored.instance_id,
            )


def _read(entry: Entry | None) -> WorkerRecord | None:
    if entry is None or entry.value is None:
        return None
    try:
        return read_worker(entry.value)
    except Corrupt:
        log.exception("unreadable worker record, ignored", worker_id=entry.key)
        return None
