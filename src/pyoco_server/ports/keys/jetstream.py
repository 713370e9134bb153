"""API keys in a JetStream KV bucket, by key id, and the fingerprint of the pepper in the same bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyoco_server.core.api_key import KeyRecord, encode_key, encode_over, read_key
from pyoco_server.core.rounds import Rounds
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror

__all__ = ["JetStreamKeys"]

log = get_logger(__name__)

#: Key ids contain no dot, so this cannot be one.
_PEPPER = "pepper.fingerprint"


class _KeyMirror(Mirror[KeyRecord]):
    """A mirror of the keys, without the fingerprint."""

    def _apply(self, entry: Entry) -> None:
        if entry.key != _PEPPER:
            super()._apply(entry)


class JetStreamKeys:
    def __init__(self, link: Link, bucket: str) -> None:
        self._bucket = Bucket(link, bucket)
        self._mirror = _KeyMirror(link, self._bucket, read_key)

    async def start(self) -> None:
        await self._mirror.start()

    async def stop(self) -> None:
        await self._mirror.stop()

    async def find(self, key_id: str) -> KeyRecord | None:
        if self._mirror.is_fresh:
            return self._mirror.get(key_id)
        entry = await self._bucket.get(key_id)
        if entry is None or entry.value is None:
            return None
        try:
            return read_key(entry.value)
        except Corrupt:
            log.exception("unreadable key record, key rejected", key_id=key_id)
            return None

    async def add(self, record: KeyRecord) -> bool:
        written = await self._bucket.write(record.key_id, encode_key(record), 0)
        if written is not None:
            self._mirror.note(written)
        return written is not None

    async def revoke(self, key_id: str, now: float) -> KeyRecord | None:
        return await self._change(
            key_id, lambda record: record if record.revoked_at is not None else replace(record, revoked_at=now)
        )

    async def used(self, key_id: str, at: float) -> None:
        await self._change(
            key_id, lambda record: record if at <= (record.last_used_at or 0.0) else replace(record, last_used_at=at)
        )

    async def _change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord | None:
        """Write `change(record)` by compare-and-set over the record it was given. None: the key does not exist."""
        rounds = Rounds(f"the record of key {key_id}")
        while True:
            rounds.begin()
            entry = await self._bucket.get(key_id)
            if entry is None or entry.value is None:
                return None
            record = read_key(entry.value)
            changed = change(record)
            if changed is record:
                return record
            written = await self._bucket.write(key_id, encode_over(changed, entry.value), entry.revision)
            if written is not None:
                self._mirror.note(written)
                return changed

    async def pepper(self) -> str | None:
        entry = await self._bucket.get(_PEPPER)
        return None if entry is None or entry.value is None else entry.value.decode(errors="replace")

    async def keep_pepper(self, fingerprint: str) -> str:
        # The bucket is small, and this runs once per start: reading first saves a rejected write at every later start.
        stored = await self.pepper()
        if stored is not None:
            return stored
        await self._bucket.write(_PEPPER, fingerprint.encode(), 0)
        return await self.pepper() or fingerprint

    async def replace_pepper(self, fingerprint: str) -> None:
        rounds = Rounds("the fingerprint of the pepper")
        while True:
            rounds.begin()
            entry = await self._bucket.get(_PEPPER)
            if entry is not None and entry.value == fingerprint.encode():
                return
            revision = 0 if entry is None else entry.revision
            if await self._bucket.write(_PEPPER, fingerprint.encode(), revision) is not None:
                return

    async def all(self) -> list[KeyRecord]:
        return sorted(self._mirror.all(), key=lambda record: (record.created_at, record.key_id))
