"""What a process does for the attempts it answers for, on a real NATS with short timers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.attempt import Attempt
from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs.lanes import Lanes, LaneState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import LaneCounts
from pyoco_server.ports.runs.port import Stored
from support.grid.program_stage import DONE, Stage, Workers, a_stage, a_store, cap, recorded_run, submitted
from support.servers import NatsServer, config_for, unique
from support.unhurried import unhurried
from support.waiting import eventually, soon

#: Heartbeats are waited for. A lease that ends is not, but where a test is about that.
SHORT: dict[str, Any] = {"exec_run_heartbeat_sec": 0.1, "exec_lease_fresh_sec": 60.0}


def leases(scale: float) -> dict[str, Any]:
    """Short ones, too."""
    return {"exec_run_heartbeat_sec": 0.1 * scale, "exec_lease_fresh_sec": 0.5 * scale}


def ack_timers(config: NatsBackendConfig, scale: float) -> NatsBackendConfig:
    return replace(config, ack_progress_interval_sec=0.2 * scale, consumer_ack_wait_sec=scale)


@pytest.fixture
def group() -> str:
    return unique("g")


@pytest.fixture
def config(config: NatsBackendConfig) -> NatsBackendConfig:
    return replace(config, ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)


@pytest.fixture
async def backend(config: NatsBackendConfig, group: str) -> AsyncIterator[Backend]:
    async with a_store(config, group, **SHORT) as backend:
        yield backend


async def started(stage: Stage) -> Attempt:
    """A job that a worker has."""
    run_id = await submitted(stage.backend)
    stage.give(1)
    await eventually(lambda: run_id in stage.workers.running)
    return stage.workers.running[run_id]


async def counts(backend: Backend) -> LaneCounts | None:
    programs = programs_of(backend)
    (lane,) = programs.queue.lanes(programs.config.exec_group)
    return await programs.queue.counts(lane)


def slots_held(backend: Backend) -> int:
    programs = programs_of(backend)
    return sum(map(len, programs.slots.all_held(programs.config.exec_group).values()))


async def rewritten(backend: Backend, run_id: str, **changes: Any) -> Run:
    """Somebody else writes the record."""
    while True:
        found = await backend.runs.find(run_id)
        assert isinstance(found, Stored)
        program = found.run.program
        assert program is not None
        holder = changes.get("holder", program.holder)
        plain = {name: value for name, value in changes.items() if name != "holder"}
        written = await backend.runs.replace(
            replace(found.run, program=replace(program, holder=holder), **plain), found.revision
        )
        if isinstance(written, Stored):
            return written.run


class TestALease:
    async def test_is_renewed_and_the_message_held_for_as_long_as_there_are_signs_of_life(
        self, config: NatsBackendConfig
    ) -> None:
        """GRID-12, GRID-56: longer than the ack timer and the lease, and nobody else gets the job"""

        async def scene(scale: float) -> None:
            async with (
                a_store(ack_timers(config, scale), unique("g"), **leases(scale)) as backend,
                a_stage(backend) as stage,
                a_stage(backend, holder="other") as other,
            ):
                attempt = await started(stage)
                other.give(1)
                run_id, began, beats = attempt.run.run_id, time.monotonic(), set[float]()
                while time.monotonic() - began < 2.0 * scale:
                    beats.add((await recorded_run(backend, run_id)).heartbeat_at)
                    await asyncio.sleep(0.05)
                assert len(beats) > 3
                assert (attempt.delivery and attempt.delivery.count, other.workers.started) == (1, [])
                assert await stage.finish(attempt) is Settlement.RECORDED

        await unhurried(scene)

    async def test_that_another_has_taken_is_let_go_without_a_word(self, backend: Backend) -> None:
        """GRID-10, GRID-56: no ack, no NAK, no heartbeat; its slot is freed"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            await rewritten(backend, attempt.run.run_id, attempt_id="another")
            await eventually(lambda: stage.gone == [attempt])
            found = await counts(backend)
            assert found is not None
            assert (len(stage.holdings), found.unacked) == (0, 1)
            await eventually(lambda: slots_held(backend) == 0)
            assert (await recorded_run(backend, attempt.run.run_id)).attempt_id == "another"
            assert await stage.finish(attempt) is Settlement.STALE

    async def test_that_lives_on_with_another_holder_keeps_its_slot(self, backend: Backend) -> None:
        """GRID-56, GRID-110"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            await rewritten(backend, attempt.run.run_id, holder="another door")
            await eventually(lambda: stage.gone == [attempt])
            await asyncio.sleep(0.3)
            assert slots_held(backend) == 1

    async def test_of_a_worker_that_came_back_is_answered_for_with_the_same_message_and_slot(
        self, backend: Backend
    ) -> None:
        """GRID-110: over another connection to the same door"""
        async with a_stage(backend) as stage:
            first = await started(stage)
            run_id = first.run.run_id
            again = await reattach(backend, run_id, first.token, worker_id="w1", holder="me")
            assert again is not None
            stage.holdings.add(again)
            assert (again.delivery, len(stage.holdings)) == (first.delivery, 1)
            assert stage.holdings.get(run_id) is again
            await asyncio.sleep(0.4)
            assert stage.gone == []
            assert await stage.holdings.finish(again, DONE, ()) is Settlement.RECORDED
            found = await counts(backend)
            assert found is not None
            await eventually(lambda: slots_held(backend) == 0)


class TestNoSignOfLife:
    async def test_for_the_ack_timeout_is_a_failed_attempt(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-78, GRID-79, GRID-75"""
        async with a_store(config, group, **SHORT, exec_ack_timeout_sec=0.3) as backend, a_stage(backend) as stage:
            attempt = await started(stage)
            run_id = attempt.run.run_id
            await eventually(lambda: len(stage.holdings) == 0)
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.attempt, run.program.lost) == (RunState.PENDING, 1, 0)
            assert (stage.holdings.get(run_id), stage.holdings.seen(run_id, attempt.token)) == (None, False)
            await eventually(lambda: slots_held(backend) == 0)

    async def test_is_not_said_of_one_that_is_seen(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-78"""
        async with a_store(config, group, **SHORT, exec_ack_timeout_sec=0.5) as backend, a_stage(backend) as stage:
            attempt = await started(stage)
            run_id, began = attempt.run.run_id, time.monotonic()
            while time.monotonic() - began < 1.2:
                assert stage.holdings.seen(run_id, attempt.token)
                await asyncio.sleep(0.02)
            assert not stage.holdings.seen(run_id, "another token")
            assert await stage.finish(attempt) is Settlement.RECORDED

    async def test_again_and_again_waits_longer_each_time_and_ends_the_job(
        self, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-79, GRID-80, P9: 1 and 2 s ±20%, then FAILED"""
        times: list[float] = []
        settings = {**SHORT, "exec_ack_timeout_sec": 0.15, "exec_max_attempts": 3}
        async with a_store(config, group, **settings) as backend, a_stage(backend, count=9) as stage:
            stage.workers.on_start = lambda _: times.append(time.monotonic())
            run_id = await submitted(backend)
            await eventually(lambda: _has_ended(backend, run_id))
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.program.error_code, run.attempt) == (RunState.FAILED, ErrorCode.MAX_ATTEMPTS, 3)
            first, second = (later - earlier for earlier, later in itertools.pairwise(times))
            assert first >= 0.8 + 0.15
            assert second >= 1.6 + 0.15
            first, second = (_delay_seconds(attempt) for attempt in stage.workers.started[:2])
            assert 0.8 <= first <= 1.2
            assert 1.6 <= second <= 2.4


