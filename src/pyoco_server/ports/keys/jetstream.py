"""API keys in a JetStream KV bucket, key = key id."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.api_key import KeyRecord, encode_key, read_key
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror

__all__ = ["JetStreamKeys"]

_ROUNDS_MAX = 10


class JetStreamKeys:
    def __init__(self, link: Link, bucket: str) -> None:
        self._bucket = Bucket(link, bucket)
        self._mirror = Mirror(link, self._bucket, read_key)
        self._following = False

    async def start(self) -> None:
        await self._mirror.start()
        self._following = True

    async def stop(self) -> None:
        self._following = False
        await self._mirror.stop()

    async def find(self, key_id: str) -> KeyRecord | None:
        if self._following and self._mirror.is_fresh:
            return self._mirror.get(key_id)
        found = await self._look(key_id)
        return found[1] if found is not None else None

    async def add(self, record: KeyRecord) -> bool:
        written = await self._bucket.write(record.key_id, encode_key(record), 0)
        if written is not None:
            self._mirror.note(written)
        return written is not None

    async def revoke(self, key_id: str, now: float) -> KeyRecord | None:
        for _ in range(_ROUNDS_MAX):
            found = await self._look(key_id)
            if found is None:
                return None
            revision, record = found
            if record.revoked_at is not None:
                return record
            revoked = replace(record, revoked_at=now)
            written = await self._bucket.write(key_id, encode_key(revoked), revision)
            if written is not None:
                self._mirror.note(written)
                return revoked
        raise Unavailable(f"the record of key {key_id} changes too fast")

    async def all(self) -> list[KeyRecord]:
        return sorted(self._mirror.all(), key=lambda record: (record.created_at, record.key_id))

    async def _look(self, key_id: str) -> tuple[int, KeyRecord] | None:
        entry = await self._bucket.get(key_id)
        if entry is None or entry.value is None:
            return None
        return entry.revision, read_key(entry.value)
