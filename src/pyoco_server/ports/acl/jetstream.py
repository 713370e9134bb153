"""ACL records in a JetStream KV bucket: `client.<ClientId>` and `worker.<WorkerId>`."""

from __future__ import annotations

from typing import cast

import msgspec

from pyoco_server.core.rounds import Rounds
from pyoco_server.errors import Corrupt
from pyoco_server.ports.acl.port import AclKind, AclRecord
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Mirror

__all__ = ["JetStreamAcl"]

_KINDS = frozenset({"client", "worker"})


class _Value(msgspec.Struct):
    api_key_ids: tuple[str, ...]
    execs: tuple[str, ...]
    max_cap: int | None = None
    groups: tuple[str, ...] | None = None


_decode = msgspec.json.Decoder(_Value).decode


def _read(data: bytes) -> AclRecord:
    try:
        value = _decode(data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"not an ACL record: {error}") from error
    groups = ("*",) if value.groups is None else value.groups
    return AclRecord(api_key_ids=value.api_key_ids, execs=value.execs, max_cap=value.max_cap, groups=groups)


def _bytes(kind: AclKind, record: AclRecord) -> bytes:
    """Encode a record. A worker's record has no cap and no groups (GRID-168)."""
    members: dict[str, object] = {"api_key_ids": record.api_key_ids, "execs": record.execs}
    if kind == "client":
        members |= {"groups": record.groups} | ({} if record.max_cap is None else {"max_cap": record.max_cap})
    return msgspec.json.encode(members)


class JetStreamAcl:
    def __init__(self, link: Link, bucket: str) -> None:
        self._bucket = Bucket(link, bucket)
        self._mirror = Mirror(link, self._bucket, _read)

    async def start(self) -> None:
        await self._mirror.start()

    async def stop(self) -> None:
        await self._mirror.stop()

    def find(self, kind: AclKind, of: str) -> AclRecord | None:
        return self._mirror.get(f"{kind}.{of}")

    def all(self) -> dict[tuple[AclKind, str], AclRecord]:
        found = ((key.partition("."), record) for key, record in sorted(self._mirror.items(), key=lambda item: item[0]))
        return {(cast(AclKind, kind), of): record for (kind, _, of), record in found if kind in _KINDS}

    async def put(self, kind: AclKind, of: str, record: AclRecord) -> None:
        key, value = f"{kind}.{of}", _bytes(kind, record)
        rounds = Rounds("an ACL record")
        while True:
            rounds.begin()
            entry = await self._bucket.get(key)
            written = await self._bucket.write(key, value, entry.revision if entry is not None else 0)
            if written is not None:
                self._mirror.note(written)
                return

    async def delete(self, kind: AclKind, of: str) -> bool:
        key = f"{kind}.{of}"
        rounds = Rounds("an ACL record")
        while True:
            rounds.begin()
            entry = await self._bucket.get(key)
            if entry is None or entry.value is None:
                return False
            marker = await self._bucket.write(key, b"", entry.revision, {"KV-Operation": "DEL"})
            if marker is not None:
                self._mirror.note(Entry(key, marker.revision, None))
                return True
