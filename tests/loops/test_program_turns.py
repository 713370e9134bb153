"""Which lane a dispatcher looks at, when, and which slots it keeps. The clock is made up; nothing waits."""

from __future__ import annotations

import math
from typing import cast

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.loops.programs.client_queues import ClientQueues, ClientQueueState
from pyoco_server.loops.programs.client_slots import ClientSlots, Room
from pyoco_server.loops.programs.idle_slots import KEEP_SECONDS, USES_MAX, IdleSlots
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.slots.port import Cap, Slot

A1, A2, B1 = ClientQueue("g", "A", "1"), ClientQueue("g", "A", "2"), ClientQueue("g", "B", "1")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lanes(clock: Clock) -> ClientQueues:
    return ClientQueues(clock)


def picked(lanes: ClientQueues) -> ClientQueueState:
    found = lanes.pick(lambda name, _: name)
    assert found is not None
    return found[0]


def is_quiet(lanes: ClientQueues) -> bool:
    return lanes.pick(lambda name, _: name) is None


def looked(lanes: ClientQueues, *, came: int = 0, waiting: int = 0) -> ClientQueueState:
    state = picked(lanes)
    lanes.answered(state, state.heard, 1, came, waiting)
    return state


class TestALane:
    def test_that_is_new_is_looked_at_and_counted_first(self, lanes: ClientQueues) -> None:
        """GRID-60"""
        lanes.add(A1)
        lanes.add(A1)
        assert picked(lanes).must_count
        assert is_quiet(lanes)

    def test_that_is_idle_is_looked_at_after_1_2_4_up_to_30_seconds(self, lanes: ClientQueues, clock: Clock) -> None:
        """GRID-60"""
        lanes.add(A1)
        waits = []
        for _ in range(8):
            looked(lanes)
            assert is_quiet(lanes)
            waits.append(lanes.next_due() - clock.now)
            clock.now = lanes.next_due() - 0.001
            lanes.wake_due()
            assert is_quiet(lanes)
            clock.now += 0.001
            lanes.wake_due()
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]

    def test_that_a_hint_tells_of_is_looked_at_now_and_rests_for_a_second_again(
        self, lanes: ClientQueues, clock: Clock
    ) -> None:
        """GRID-60: a hint resets that"""
        lanes.add(A1)
        for _ in range(4):
            looked(lanes)
            clock.now = lanes.next_due()
            lanes.wake_due()
        looked(lanes)
        lanes.hear("A", "1")
        state = looked(lanes)
        assert not state.must_count
        assert state.due_at == clock.now + 1

    def test_that_is_told_of_during_a_look_is_looked_at_again(self, lanes: ClientQueues) -> None:
        """GRID-60: a job that came after the look was answered is not forgotten"""
        lanes.add(A1)
        state = picked(lanes)
        before = state.heard
        lanes.hear("A", "1")
        lanes.answered(state, before, 1, 0, 0)
        assert picked(lanes) is state

    def test_gets_as_many_looks_as_it_has_jobs(self, lanes: ClientQueues) -> None:
        """GRID-62: nothing is taken for jobs that are not there"""
        lanes.add(A1)
        looked(lanes, came=1, waiting=2)
        one, two = picked(lanes), picked(lanes)
        assert is_quiet(lanes)
        lanes.answered(one, one.heard, 1, 1, 1)
        assert is_quiet(lanes)  # that one is the other's
        lanes.answered(two, two.heard, 1, 1, 0)
        assert is_quiet(lanes)
        assert lanes.next_due() < math.inf

    def test_with_a_job_that_was_put_off_is_looked_at_in_time_and_then_in_quick_succession(
        self, lanes: ClientQueues, clock: Clock
    ) -> None:
        """GRID-79: the delay is that of the job, and not that of an idle lane"""
        lanes.add(A1)
        looked(lanes)
        lanes.put_off(A1, 0.5)
        clock.now += 0.5
        lanes.wake_due()
        waits = []
        for _ in range(6):
            state = looked(lanes)
            waits.append(round(state.due_at - clock.now, 3))
            clock.now = state.due_at
            lanes.wake_due()
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 2.0]

    def test_whose_queue_does_not_answer_is_looked_at_in_a_second(self, lanes: ClientQueues, clock: Clock) -> None:
        """GRID-61"""
        lanes.add(A1)
        lanes.failed(picked(lanes), 1)
        assert is_quiet(lanes)
        assert lanes.next_due() == clock.now + 1


