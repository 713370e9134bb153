"""What every store of doors promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from pyoco_server.ports.door_records.port import DoorRecord, DoorRecords, DoorState
from support.servers import unique
from support.waiting import eventually

__all__ = ["DoorRecordsContract", "MakeDoorRecords", "a_door"]


class MakeDoorRecords(Protocol):
    """Doors over the test's one store, as another process would open them; its clock is `ahead` by so much."""

    async def __call__(self, ahead: float = 0.0) -> DoorRecords: ...


def a_door(group: str, **more: object) -> DoorRecord:
    door = DoorRecord(
        door_id=unique("d"),
        addr="127.0.0.1:5000",
        group=group,
        state=DoorState.SERVING,
        started_at=1.5,
        connections=3,
    )
    return replace(door, **more)  # type: ignore[arg-type]  # any of its fields


class DoorRecordsContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_door_is_known_to_the_others(self, make_doors: MakeDoorRecords, group: str) -> None:
        mine, other = await make_doors(), await make_doors()
        first, second = a_door(group), a_door(group, addr="127.0.0.1:4000", state=DoorState.STANDBY)
        await mine.announce(first)
        assert mine.all(group) == [first]
        await other.announce(second)
        await eventually(lambda: mine.all(group) == [second, first])  # by address
        assert (await make_doors()).all(group) == [second, first]
        assert first in mine.all()
        assert mine.all(f"{group}-2") == []

    async def test_the_newest_word_counts(self, make_doors: MakeDoorRecords, group: str) -> None:
        mine, other = await make_doors(), await make_doors()
        door = a_door(group)
        for state in DoorState:
            await mine.announce(replace(door, state=state))
        await eventually(lambda: [each.state for each in other.all(group)] == [DoorState.NO_QUORUM])

    async def test_a_door_that_leaves_is_gone(self, make_doors: MakeDoorRecords, group: str) -> None:
        mine, other = await make_doors(), await make_doors()
        door = a_door(group)
        await mine.announce(door)
        await eventually(lambda: other.all(group) == [door])
        await mine.remove(door.door_id)
        assert mine.all(group) == []
        await eventually(lambda: other.all(group) == [])
        await mine.announce(door)
        await eventually(lambda: other.all(group) == [door])

    async def test_a_door_may_be_announced_by_its_next_process(self, make_doors: MakeDoorRecords, group: str) -> None:
        door = a_door(group)
        await (await make_doors()).announce(door)
        again = await make_doors()
        await again.announce(replace(door, started_at=9.0))
        assert again.all(group) == [replace(door, started_at=9.0)]
        await (await make_doors()).remove(door.door_id)

    async def test_a_door_that_says_nothing_is_gone_after_15_seconds(
        self, make_doors: MakeDoorRecords, group: str
    ) -> None:
        door = a_door(group)
        await (await make_doors()).announce(door)
        assert (await make_doors(ahead=13.0)).all(group) == [door]
        later = await make_doors(ahead=16.0)
        assert later.all(group) == []
        await later.announce(door)  # by its clock, now
        assert later.all(group) == [door]