def _delay_seconds(attempt: Attempt) -> float:
    """For how long its job was put off."""
    assert attempt.run.program is not None
    assert attempt.run.program.not_before is not None
    return attempt.run.program.not_before - attempt.run.updated_at


async def _has_ended(backend: Backend, run_id: str) -> bool:
    return (await recorded_run(backend, run_id)).is_terminal


async def _have_ended(backend: Backend, run_ids: list[str]) -> bool:
    return all([await _has_ended(backend, run_id) for run_id in run_ids])


class TestACancel:
    async def test_reaches_the_holder_at_once_and_once(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-160: by the hint; the heartbeat alone would take minutes here"""
        settings = {"exec_run_heartbeat_sec": 200.0, "exec_lease_fresh_sec": 800.0}
        patient = replace(config, consumer_ack_wait_sec=900.0)
        async with a_store(patient, group, **settings) as backend, a_stage(backend) as stage:
            attempt = await started(stage)
            for _ in range(3):
                await cancel_job(backend, attempt.run.run_id, None, "enough")
            await eventually(lambda: stage.cancelled == [attempt])
            report = Report(status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED)
            assert await stage.finish(attempt, report) is Settlement.RECORDED
            assert (await recorded_run(backend, attempt.run.run_id)).status is RunState.CANCELLED
            assert stage.cancelled == [attempt]
            await eventually(lambda: slots_held(backend) == 0)

    async def test_is_seen_at_the_next_heartbeat_when_every_hint_is_lost(self, backend: Backend) -> None:
        """GRID-160"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            run_id = attempt.run.run_id
            asked = await rewritten(backend, run_id, status=RunState.CANCELLING, cancel_requested_at=1.0)
            await eventually(lambda: len(stage.cancelled) > 0)

            async def has_beaten() -> bool:
                return (await recorded_run(backend, run_id)).heartbeat_at > asked.heartbeat_at + 0.4

            await eventually(has_beaten)
            assert stage.cancelled == [attempt]
            assert await stage.finish(attempt) is Settlement.RECORDED


class TestAnAttemptThatIsPutBack:
    async def test_is_tried_again_in_time_and_its_slot_is_free(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-81"""
        async with (
            a_store(config, group, **SHORT, exec_worker_down_delay_sec=0.2) as backend,
            a_stage(backend) as stage,
        ):
            await cap(backend, "clientA", 1)
            attempt = await started(stage)
            await stage.holdings.put_back(attempt, Why.WORKER_DOWN)
            stage.workers.ended(attempt)
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 2)
            again = stage.workers.started[1]
            assert again.run.program is not None
            assert (again.run.attempt, again.run.program.lost) == (2, 1)
            assert await stage.finish(again) is Settlement.RECORDED

    async def test_is_started_when_its_time_has_come_and_not_when_an_idle_lane_is_looked_at(
        self, config: NatsBackendConfig, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GRID-79, GRID-60: an idle lane alone would be looked at much later; after half a minute here"""
        rest = Lanes._rest

        def rest_for_long(self: Lanes, state: LaneState, came: int) -> None:
            is_idle = not state.quick_looks
            rest(self, state, came)
            if is_idle:
                state.due_at += 30.0
                heapq.heappush(self._due, (state.due_at, next(self._count), state, False))

        monkeypatch.setattr(Lanes, "_rest", rest_for_long)
        settings = {**SHORT, "exec_worker_down_delay_sec": 0.1, "exec_max_lost": 100}
        async with a_store(config, group, **settings) as backend, a_stage(backend) as stage:
            await started(stage)

            async def again() -> None:
                attempt, count = stage.workers.started[-1], len(stage.workers.started)
                stage.workers.ended(attempt)
                await stage.holdings.put_back(attempt, Why.WORKER_DOWN)
                stage.give(1)
                await eventually(lambda: len(stage.workers.started) > count)

            await soon(again, 25.0, least=0.1)
            await stage.finish(stage.workers.started[-1])

    async def test_is_nobodys_to_count_when_another_answers_for_it_by_now(self, backend: Backend) -> None:
        """GRID-171: as when its worker has moved to another door"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            told: list[Attempt] = []
            stage.holdings.on_put_back = told.append
            assert await reattach(backend, attempt.run.run_id, attempt.token, worker_id="w1", holder="another")
            await stage.holdings.put_back(attempt, Why.WORKER_DOWN)
            assert (len(stage.holdings), told) == (0, [])
            run = await recorded_run(backend, attempt.run.run_id)
            assert (run.status, run.attempt_id) == (RunState.RUNNING, attempt.token)

    async def test_is_put_back_when_the_store_answers_again(
        self, backend: Backend, own_nats_server: NatsServer
    ) -> None:
        """GRID-81, GRID-11: never raises"""
        del backend
        config = replace(config_for(own_nats_server.url), ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)
        async with a_store(config, "g", **SHORT) as mine, a_stage(mine) as stage:
            attempt = await started(stage)
            own_nats_server.kill()
            await stage.holdings.put_back(attempt, Why.WORKER_DOWN)
            assert (len(stage.holdings), stage.holdings.get(attempt.run.run_id)) == (1, None)
            own_nats_server.start()
            await eventually(lambda: len(stage.holdings) == 0)
            run = await recorded_run(mine, attempt.run.run_id)
            assert run.status is RunState.PENDING or run.attempt > 1


class TestAnOutage:
    async def test_is_waited_out_without_a_claim(self, backend: Backend) -> None:
        """GRID-44: it stops claiming, and begins again by itself"""
        async with a_stage(backend) as stage:
            await stage.quorum.stop()
            stage.quorum.is_quorate = False
            run_id = await submitted(backend)
            stage.give(1)
            await asyncio.sleep(0.3)
            assert ((await recorded_run(backend, run_id)).attempt, stage.workers.credits) == (0, 1)
            await stage.quorum.start()
            await eventually(lambda: run_id in stage.workers.running)
            await stage.finish(stage.workers.running[run_id])

    async def test_stops_claims_and_is_lived_through_without_a_second_start(self, own_nats_server: NatsServer) -> None:
        """GRID-44, P16: longer than lease and ack timer; the first answers are heartbeats, and leases count as fresh"""

        async def scene(scale: float) -> None:
            config = replace(
                config_for(own_nats_server.url),
                ack_progress_interval_sec=0.2 * scale,
                consumer_ack_wait_sec=2.0 * scale,
            )
            settings = {"exec_run_heartbeat_sec": 0.2 * scale, "exec_lease_fresh_sec": 1.5 * scale}
            group = unique("g")
            async with (
                a_store(config, group, **settings) as one,
                a_store(config, group, **settings) as two,
                a_stage(one) as stage,
                a_stage(two, holder="other") as other,
            ):
                attempt = await started(stage)
                heard: list[bool] = []
                stage.holdings.on_quorum = heard.append
                for quorum in (stage.quorum, other.quorum):
                    quorum._lost_seconds *= scale
                other.give(1)
                own_nats_server.kill()
                await eventually(lambda: not (stage.holdings.is_quorate or other.holdings.is_quorate))
                await asyncio.sleep(2.0 * scale)
                own_nats_server.start()
                await eventually(lambda: stage.holdings.is_quorate and other.holdings.is_quorate)
                assert programs_of(two).grace.covers(two.clock())
                assert heard == [False, True]
                began = time.monotonic()
                while time.monotonic() - began < 2.5 * scale:
                    assert other.workers.started == []
                    await asyncio.sleep(0.05)
                assert await stage.finish(attempt) is Settlement.RECORDED
                run = await recorded_run(one, attempt.run.run_id)
                assert (run.status, run.attempt) == (RunState.COMPLETED, 1)
                run_id = await submitted(one)
                await eventually(lambda: run_id in other.workers.running or run_id in stage.workers.running)

        await unhurried(scene)


class TestAProcessThatSlept:
    async def test_asks_of_each_attempt_before_it_says_a_word(self, backend: Backend) -> None:
        """GRID-10, GRID-56, P28: what was taken over meanwhile is dropped, and what was not goes on"""
        async with a_stage(backend) as stage:
            lost, kept = await started(stage), await started(stage)
            words: list[str] = []
            assert lost.delivery is not None

            async def hold() -> None:
                words.append("hold")

            lost.delivery = _Muted(lost.delivery, hold)
            await eventually(lambda: "hold" in words)
            async with lost.lock, kept.lock:  # no heartbeat gets through: the process is stopped
                await rewritten(backend, lost.run.run_id, attempt_id="another")
                words.clear()
                stage.clock.slept += 60.0
                await asyncio.sleep(0.5)
                assert words == []
            await eventually(lambda: stage.gone == [lost])
            assert words == []
            assert stage.holdings.get(kept.run.run_id) is kept  # its signs of life may lie in a socket, unread
            assert await stage.finish(kept) is Settlement.RECORDED


class _Muted:
    """A delivery that tells who holds it."""

    def __init__(self, delivery: Any, hold: Any) -> None:
        self._delivery, self.hold = delivery, hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)


class TestADeadProcess:
    async def test_leaves_jobs_that_another_runs_and_slots_that_another_takes(self, config: NatsBackendConfig) -> None:
        """GRID-40, GRID-74, GRID-53 step 6: within a lease and an ack timer"""

        async def scene(scale: float) -> None:
            quick, group = ack_timers(config, scale), unique("g")
            async with (
                a_store(quick, group, **leases(scale)) as doomed,
                a_store(quick, group, **leases(scale)) as backend,
            ):
                await cap(backend, "clientA", 2)
                run_ids = [await submitted(backend) for _ in range(4)]
                dead = Stage(doomed, Workers(2), "dead")
                await dead.start()
                await eventually(lambda: len(dead.workers.running) == 2)
                # As kill -9 does: no word to anybody from here on.
                dead.workers.credits = 0
                await dead.holdings.stop()
                async with a_stage(backend, count=4, holder="living") as living:
                    living.runs_everything()
                    await eventually(lambda: _have_ended(backend, run_ids))
                    assert all([(await recorded_run(backend, each)).status is RunState.COMPLETED for each in run_ids])
                    assert living.workers.tally.most["clientA"] <= 2
                    for attempt in dead.workers.started:
                        assert await dead.holdings.finish(attempt, DONE, ()) is Settlement.STALE
                    await eventually(lambda: slots_held(backend) == 0)
                await dead.dispatcher.stop()

        await unhurried(scene)