class TestAClientAtItsCap:
    def test_is_passed_over_with_all_of_its_lanes_and_nobody_else(self, lanes: ClientQueues) -> None:
        """GRID-61"""
        for lane in (A1, A2, B1):
            lanes.add(lane)
        lanes.block("1")
        lanes.hear("A", "1")
        assert picked(lanes).queue == A2
        assert is_quiet(lanes)
        lanes.unblock("1")
        assert {picked(lanes).queue, picked(lanes).queue} == {A1, B1}

    def test_has_its_turn_later_when_a_job_was_not_asked_for_after_all(self, lanes: ClientQueues) -> None:
        """GRID-60, GRID-61"""
        lanes.add(A1)
        state = picked(lanes)
        lanes.block("1")
        lanes.unasked(state)
        assert is_quiet(lanes)
        assert lanes.has_more("1")
        lanes.unblock("1")
        assert picked(lanes) is state


def slot(number: int, client_id: str = "1") -> Slot:
    return Slot("g", client_id, number, "t", None, 0.0, "me", 1)


class TestASlotBetweenTwoAttempts:
    def test_is_kept_for_the_next_one_of_its_client(self, clock: Clock) -> None:
        """GRID-72, GRID-73"""
        spares = IdleSlots(clock)
        assert spares.keep(slot(0))
        assert (spares.count("1"), spares.take("2"), spares.take("1"), len(spares)) == (1, None, slot(0), 0)

    def test_is_given_back_after_sixteen_uses_in_a_row(self, clock: Clock) -> None:
        """GRID-72: so that other processes have a chance of it"""
        spares = IdleSlots(clock)
        uses = 0
        while True:
            spares.used(slot(0))
            uses += 1
            if not spares.keep(slot(0)):
                break
            assert spares.take("1") is not None
        assert uses == USES_MAX
        assert spares.keep(slot(0))  # and begins anew when it is taken again

    def test_is_given_back_at_once_when_its_client_has_nothing_more(self, clock: Clock) -> None:
        """GRID-75: when nothing runs, nothing is held"""
        spares = IdleSlots(clock)
        spares.keep(slot(0))
        spares.keep(slot(0, "2"))
        assert list(spares.idle(lambda client: client == "2")) == [slot(0)]
        assert spares.count("2") == 1

    def test_waits_for_a_seat_for_a_moment_only(self, clock: Clock) -> None:
        """GRID-75"""
        spares = IdleSlots(clock)
        spares.keep(slot(0))
        assert list(spares.idle(lambda _: True)) == []
        clock.now = spares.next_idle()
        assert clock.now == 100.0 + KEEP_SECONDS
        assert list(spares.idle(lambda _: True)) == [slot(0)]
        assert spares.next_idle() == math.inf


class Held:
    """As much of the ports of programs as tells what a client holds and may hold."""

    def __init__(self, count: int, cap: int) -> None:
        self.held_count, self.most = count, cap
        self.slots, self.config = self, GridConfig(exec_group="g")
        self.programs = self.acl = self
        self.freed: list[Slot] = []

    def count(self, _: str, __: str) -> int:
        return self.held_count

    def cap(self, _: str, __: str) -> Cap:
        return Cap(self.most, 0.0, "http")

    def find(self, _: str, __: str) -> None:
        """The ACL does not mention it."""

    async def start(self, _: object) -> None:
        """Nothing changes by itself."""

    async def free(self, slot: Slot) -> bool:
        self.freed.append(slot)
        return True


