"""Door records in a JetStream KV bucket whose records expire after 15 s. The key is the door id."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pyoco_server.core.rounds import Rounds
from pyoco_server.logs import get_logger
from pyoco_server.ports.door_records.port import DoorRecord, DoorState
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Follower

__all__ = ["LIFE_SECONDS", "JetStreamDoorRecords"]

log = get_logger(__name__)

LIFE_SECONDS = 15.0


class _Value(msgspec.Struct):
    addr: str
    group: str
    state: DoorState
    started_at: float
    connections: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Value).decode


class _Table(Follower):
    """The latest record of each door, with its time.

    The store expires records without an event, so a record's age decides whether it counts.
    """

    def __init__(self, link: Link, bucket: Bucket, clock: Callable[[], float]) -> None:
        super().__init__(link, bucket)
        self._clock = clock
        self._doors: dict[str, tuple[int, float, DoorRecord | None]] = {}

    def _clear(self) -> None:
        self._doors.clear()

    def _apply(self, entry: Entry) -> None:
        held = self._doors.get(entry.key)
        if held is None or held[0] < entry.revision:
            self._doors[entry.key] = entry.revision, entry.stored_at or self._clock(), _read(entry)

    def alive(self) -> list[DoorRecord]:
        """Return the records that have not expired, and drop the others."""
        oldest = self._clock() - LIFE_SECONDS
        self._doors = {door_id: held for door_id, held in self._doors.items() if held[1] > oldest}
        return [record for _, _, record in self._doors.values() if record is not None]


def _read(entry: Entry) -> DoorRecord | None:
    if entry.value is None:
        return None
    try:
        return DoorRecord(door_id=entry.key, **msgspec.structs.asdict(_decode(entry.value)))
    except msgspec.DecodeError:
        log.exception("unreadable door record, ignored", door_id=entry.key)
        return None


class JetStreamDoorRecords:
    def __init__(self, link: Link, bucket: str, clock: Callable[[], float]) -> None:
        self._bucket = Bucket(link, bucket)
        self._table = _Table(link, self._bucket, clock)
        #: Revisions of our own writes: saves a read before each announcement.
        self._own: dict[str, int] = {}

    async def start(self) -> None:
        await self._table.start()

    async def stop(self) -> None:
        await self._table.stop()

    async def announce(self, record: DoorRecord) -> None:
        value = _Value(record.addr, record.group, record.state, record.started_at, record.connections)
        written = await self._write(record.door_id, _encode(value), {})
        self._own[record.door_id] = written.revision
        self._table.note(written)

    async def remove(self, door_id: str) -> None:
        marker = await self._write(door_id, b"", {"KV-Operation": "DEL"})
        self._own.pop(door_id, None)
        self._table.note(Entry(door_id, marker.revision, None))

    async def _write(self, door_id: str, value: bytes, headers: dict[str, str]) -> Entry:
        """Overwrite whatever is stored: door ids are not shared."""
        revision = self._own.get(door_id, 0)
        rounds = Rounds("the record of a door")
        while True:
            rounds.begin()
            written = await self._bucket.write(door_id, value, revision, headers)
            if written is not None:
                return written
            entry = await self._bucket.get(door_id)  # expired, or written before a restart
            revision = entry.revision if entry is not None else 0

    def all(self, group: str | None = None) -> list[DoorRecord]:
        found = [record for record in self._table.alive() if group is None or record.group == group]
        return sorted(found, key=lambda record: (record.addr, record.door_id))
