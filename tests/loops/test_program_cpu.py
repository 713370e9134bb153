"""When a credit may be given back: clock and machine are made up."""

from __future__ import annotations

import pytest

from pyoco_server.loops.programs.cpu import CpuUse, HeldBack, read_machine


class Machine:
    """A clock, and CPUs whose use is `use` from now on."""

    def __init__(self) -> None:
        self.now, self.busy, self.all, self.use, self.reads = 100.0, 0.0, 0.0, 0.0, 0

    def clock(self) -> float:
        return self.now

    def read(self) -> tuple[int, int]:
        self.reads += 1
        return int(self.busy), int(self.all)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds * 1_000_000 * self.use
        self.all += seconds * 1_000_000


@pytest.fixture
def machine() -> Machine:
    return Machine()


class TestTheUseOfTheMachine:
    def test_is_that_of_the_last_second(self, machine: Machine) -> None:
        """GRID-70, GRID-114"""
        cpu = CpuUse(machine.read, machine.clock)
        machine.use = 1.0
        for _ in range(4):
            machine.pass_by(0.5)
            busy = cpu.share()
        machine.use, shares = 0.0, list[float]()
        for _ in range(3):
            machine.pass_by(0.5)
            shares.append(round(cpu.share(), 3))
        assert (busy, shares) == (1.0, [0.5, 0.0, 0.0])

    def test_is_nothing_as_long_as_nobody_can_know(self, machine: Machine) -> None:
        """GRID-70"""
        assert CpuUse(machine.read, machine.clock).share() == 0.0

    def test_is_read_once_for_many_who_ask_at_once(self, machine: Machine) -> None:
        cpu = CpuUse(machine.read, machine.clock)
        for _ in range(100):
            machine.pass_by(0.001)
            cpu.share()
        assert machine.reads <= 2

    def test_of_this_machine_is_a_share(self) -> None:
        """GRID-114: of the whole machine"""
        busy, total = read_machine()
        assert 0 < busy < total
        assert 0.0 <= CpuUse().share() <= 1.0


class TestACredit:
    def held_back(self, machine: Machine, share: float) -> HeldBack:
        machine.use = share
        return HeldBack(0.75, 30.0, lambda: machine.use, machine.clock)

    def test_comes_back_at_once_on_a_machine_that_has_air(self, machine: Machine) -> None:
        """GRID-70"""
        held = self.held_back(machine, 0.74)
        held.add()
        assert (held.due(), len(held)) == (1, 0)

    def test_waits_on_a_busy_one_until_that_has_air(self, machine: Machine) -> None:
        """GRID-70"""
        held = self.held_back(machine, 0.75)
        held.add()
        held.add()
        assert (held.due(), len(held)) == (0, 2)
        machine.use = 0.5
        assert (held.due(), len(held)) == (2, 0)

    def test_comes_back_anyway_when_it_has_waited_for_long(self, machine: Machine) -> None:
        """GRID-70: after 30 s, so that a machine that is busy for other reasons does not stop for ever"""
        held = self.held_back(machine, 1.0)
        held.add()
        machine.pass_by(29.0)
        held.add()
        assert held.due() == 0
        machine.pass_by(1.0)
        assert (held.due(), len(held)) == (1, 1)
        machine.pass_by(29.0)
        assert (held.due(), len(held)) == (1, 0)
