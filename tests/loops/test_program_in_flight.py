"""What a process does for the attempts it answers for, on a real NATS with short timers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs.client_queues import ClientQueues, ClientQueueState
from pyoco_server.loops.programs.meter import Gauges
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueueCounts
from support.grid.in_flight import (
    SHORT,
    ack_timers,
    backend,
    config,
    group,
    has_ended,
    leases,
    rewritten,
    slots_held,
    started,
)
from support.grid.program_stage import DONE, a_stage, a_store, cap, recorded_run, submitted
from support.memory_nats import MemoryServer
from support.servers import config_for, unique
from support.waiting import eventually

__all__ = ["backend", "config", "group"]

pytestmark = pytest.mark.virtual_time


async def counts(backend: Backend) -> ClientQueueCounts | None:
    programs = programs_of(backend)
    (client_queue,) = programs.queue.client_queues(programs.config.exec_group)
    return await programs.queue.counts(client_queue)


class TestALease:
    async def test_is_renewed_and_the_message_held_for_as_long_as_there_are_signs_of_life(
        self, config: NatsBackendConfig
    ) -> None:
        """GRID-12, GRID-56: longer than the ack timer and the lease, and no other process gets the job"""
        async with (
            a_store(ack_timers(config, 1.0), unique("g"), **leases(1.0)) as backend,
            a_stage(backend) as stage,
            a_stage(backend, holder="other") as other,
        ):
            attempt = await started(stage)
            other.give(1)
            run_id, began, beats = attempt.run.run_id, time.monotonic(), set[float]()
            while time.monotonic() - began < 2.0:
                beats.add((await recorded_run(backend, run_id)).heartbeat_at)
                await asyncio.sleep(0.05)
            assert len(beats) > 3
            assert (attempt.delivery and attempt.delivery.count, other.workers.started) == (1, [])
            assert await stage.finish(attempt) is Settlement.RECORDED

    async def test_that_another_has_taken_is_let_go_without_a_word(self, backend: Backend) -> None:
        """GRID-10, GRID-56: no ack, no NAK, no heartbeat; its slot is freed"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            await rewritten(backend, attempt.run.run_id, attempt_id="another")
            await eventually(lambda: stage.gone == [attempt])
            found = await counts(backend)
            assert found is not None
            assert (len(stage.in_flight), found.unacked) == (0, 1)
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
            again = await reattach(backend, run_id, first.attempt_id, worker_id="w1", holder="me")
            assert again is not None
            stage.in_flight.add(again)
            assert (again.delivery, len(stage.in_flight)) == (first.delivery, 1)
            assert stage.in_flight.get(run_id) is again
            assert (first.slot, first.closed) == (None, True)  # a slot has one owner
            await asyncio.sleep(0.4)
            assert stage.gone == []
            assert await stage.in_flight.finish(again, DONE, ()) is Settlement.RECORDED
            found = await counts(backend)
            assert found is not None
            await eventually(lambda: slots_held(backend) == 0)


class TestNoSignOfLife:
    async def test_for_the_ack_timeout_is_a_failed_attempt(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-78, GRID-79, GRID-75"""
        async with a_store(config, group, **SHORT, exec_ack_timeout_sec=0.3) as backend, a_stage(backend) as stage:
            attempt = await started(stage)
            run_id = attempt.run.run_id
            await eventually(lambda: len(stage.in_flight) == 0)
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.attempt, run.program.lost) == (RunState.PENDING, 1, 0)
            assert (stage.in_flight.get(run_id), stage.in_flight.seen(run_id, attempt.attempt_id)) == (None, False)
            await eventually(lambda: slots_held(backend) == 0)

    async def test_is_not_said_of_one_that_is_seen(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-78"""
        async with a_store(config, group, **SHORT, exec_ack_timeout_sec=0.5) as backend, a_stage(backend) as stage:
            attempt = await started(stage)
            run_id, began = attempt.run.run_id, time.monotonic()
            while time.monotonic() - began < 1.2:
                assert stage.in_flight.seen(run_id, attempt.attempt_id)
                await asyncio.sleep(0.02)
            assert not stage.in_flight.seen(run_id, "another token")
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
            await eventually(lambda: has_ended(backend, run_id))
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.program.error_code, run.attempt) == (RunState.FAILED, ErrorCode.MAX_ATTEMPTS, 3)
            first, second = (later - earlier for earlier, later in itertools.pairwise(times))
            assert first >= 0.8 + 0.15
            assert second >= 1.6 + 0.15
            first, second = (_delay_seconds(attempt) for attempt in stage.workers.started[:2])
            assert 0.8 <= first <= 1.2
            assert 1.6 <= second <= 2.4


def _delay_seconds(attempt: ProgramAttempt) -> float:
    """For how long its job was put off."""
    assert attempt.run.program is not None
    assert attempt.run.program.not_before is not None
    return attempt.run.program.not_before - attempt.run.updated_at


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
            await stage.in_flight.put_back(attempt, Why.WORKER_DOWN)
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
        """GRID-79, GRID-60: an idle client queue alone would be looked at much later; after half a minute here"""
        rest = ClientQueues._rest

        def rest_for_long(self: ClientQueues, state: ClientQueueState, came: int) -> None:
            is_idle = not state.quick_looks
            rest(self, state, came)
            if is_idle:
                state.due_at += 30.0
                heapq.heappush(self._due, (state.due_at, next(self._count), state, False))

        monkeypatch.setattr(ClientQueues, "_rest", rest_for_long)
        settings = {**SHORT, "exec_worker_down_delay_sec": 0.1, "exec_max_lost": 100}
        async with a_store(config, group, **settings) as backend, a_stage(backend) as stage:
            await started(stage)
            began = time.monotonic()
            attempt, count = stage.workers.started[-1], len(stage.workers.started)
            stage.workers.ended(attempt)
            await stage.in_flight.put_back(attempt, Why.WORKER_DOWN)
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) > count)
            assert 0.1 <= time.monotonic() - began < 25.0
            await stage.finish(stage.workers.started[-1])

    async def test_is_nobodys_to_count_when_another_answers_for_it_by_now(self, backend: Backend) -> None:
        """GRID-171: as when its worker has moved to another door"""
        async with a_stage(backend) as stage:
            attempt = await started(stage)
            assert await reattach(backend, attempt.run.run_id, attempt.attempt_id, worker_id="w1", holder="another")
            await stage.in_flight.put_back(attempt, Why.WORKER_DOWN)
            assert (len(stage.in_flight), stage.meter.figures(Gauges()).retries) == (0, {})
            run = await recorded_run(backend, attempt.run.run_id)
            assert (run.status, run.attempt_id) == (RunState.RUNNING, attempt.attempt_id)

    async def test_is_put_back_when_the_store_answers_again(
        self, backend: Backend, memory_nats_server: MemoryServer
    ) -> None:
        """GRID-81, GRID-11: never raises"""
        del backend
        config = replace(config_for(memory_nats_server.url), ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)
        async with a_store(config, "g", **SHORT) as mine, a_stage(mine) as stage:
            attempt = await started(stage)
            memory_nats_server.kill()
            await stage.in_flight.put_back(attempt, Why.WORKER_DOWN)
            assert (len(stage.in_flight), stage.in_flight.get(attempt.run.run_id)) == (1, None)
            memory_nats_server.start()
            await eventually(lambda: len(stage.in_flight) == 0)
            run = await recorded_run(mine, attempt.run.run_id)
            assert run.status is RunState.PENDING or run.attempt > 1
