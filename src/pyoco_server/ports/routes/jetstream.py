"""Placements of jobs in a JetStream KV bucket whose records expire after seven days. The key is the job id."""

from __future__ import annotations

import msgspec

from pyoco_server.core.rounds import Rounds
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.routes.port import Route

__all__ = ["JetStreamRoutes"]


class _Value(msgspec.Struct):
    group: str
    at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Value).decode


def _read(entry: Entry | None) -> Route | None:
    """Decode a placement. None also if it is unreadable: the next placement of the job overwrites it."""
    if entry is None or entry.value is None:
        return None
    try:
        value = _decode(entry.value)
    except msgspec.DecodeError:
        return None
    return Route(entry.key, value.group, value.at, entry.revision)


class JetStreamRoutes:
    def __init__(self, link: Link, bucket: str) -> None:
        self._bucket = Bucket(link, bucket)

    async def place(self, job_id: str, group: str, now: float) -> Route:
        revision = 0
        rounds = Rounds("the placement of a job")
        while True:
            rounds.begin()
            placed = await self._write(job_id, group, now, revision)
            if placed is not None:
                return placed
            entry = await self._bucket.get(job_id)
            found = _read(entry)
            if found is not None:
                return found
            revision = entry.revision if entry is not None else 0  # it expired between write and read

    async def find(self, job_id: str) -> Route | None:
        return _read(await self._bucket.get(job_id))

    async def move(self, route: Route, group: str, now: float) -> Route:
        moved = await self._write(route.job_id, group, now, route.revision)
        return moved or await self.place(route.job_id, group, now)

    async def _write(self, job_id: str, group: str, now: float, revision: int) -> Route | None:
        entry = await self._bucket.write(job_id, _encode(_Value(group, now)), revision)
        return None if entry is None else Route(job_id, group, now, entry.revision)
