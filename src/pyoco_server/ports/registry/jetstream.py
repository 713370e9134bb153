"""The worker registry in a JetStream KV bucket, key = worker id."""

from __future__ import annotations

import time

from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker, read_worker, take_over
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror

__all__ = ["JetStreamRegistry"]

log = get_logger(__name__)

#: A record changes hands rarely: more rounds than this mean that two processes fight over one id.
_ROUNDS_MAX = 10


class JetStreamRegistry:
    def __init__(self, link: Link, bucket: str, disconnect_seconds: float) -> None:
        self._bucket = Bucket(link, bucket)
        self._mirror = Mirror(link, self._bucket, read_worker)
        self._following = False
        self._disconnect_seconds = disconnect_seconds
        #: What we last saw of our own records: saves the read before each heartbeat.
        self._seen: dict[str, tuple[int, WorkerRecord | None]] = {}

    async def start(self) -> None:
        await self._mirror.start()
        self._following = True

    async def stop(self) -> None:
        self._following = False
        await self._mirror.stop()

    async def announce(self, record: WorkerRecord) -> WorkerRecord:
        for _ in range(_ROUNDS_MAX):
            revision, stored = self._seen.get(record.worker_id) or await self._look(record.worker_id)
            self._warn_of_twin(record, stored)
            mine = take_over(record, stored)
            written = await self._bucket.write(record.worker_id, encode_worker(mine), revision)
            if written is not None:
                self._mirror.note(written)
                self._seen[record.worker_id] = (written.revision, mine)
                return mine
            self._seen.pop(record.worker_id, None)
        raise Unavailable(f"the record of worker {record.worker_id} changes too fast")

    async def retire(self, record: WorkerRecord) -> bool:
        for _ in range(_ROUNDS_MAX):
            revision, stored = await self._look(record.worker_id)
            if stored is not None and stored.instance_id != record.instance_id:
                return False
            data = encode_worker(take_over(record, stored))
            written = await self._bucket.write(record.worker_id, data, revision)
            if written is not None:
                self._mirror.note(written)
                return True
        raise Unavailable(f"the record of worker {record.worker_id} changes too fast")

    async def find(self, worker_id: str) -> WorkerRecord | None:
        if self._following and self._mirror.is_fresh:
            return self._mirror.get(worker_id)
        return (await self._look(worker_id))[1]

    async def all(self) -> list[WorkerRecord]:
        return self._mirror.all()

    async def _look(self, worker_id: str) -> tuple[int, WorkerRecord | None]:
        entry = await self._bucket.get(worker_id)
        if entry is None or entry.value is None:
            return (entry.revision if entry is not None else 0), None
        try:
            return entry.revision, read_worker(entry.value)
        except Corrupt:
            log.exception("a worker record cannot be read; it is replaced", worker_id=worker_id)
            return entry.revision, None

    def _warn_of_twin(self, mine: WorkerRecord, stored: WorkerRecord | None) -> None:
        if stored is None or stored.instance_id == mine.instance_id or stored.state is WorkerState.STOPPED_GRACEFUL:
            return
        if stored.is_alive(time.time(), self._disconnect_seconds):
            log.warning(
                "another live worker has this id; its record is taken over",
                worker_id=mine.worker_id,
                other_instance=stored.instance_id,
            )