class TestWhoMayHaveOneMore:
    async def opened(self, lanes: ClientQueues, clock: Clock, held: Held) -> ClientSlots:
        slots = ClientSlots(cast("Backend", held), "me", lanes, clock)
        await slots.open()
        return slots

    async def test_is_a_client_below_its_cap_counting_what_is_being_taken(
        self, lanes: ClientQueues, clock: Clock
    ) -> None:
        """GRID-72"""
        slots, room = await self.opened(lanes, clock, Held(1, 3)), Room("1")
        assert [slots.reserve(room) for _ in range(3)] == [True, True, False]
        assert room == Room("1", [], 2)
        slots.drop_missing(room)
        clock.now += 0.5
        slots.unblock()
        assert slots.reserve(room)
        assert room.missing == 1

    async def test_is_a_client_with_a_slot_in_hand_and_at_once(self, lanes: ClientQueues, clock: Clock) -> None:
        """GRID-60: the loop wakes on a freed slot"""
        slots, room = await self.opened(lanes, clock, Held(1, 1)), Room("1")
        lanes.add(A1)
        slots.unblock()
        assert not slots.reserve(room)
        assert is_quiet(lanes)
        lanes.woken.clear()
        slots.used(slot(0))
        assert lanes.woken.is_set()
        slots.unblock()
        assert picked(lanes).queue == A1
        assert slots.reserve(room)
        assert room == Room("1", [slot(0)], 0)

    async def test_is_tried_now_and_then_whatever_is_known(self, lanes: ClientQueues, clock: Clock) -> None:
        """GRID-74: a slot may have been left by a dead process"""
        slots, room = await self.opened(lanes, clock, Held(1, 1)), Room("1")
        assert not slots.reserve(room)
        for _ in range(4):
            clock.now += 0.25
            slots.unblock()
        assert slots.reserve(room)
        assert room.missing == 1

    async def test_is_not_a_client_whose_cap_was_lowered_below_what_it_holds(
        self, lanes: ClientQueues, clock: Clock
    ) -> None:
        """GRID-76: a slot in hand is freed then"""
        held = Held(3, 2)
        slots = await self.opened(lanes, clock, held)
        slots.used(slot(0))
        assert not slots.reserve(Room("1"))
        await slots.settle()
        assert held.freed == [slot(0)]

    async def test_leaves_a_slot_to_other_processes_once_a_second(self, lanes: ClientQueues, clock: Clock) -> None:
        """GRID-61: they may have other programs of the same client"""
        held = Held(1, 1)
        slots = await self.opened(lanes, clock, held)
        lanes.add(A1)
        for _ in range(USES_MAX - 1):
            slots.used(slot(0))
            assert slots.reserve(Room("1"))
        slots.used(slot(0))
        await slots.settle()
        assert held.freed == [slot(0)]
        slots.unblock()
        assert is_quiet(lanes)  # for a moment, though a slot is free
        clock.now = slots.next_due()
        slots.unblock()
        clock.now += 1.0
        slots.unblock()
        assert picked(lanes).queue == A1


class TestASlotThatNoAttemptHas:
    """GRID-75: it is kept while its process takes jobs, and freed otherwise."""

    async def test_is_freed_before_and_after(self, lanes: ClientQueues, clock: Clock) -> None:
        held = Held(1, 9)
        slots = ClientSlots(cast("Backend", held), "me", lanes, clock)
        slots.used(slot(0))
        await slots.settle()
        assert held.freed == [slot(0)]
        await slots.open()
        slots.used(slot(1))
        slots.unused([slot(2)])
        await slots.settle()
        assert held.freed == [slot(0)]
        slots.close()
        slots.used(slot(3))
        await slots.settle()
        assert held.freed == [slot(0), slot(1), slot(2), slot(3)]
