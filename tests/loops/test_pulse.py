"""The pulse: when attempts in flight are kept alive, and what it hears."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.attempt import Standing
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.loops.pulse import Live, Pulse, Rhythm

pytestmark = pytest.mark.virtual_time


class Attempt(Live):
    """Notes what is done for it; its store answers as told."""

    def __init__(self, rhythm: Rhythm) -> None:
        super().__init__(rhythm)
        self.standing = Standing.OURS
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_claimed = True
        self.begun = self.beats = self.holds = self.cancels = self.fences = 0

    @property
    def run_id(self) -> str:
        return "r"

    @property
    def is_executing(self) -> bool:
        return self.is_claimed

    async def hold(self) -> None:
        if self.error is not None:
            raise self.error
        self.holds += 1

    async def beat(self) -> Standing:
        self.begun += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        self.beats += 1
        return self.standing

    async def on_cancel(self) -> None:
        self.cancels += 1

    def on_fenced(self) -> None:
        self.fences += 1


@contextlib.asynccontextmanager
async def beating(*attempts: Attempt, pulse: Pulse | None = None) -> AsyncIterator[Pulse]:
    pulse = pulse or Pulse()
    await pulse.start()
    for each in attempts:
        pulse.begin(each)
    try:
        yield pulse
    finally:
        await pulse.stop()


async def test_deliveries_and_leases_are_renewed_at_their_own_intervals_until_the_end() -> None:
    """FLOW-313, FLOW-349, GRID-56"""
    attempt = Attempt(Rhythm(beat=1.0, hold=10.0))
    async with beating(attempt) as pulse:
        await asyncio.sleep(60)
        assert 57 <= attempt.beats <= 63
        assert 5 <= attempt.holds <= 7
        pulse.end(attempt)
        before = attempt.beats, attempt.holds
        await asyncio.sleep(60)
        assert (attempt.beats, attempt.holds) == before


async def test_a_delivery_is_held_before_its_run_is_claimed_and_writes_nothing() -> None:
    """FLOW-314"""
    attempt = Attempt(Rhythm(beat=1.0, hold=2.0))
    attempt.is_claimed = False
    async with beating(attempt):
        await asyncio.sleep(20)
    assert attempt.beats == 0
    assert attempt.holds >= 9


async def test_a_fenced_attempt_is_told_once_and_neither_held_nor_renewed() -> None:
    """FLOW-311, GRID-56"""
    attempt = Attempt(Rhythm(beat=1.0, hold=1.0))
    attempt.standing = Standing.FENCED
    async with beating(attempt):
        await asyncio.sleep(1.2)
        holds = attempt.holds
        await asyncio.sleep(30)
    assert (attempt.is_fenced, attempt.fences, attempt.beats, attempt.holds) == (True, 1, 1, holds)


async def test_a_cancel_request_is_heard_at_each_heartbeat_and_at_once_if_told_to_look() -> None:
    """FLOW-180, GRID-160"""
    attempt = Attempt(Rhythm(beat=10.0))
    attempt.standing = Standing.CANCEL_REQUESTED
    async with beating(attempt) as pulse:
        pulse.beat_now(attempt)
        await asyncio.sleep(0.1)
        assert attempt.cancels == 1
        await asyncio.sleep(30)
        assert 3 <= attempt.cancels <= 5


@pytest.mark.parametrize("error", [Unavailable("injected"), Corrupt("injected"), ValueError("a defect")])
async def test_a_heartbeat_that_fails_is_repeated_sooner_than_the_next(error: Exception) -> None:
    attempt = Attempt(Rhythm(beat=20.0, beat_again=1.0))
    attempt.error = error
    async with beating(attempt):
        await asyncio.sleep(35)
        assert attempt.begun >= 2
        attempt.error = None
        await asyncio.sleep(10)
        assert attempt.beats == 1
        assert not attempt.is_fenced


async def test_a_lease_ends_by_itself_when_no_heartbeat_succeeds() -> None:
    """PRICED-123: also while one is under way."""
    attempt = Attempt(Rhythm(beat=5.0, beat_again=1.0, lease=20.0))
    async with beating(attempt):
        await asyncio.sleep(60)
        assert not attempt.is_fenced
        attempt.answers.clear()
        await asyncio.sleep(14)
        assert not attempt.is_fenced
        await asyncio.sleep(12)
        assert attempt.fences == 1
        attempt.answers.set()


async def test_after_a_suspension_nothing_is_held_before_a_heartbeat_shows_the_owner() -> None:
    """GRID-10"""
    skipped = 0.0
    attempt = Attempt(Rhythm(beat=1.0, hold=2.0))
    async with beating(attempt, pulse=Pulse(lambda: asyncio.get_running_loop().time() + skipped)):
        await asyncio.sleep(5)
        attempt.answers.clear()
        skipped, holds = 600.0, attempt.holds
        await asyncio.sleep(10)
        assert (attempt.is_unverified, attempt.holds) == (True, holds)
        attempt.answers.set()
        await asyncio.sleep(5)
        assert not attempt.is_unverified
        assert attempt.holds > holds


async def test_thousands_of_attempts_write_a_few_heartbeats_at_the_same_time_and_all_get_their_turn() -> None:
    attempts = [Attempt(Rhythm(beat=10.0)) for _ in range(1000)]
    for each in attempts:
        each.answers.clear()
    async with beating(*attempts) as pulse:
        renewing = asyncio.create_task(pulse.beat_all())
        await asyncio.sleep(1)
        assert sum(each.begun for each in attempts) == 32
        for each in attempts:
            each.answers.set()
        await renewing
        assert all(each.beats for each in attempts)


async def test_at_rest_no_heartbeat_is_under_way_even_if_its_store_does_not_answer() -> None:
    attempt = Attempt(Rhythm(beat=1.0))
    async with beating(attempt) as pulse:
        attempt.answers.clear()
        await asyncio.sleep(2)
        await pulse.end_at_rest(attempt, 2.0)
        assert (attempt.begun, attempt.beats) == (1, 0)
        assert attempt.beating is not None
        assert attempt.beating.done()
