"""Ticks of schedules: handled by keepers, whatever is lost in between (section 7 of the contract)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pyoco_server.actions.schedules import handle
from pyoco_server.actions.schedules.handle import handle_schedule
from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.core.schedules.progress import paused, resumed
from pyoco_server.core.schedules.record import CatchUp, Overlap, Schedule
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.alarms.port import AlarmKind
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import jobs_left
from support.keepers import keeping
from support.memory_nats import MemoryServer
from support.schedules import end_run, keeping_backend, make_schedule, outcomes, run_of_tick, schedule_now
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


class _Crash(BaseException):
    """The process ends here."""


@pytest.fixture
async def backend(nats_url: str) -> AsyncIterator[Backend]:
    async with keeping_backend(config_for(nats_url)) as backend:
        yield backend


async def _until(backend: Backend, instant: float) -> None:
    await asyncio.sleep(max(0.0, instant - backend.clock()))


async def test_each_tick_has_one_run_with_three_keepers(link: Link, backend: Backend, tmp_path: Path) -> None:
    """SCHED-13, SCHED-14, SCHED-19"""
    what = {"kind": "flow", "flow_name": "f", "params": {"day": "{{ scheduled_time.unix }}"}, "tags": ["x"]}
    async with keeping(backend, tmp_path, count=3):
        schedule = await make_schedule(backend, what=what, overlap=Overlap.ALLOW)
        first = schedule.next_at
        assert first is not None
        await _until(backend, first + 120.5)
        ticks = [first, first + 60, first + 120]
        assert await outcomes(backend) == [(tick, "run", None) for tick in ticks]
        for tick, entry in zip(ticks, (await schedule_now(backend)).tail, strict=True):
            run = await run_of_tick(backend, schedule, tick)
            assert run is not None
            assert run.params == {"day": tick}
            assert run.tags == ("x", "schedule:nightly")
            assert run.schedule == {"id": schedule.id, "name": "nightly", "tick": tick, "source": "tick"}
            assert entry.run_id == run.run_id
            assert 0 <= entry.handled_at - tick < 0.5
    assert len(await jobs_left(link, backend.config)) == 3
    assert schedule.key in await backend.alarms.known(AlarmKind.SCHEDULE)


async def test_jitter_delays_the_run_and_not_the_tick(backend: Backend, tmp_path: Path) -> None:
    """SCHED-6"""
    async with keeping(backend, tmp_path):
        schedule = await make_schedule(backend, jitter=600.0)
        assert schedule.next_at is not None
        await _until(backend, schedule.next_at + 1)
        run = await run_of_tick(backend, schedule, schedule.next_at)
        assert run is not None
        assert run.waits_for == "scheduled"
        (entry,) = (await schedule_now(backend)).tail
        assert run.not_before == entry.due_at > schedule.next_at


@pytest.mark.parametrize(
    ("policy", "source"), [(CatchUp.NONE, []), (CatchUp.LAST, ["catch_up"]), (CatchUp.ALL, ["catch_up"] * 3)]
)
async def test_ticks_while_nobody_was_there_follow_the_policy(
    backend: Backend, tmp_path: Path, policy: CatchUp, source: list[str]
) -> None:
    """SCHED-16"""
    schedule = await make_schedule(backend, catch_up=policy, overlap=Overlap.ALLOW)
    assert schedule.next_at is not None
    await _until(backend, schedule.next_at + 150)
    async with keeping(backend, tmp_path):
        await asyncio.sleep(2.5)
        tail = (await schedule_now(backend)).tail
        assert [each.source.value for each in tail if each.outcome == "run"] == source
        assert len(tail) == 3


@pytest.mark.parametrize(("policy", "runs"), [(CatchUp.NONE, 0), (CatchUp.LAST, 1), (CatchUp.ALL, 3)])
async def test_an_outage_of_nats_follows_the_policy(
    memory_nats_server: MemoryServer, tmp_path: Path, policy: CatchUp, runs: int
) -> None:
    """SCHED-16: 20 s away, under ticks of 4 s."""
    async with (
        keeping_backend(config_for(memory_nats_server.url)) as backend,
        keeping(backend, tmp_path, count=2),
    ):
        schedule = await make_schedule(backend, when={"every": 4}, catch_up=policy, overlap=Overlap.ALLOW)
        assert schedule.next_at is not None
        await _until(backend, schedule.next_at + 5.5)
        memory_nats_server.kill()
        await asyncio.sleep(20)
        memory_nats_server.start()
        await asyncio.sleep(15)
        tail = (await schedule_now(backend)).tail
        entries = {each.tick: each for each in tail}
        assert sorted(entries) == [schedule.next_at + 4 * n for n in range(len(entries))]
        assert len(entries) == len(tail) >= 9
        missed = [each for each in tail if each.reason == "missed"]
        caught_up = [each for each in tail if each.source == "catch_up"]
        assert all(each.outcome == "run" for each in tail if each not in missed)
        assert (policy is CatchUp.ALL) == (missed == [])
        assert (len(caught_up) >= 3) if policy is CatchUp.ALL else (len(caught_up) == runs)


async def test_a_run_that_has_not_ended_skips_the_tick_or_makes_it_wait(backend: Backend, tmp_path: Path) -> None:
    """SCHED-17"""
    async with keeping(backend, tmp_path, count=2):
        skips = await make_schedule(backend, "skips", overlap=Overlap.SKIP)
        waits = await make_schedule(backend, "waits", overlap=Overlap.QUEUE_ALL)
        first = waits.next_at
        assert first is not None
        await _until(backend, first + 121)
        assert [what for _, what, _ in await outcomes(backend, "skips")] == ["run", "skipped", "skipped"]
        assert [each.tick for each in (await schedule_now(backend, "waits")).waiting] == [first + 60, first + 120]
        run = await run_of_tick(backend, waits, first)
        assert run is not None
        began = backend.clock()
        await end_run(backend, run.run_id)

        async def has_started() -> bool:
            return await run_of_tick(backend, waits, first + 60) is not None

        await eventually(has_started)
        assert backend.clock() - began < 0.5
        assert [each.tick for each in (await schedule_now(backend, "waits")).waiting] == [first + 120]
        assert skips.key != waits.key


async def test_cancel_old_cancels_the_run_and_starts_the_newest_tick(backend: Backend, tmp_path: Path) -> None:
    """SCHED-17"""
    async with keeping(backend, tmp_path):
        schedule = await make_schedule(backend, overlap=Overlap.CANCEL_OLD)
        first = schedule.next_at
        assert first is not None
        await _until(backend, first + 60.5)
        run = await run_of_tick(backend, schedule, first)
        assert run is not None
        # The keeper concludes a cancelled run that no worker holds.

        async def is_replaced() -> bool:
            return await run_of_tick(backend, schedule, first + 60) is not None

        await eventually(is_replaced, 30)
        run = await run_of_tick(backend, schedule, first)
        assert run is not None
        assert run.status is RunState.CANCELLED


async def test_a_paused_schedule_does_nothing_and_does_not_catch_up(backend: Backend, tmp_path: Path) -> None:
    """SCHED-18"""
    async with keeping(backend, tmp_path):
        schedule = await make_schedule(backend)
        await _changed(backend, lambda found: paused(found, "maintenance", backend.clock()))
        await asyncio.sleep(180)
        assert await outcomes(backend) == []
        await _changed(backend, lambda found: resumed(found, backend.clock()))
        next_at = (await schedule_now(backend)).next_at
        assert next_at is not None
        await _until(backend, next_at + 0.5)
        assert await outcomes(backend) == [(next_at, "run", None)]
        assert schedule.next_at != next_at


async def _changed(backend: Backend, change: Any) -> None:
    schedules = scheduling_of(backend).schedules
    kept = await schedules.find("=nightly")
    assert kept is not None
    assert await schedules.replace(change(kept.schedule), kept) is not None


async def test_a_lost_alarm_delays_a_tick_by_seconds(link: Link, backend: Backend, tmp_path: Path) -> None:
    async with keeping(backend, tmp_path):
        schedule = await make_schedule(backend)

        async def is_set() -> bool:
            return schedule.key in await backend.alarms.known(AlarmKind.SCHEDULE)

        await eventually(is_set)
        await link.api(f"STREAM.PURGE.{backend.config.clock_stream}", {}, dict)
        assert schedule.next_at is not None
        await _until(backend, schedule.next_at + 4)
        assert await outcomes(backend) == [(schedule.next_at, "run", None)]
        await eventually(is_set)


@pytest.mark.parametrize("step", ["submit", "note"])
async def test_a_crash_between_two_steps_is_completed_by_the_next_keeper(
    link: Link, backend: Backend, tmp_path: Path, step: str
) -> None:
    """SCHED-13: between the decision and the run, and between the run and its entry."""
    schedule = await make_schedule(backend)
    assert schedule.next_at is not None
    await _until(backend, schedule.next_at + 0.1)
    crash = patch.object(handle, {"submit": "start_tick", "note": "_note"}[step], side_effect=_Crash)
    with crash, pytest.raises(_Crash):
        await handle_schedule(backend, schedule.key)
    left = await schedule_now(backend)
    assert (len(left.starting), left.tail) == (1, ())
    async with keeping(backend, tmp_path, count=2):
        await asyncio.sleep(11)
        assert await outcomes(backend) == [(schedule.next_at, "run", None)]
    assert {each["body"]["run_id"] for each in await jobs_left(link, backend.config)} == {
        (await schedule_now(backend)).tail[0].run_id
    }


async def test_a_store_that_fails_leaves_the_decision_for_later(backend: Backend) -> None:
    schedule = await make_schedule(backend)
    assert schedule.next_at is not None
    await _until(backend, schedule.next_at + 0.1)
    with patch.object(backend.queue, "put", side_effect=Unavailable("away")), pytest.raises(Unavailable):
        await handle_schedule(backend, schedule.key)
    assert len((await schedule_now(backend)).starting) == 1
    await handle_schedule(backend, schedule.key)
    assert [what for _, what, _ in await outcomes(backend)] == ["run"]


async def test_a_revoked_key_refuses_the_tick(backend: Backend) -> None:
    """SCHED-14"""
    schedule = await make_schedule(backend, tenant_id="a")
    await _rewritten(backend, schedule)
    assert schedule.next_at is not None
    await _until(backend, schedule.next_at + 0.1)
    await handle_schedule(backend, schedule.key)
    (entry,) = (await schedule_now(backend, tenant_id="a")).tail
    assert (entry.outcome, entry.err_id, entry.run_id) == ("refused", "ERR-PYOCO-0015", None)
    assert entry.message
    assert entry.message_ja
    assert await run_of_tick(backend, schedule, schedule.next_at) is None


async def _rewritten(backend: Backend, schedule: Schedule) -> None:
    schedules = scheduling_of(backend).schedules
    kept = await schedules.find(schedule.key)
    assert kept is not None
    assert await schedules.replace(replace(schedule, api_key_id="0123456789abcdef"), kept) is not None
