"""The start/stop contract of every loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from pyoco_server.errors import NotStored
from pyoco_server.loops.loop import Loop
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Counting(Loop):
    def __init__(self, every_seconds: float = 0.001, turn_seconds_max: float = 60.0) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=turn_seconds_max)
        self.turns = 0
        self.inside = 0

    async def turn(self) -> None:
        self.inside += 1
        assert self.inside == 1, "two turns at once"
        try:
            self.turns += 1
            await asyncio.sleep(0)
            await self.work()
        finally:
            self.inside -= 1

    async def work(self) -> None: ...


def running() -> set[asyncio.Task[object]]:
    return {each for each in asyncio.all_tasks() if each.get_name() == "Counting"}


async def test_a_loop_takes_turns_from_start_to_stop() -> None:
    loop = Counting()
    await loop.start()
    await eventually(lambda: loop.turns >= 3)
    await loop.stop()
    turns = loop.turns
    await asyncio.sleep(600)
    assert loop.turns == turns
    assert running() == set()


async def test_starting_and_stopping_may_be_repeated_and_left_out() -> None:
    loop = Counting()
    await loop.stop()
    await loop.start()
    await loop.start()
    assert len(running()) == 1
    await loop.stop()
    await loop.stop()
    assert running() == set()
    await loop.start()
    turns = loop.turns
    await eventually(lambda: loop.turns > turns)
    await loop.stop()


async def test_a_thousand_starts_and_stops_leave_nothing_behind() -> None:
    """DESIGN 9.13: before Python 3.12 a cancel may be swallowed; a stop is an event, so none is lost."""
    loop = Counting(every_seconds=10.0)
    for _ in range(1000):
        await loop.start()
        await loop.stop()
    assert running() == set()
    assert loop.turns <= 1000


@pytest.mark.parametrize("seed", range(5))
async def test_ten_tasks_start_and_stop_it_at_random_and_afterwards_nothing_runs(seed: int) -> None:
    """DESIGN 6"""
    chance = random.Random(seed)
    loop = Counting(every_seconds=0.0)

    async def meddle() -> None:
        for _ in range(50):
            call: Callable[[], object] = chance.choice([loop.start, loop.start, loop.stop, loop.nudge])
            answer = call()
            if asyncio.iscoroutine(answer):
                await answer
            await asyncio.sleep(chance.choice([0, 0, 0.0005]))
            assert len(running()) <= 1

    async with asyncio.timeout(200):
        await asyncio.gather(*(meddle() for _ in range(10)))
        await loop.stop()
    assert running() == set()
    assert loop.inside == 0


async def test_one_bad_turn_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Counting):
        async def work(self) -> None:
            if self.turns % 2:
                raise ValueError("a bad turn")

    loop = Failing()
    await loop.start()
    await eventually(lambda: loop.turns >= 5)
    await loop.stop()
    assert "turn failed" in caplog.text


async def test_an_outage_is_a_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class Lonely(Counting):
        async def work(self) -> None:
            raise NotStored("there is no connection to NATS")

    loop = Lonely()
    await loop.start()
    await eventually(lambda: loop.turns >= 2)
    await loop.stop()
    told = {(record.levelname, record.message) for record in caplog.records}
    assert told == {("WARNING", "a store is not available; retrying")}


async def test_a_turn_that_hangs_is_cut_off() -> None:
    class Hanging(Counting):
        async def work(self) -> None:
            await asyncio.sleep(300)

    loop = Hanging(turn_seconds_max=0.02)
    await loop.start()
    await eventually(lambda: loop.turns >= 2)
    began = time.monotonic()
    await loop.stop()
    assert time.monotonic() - began < 60


async def test_a_nudge_brings_the_next_turn_forward_and_a_stop_does_not_wait_for_it() -> None:
    loop = Counting(every_seconds=300.0)
    await loop.start()
    await eventually(lambda: loop.turns == 1)
    loop.nudge()
    await eventually(lambda: loop.turns == 2)
    began = time.monotonic()
    await loop.stop()
    assert time.monotonic() - began < 60
