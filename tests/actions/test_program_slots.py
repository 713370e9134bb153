"""A client never has more in flight than its cap, over all processes; and slots of dead holders become free."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.claim import free_slot, take_slot
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.slots import clear_abandoned
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import changed
from pyoco_server.errors import Corrupt
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.port import Slot
from support.backends import Clock
from support.grid.acts import DONE, claimed, job_submitted, run_of, slot_of
from support.grid.program_stage import a_store, cap
from support.servers import unique
from support.waiting import eventually


def group_of(backend: Backend) -> str:
    return programs_of(backend).config.exec_group


async def take(backend: Backend, holder: str = "me") -> Slot | None:
    return await take_slot(backend, group_of(backend), "clientA", holder)


async def held(backend: Backend, count: int) -> list[Slot]:
    found = [await take(backend) for _ in range(count)]
    return [slot for slot in found if slot is not None]


async def test_there_are_as_many_as_the_cap_says(grid: Backend) -> None:
    """GRID-71, GRID-73"""
    assert len(await held(grid, 6)) == 4
    await cap(grid, "clientA", 6)
    assert len(await held(grid, 6)) == 2
    assert await take(grid) is None


async def test_of_many_who_take_at_once_no_more_get_one_than_the_cap_says(config: NatsBackendConfig) -> None:
    """GRID-72"""
    group = unique("g")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(a_store(config, group)) for _ in range(4)]
        await cap(stores[0], "clientA", 7)
        for store in stores:
            await eventually(lambda store=store: programs_of(store).slots.cap(group, "clientA") is not None)  # type: ignore[misc]
        for _ in range(5):
            taken = await asyncio.gather(*(take(store, str(n)) for n, store in enumerate(stores * 8)))
            slots = [slot for slot in taken if slot is not None]
            assert len(slots) <= 7
            assert len({slot.number for slot in slots}) == len(slots)
            await asyncio.gather(*(free_slot(stores[0], slot) for slot in slots))
            for store in stores:
                await eventually(lambda store=store: not programs_of(store).slots.held(group, "clientA"))  # type: ignore[misc]


async def test_after_a_cap_was_lowered_the_highest_numbers_count_too(config: NatsBackendConfig) -> None:
    """GRID-76: and two who both see room for one get one"""
    group = unique("g")
    async with a_store(config, group) as one, a_store(config, group) as other:
        await cap(one, "clientA", 8)
        slots = {slot.number: slot for slot in await held(one, 8)}
        assert sorted(slots) == list(range(8))
        await cap(one, "clientA", 4)
        for number in (0, 1, 4, 5):
            await free_slot(one, slots[number])
        await eventually(lambda: len(programs_of(other).slots.held(group, "clientA")) == 4)
        await eventually(lambda: _cap_of(other, group) == 4)
        assert await take(one) is None
        await free_slot(one, slots[7])
        await eventually(lambda: len(programs_of(other).slots.held(group, "clientA")) == 3)
        taken = await asyncio.gather(*(take(store) for store in (one, other) * 10))
        assert sum(slot is not None for slot in taken) == 1


async def test_the_last_word_on_a_cap_is_written_by_a_process_that_is_behind_too(config: NatsBackendConfig) -> None:
    """GRID-71: what it knows may have been overtaken"""
    group = unique("g")
    async with a_store(config, group) as one, a_store(config, group) as other:
        await cap(one, "clientA", 8)
        await eventually(lambda: _cap_of(other, group) == 8)
        await programs_of(other).slots.stop()  # from here on it receives nothing
        await cap(one, "clientA", 2)
        await cap(other, "clientA", 8)
        await eventually(lambda: _cap_of(one, group) == 8)


async def test_a_cap_that_is_in_force_is_not_written_again(config: NatsBackendConfig) -> None:
    """GRID-71: fifty connections of one client request the same cap, which is reported once"""
    group = unique("g")
    async with a_store(config, group) as grid:
        said = await set_cap(grid, group, "clientA", 8, "hello")
        assert await set_cap(grid, group, "clientA", 8, "http") == said
        assert programs_of(grid).slots.cap(group, "clientA") == said


def _cap_of(backend: Backend, group: str) -> int | None:
    said = programs_of(backend).slots.cap(group, "clientA")
    return None if said is None else said.cap


@pytest.fixture
async def full(grid: Backend) -> Backend:
    """A client that may have one job at once."""
    limits = replace(programs_of(grid).config, exec_default_cap=1)
    return replace(grid, programs=replace(programs_of(grid), config=limits))


class TestAbandoned:
    async def test_one_that_never_named_its_run_is_free_after_half_a_minute(self, full: Backend, clock: Clock) -> None:
        """GRID-74"""
        assert await take(full, "gone") is not None
        clock.now += 29
        assert await take(full) is None
        clock.now += 6
        taken = await take(full)
        assert taken is not None
        assert taken.holder == "me"

    async def test_one_whose_attempt_is_alive_is_not(self, full: Backend, clock: Clock) -> None:
        """GRID-74"""
        attempt = await claimed(full, (await job_submitted(full)).run)
        for _ in range(4):
            clock.now += 15
            await beat(full, attempt)
            assert await take(full) is None

    async def test_one_whose_attempt_has_been_silent_for_a_lease_is(self, full: Backend, clock: Clock) -> None:
        """GRID-74: without it a dead attempt could block its own redelivery"""
        await claimed(full, (await job_submitted(full)).run)
        clock.now += 19
        assert await take(full) is None
        clock.now += 6
        assert await take(full) is not None

    async def test_nobody_loses_one_while_leases_are_pardoned(self, full: Backend, clock: Clock) -> None:
        """GRID-44"""
        await claimed(full, (await job_submitted(full)).run)
        clock.now += 100
        programs_of(full).grace.until = clock.now + 20
        assert await take(full) is None

    @pytest.mark.parametrize("end", ["ended", "put back", "another token", "gone"])
    async def test_one_whose_attempt_is_over_is(self, full: Backend, clock: Clock, end: str) -> None:
        """GRID-74"""
        run = (await job_submitted(full)).run
        attempt = await claimed(full, run)
        if end == "ended":
            await finish_job(full, attempt, DONE, ())
        elif end == "put back":
            await put_back(full, attempt, Why.WORKER_DOWN)
        elif end == "another token":
            stolen = changed(attempt.run, attempt_id="another", heartbeat_at=clock.now + 60)
            assert isinstance(await full.runs.replace(stolen, attempt.revision), Stored)
        else:
            assert await full.runs.withdraw(run.run_id, attempt.revision)
        assert await take(full) is None  # it was named a moment ago: its holder is about to free it
        clock.now += 6
        assert await take(full) is not None

    async def test_a_client_at_its_cap_does_not_cost_a_read_at_each_look(self, full: Backend, clock: Clock) -> None:
        attempt = await claimed(full, (await job_submitted(full)).run)
        clock.now += 6
        await beat(full, attempt)
        reads = 0
        find = full.runs.find

        class Counting:
            def __getattr__(self, name: str) -> object:
                return getattr(full.runs, name)

            async def find(self, run_id: str) -> object:
                nonlocal reads
                reads += 1
                return await find(run_id)

        counted = replace(full, runs=Counting())  # type: ignore[arg-type]
        for _ in range(50):
            assert await take(counted) is None
        assert reads == 1

    async def test_a_record_that_cannot_be_read_keeps_its_slot(self, full: Backend, clock: Clock) -> None:
        run = (await job_submitted(full)).run
        await claimed(full, run)
        clock.now += 100

        class Unreadable:
            def __getattr__(self, name: str) -> object:
                return getattr(full.runs, name)

            async def find(self, _: str) -> object:
                raise Corrupt("not JSON")

        assert await take(replace(full, runs=Unreadable())) is None  # type: ignore[arg-type]

    async def test_a_slot_that_was_kept_and_taken_over_is_not_freed_by_its_old_holder(
        self, full: Backend, clock: Clock
    ) -> None:
        """GRID-73"""
        run = (await job_submitted(full)).run
        attempt = await claimed(full, run)
        await finish_job(full, attempt, DONE, ())
        clock.now += 6
        mine = await take(full)
        assert attempt.slot is not None
        await free_slot(full, attempt.slot)
        assert programs_of(full).slots.held(group_of(full), "clientA") == [mine]

    async def test_sweeping_them_frees_all(self, grid: Backend, clock: Clock) -> None:
        """GRID-57, GRID-75: when nothing runs it is zero"""
        run = (await job_submitted(grid)).run
        await slot_of(grid, run, "gone")
        attempt = await claimed(grid, run)
        await finish_job(grid, attempt, DONE, ())
        clock.now += 31
        assert await clear_abandoned(grid, group_of(grid), "clientA") == 2
        assert programs_of(grid).slots.held(group_of(grid), "clientA") == []
        assert (await run_of(grid, run.run_id)).is_terminal
