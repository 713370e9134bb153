"""The native lane: cancelled jobs, lost attempts, shutdown and an outage."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import ObjectInfo, Objects
from pyoco_server.ports.runs.port import Stored
from support.grid.lanes import SHORT, Gauge, a_lane, backend, config, ended, executor, group, slots_held, with_files
from support.grid.pretended_programs import PretendedExecutor
from support.grid.program_stage import a_store, cap, recorded_run, submitted
from support.memory_nats import MemoryServer
from support.servers import config_for, unique
from support.waiting import eventually

__all__ = ["backend", "config", "executor", "group"]

pytestmark = pytest.mark.virtual_time


class TestACancel:
    async def test_stops_the_program_and_keeps_what_it_said(
        self, backend: Backend, executor: PretendedExecutor
    ) -> None:
        """GRID-160, GRID-112, GRID-164"""
        async with a_lane(backend, executor) as lane:
            run_id = await submitted(backend)
            program = await executor.begun()
            await cancel_job(backend, run_id, None, None)
            run = await ended(backend, run_id)
            assert run.program is not None
            assert program.is_cancelled
            assert (run.status, run.program.stdout_tail) == (RunState.CANCELLED, "so far")
            await eventually(lambda: lane.facts["credits"] == 4 and slots_held(backend) == 0)

    async def test_that_comes_too_late_leaves_the_result(self, backend: Backend, executor: PretendedExecutor) -> None:
        """GRID-161"""
        async with a_lane(backend, executor):
            run_id = await submitted(backend)
            (await executor.begun()).end()
            assert (await ended(backend, run_id)).status is RunState.COMPLETED
            assert (await cancel_job(backend, run_id, None, None)).run.status is RunState.COMPLETED


class TestARunThatIsAnothers:
    async def test_is_killed_and_not_reported(self, backend: Backend, executor: PretendedExecutor) -> None:
        """GRID-56, P28"""
        async with a_lane(backend, executor) as lane:
            run_id = await submitted(backend)
            program = await executor.begun()
            while True:
                found = await backend.runs.find(run_id)
                assert isinstance(found, Stored)
                if isinstance(await backend.runs.replace(replace(found.run, attempt_id="x"), found.revision), Stored):
                    break
            await eventually(lambda: program.is_killed and lane.facts["credits"] == 4)
            assert (await recorded_run(backend, run_id)).attempt_id == "x"
            await eventually(lambda: lane.running == ())
            assert (lane.last_status, set(lane.figures().stale.values())) == (None, {0})


class TestTheEnd:
    async def test_lets_programs_finish(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-113"""
        executor = PretendedExecutor()
        async with a_store(config, group, **SHORT | {"worker_drain_sec": 300.0}) as backend:
            lane = ProgramLane(backend, executor, "w1", cpu=Gauge())
            await lane.start()
            run_id = await submitted(backend)
            program = await executor.begun()
            stopping = asyncio.create_task(lane.stop())
            late = await submitted(backend)
            await asyncio.sleep(0.1)
            program.end()
            await stopping
            assert (await recorded_run(backend, run_id)).status is RunState.COMPLETED
            assert (await recorded_run(backend, late)).attempt == 0
            await eventually(lambda: slots_held(backend) == 0)
            await lane.stop()

    async def test_kills_what_takes_longer_and_gives_it_back(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-113, GRID-119: NAK, so that another runs it soon"""
        executor, heir = PretendedExecutor(), PretendedExecutor(ends_at_once=True)
        settings = {**SHORT, "exec_worker_down_delay_sec": 0.1}
        async with a_store(config, group, **settings) as backend:
            lane = ProgramLane(backend, executor, "w1", cpu=Gauge())
            await lane.start()
            run_id = await submitted(backend)
            program = await executor.begun()
            await lane.stop()
            assert program.is_killed
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.attempt, run.program.lost) == (RunState.PENDING, 1, 1)
            await eventually(lambda: slots_held(backend) == 0)
            async with a_lane(backend, heir):
                assert ((await ended(backend, run_id)).status, run.attempt) == (RunState.COMPLETED, 1)

    async def test_gives_back_what_still_waits_for_its_inputs(
        self, config: NatsBackendConfig, group: str, executor: PretendedExecutor
    ) -> None:
        """GRID-113, GRID-119: and does not start it any more"""
        is_asked, may_come = asyncio.Event(), asyncio.Event()

        class Slow:
            def __init__(self, artifacts: Objects) -> None:
                self._artifacts = artifacts

            def __getattr__(self, name: str) -> Any:
                return getattr(self._artifacts, name)

            async def info(self, name: str) -> ObjectInfo:
                is_asked.set()
                await may_come.wait()
                return await self._artifacts.info(name)

        async with a_store(config, group, **SHORT) as backend:
            run_id = await with_files(backend, {"large": bytes(100_000)})
            programs = programs_of(backend)
            slow: Any = Slow(programs.artifacts)
            lane = ProgramLane(
                replace(backend, programs=replace(programs, artifacts=slow)), executor, "w1", cpu=Gauge()
            )
            await lane.start()
            await is_asked.wait()
            stopping = asyncio.create_task(lane.stop(0.0))

            async def is_given_back() -> bool:
                return (await recorded_run(backend, run_id)).status is RunState.PENDING

            await eventually(is_given_back)
            may_come.set()
            await stopping
            assert executor.programs == []
            run = await recorded_run(backend, run_id)
            assert run.program is not None
            assert (run.status, run.attempt, run.program.lost) == (RunState.PENDING, 1, 1)

    async def test_of_a_process_without_a_word_leaves_jobs_that_another_lane_runs(
        self, config: NatsBackendConfig
    ) -> None:
        """GRID-40, GRID-53, GRID-74: several lanes die one after the other, and every job ends once"""
        quick = replace(config, ack_progress_interval_sec=0.2, consumer_ack_wait_sec=1.0)
        settings = SHORT | {"exec_run_heartbeat_sec": 0.1, "exec_lease_fresh_sec": 0.5}
        heir, group = PretendedExecutor(ends_at_once=True), unique("g")
        async with contextlib.AsyncExitStack() as graves:
            backend = await graves.enter_async_context(a_store(quick, group, **settings))
            await cap(backend, "clientA", 8)
            run_ids = [await submitted(backend) for _ in range(8)]
            for number in range(3):
                store = await graves.enter_async_context(a_store(quick, group, **settings, worker_max_par=2))
                executor = PretendedExecutor()
                lane = ProgramLane(store, executor, f"dead-{number}", cpu=Gauge())
                await lane.start()
                await executor.begun(2)
                # kill -9: no heartbeat, no ack, no word about its slots.
                lane._is_closed = True
                await lane.in_flight.stop()
                graves.push_async_callback(lane.stop, 0.0)
            async with a_lane(backend, heir):
                runs = [await ended(backend, run_id) for run_id in run_ids]
                assert {run.status for run in runs} == {RunState.COMPLETED}
                assert sorted(run.attempt for run in runs) == [1, 1, 2, 2, 2, 2, 2, 2]
                await eventually(lambda: slots_held(backend) == 0)


async def test_a_result_is_written_after_an_outage(memory_nats_server: MemoryServer) -> None:
    """GRID-11, GRID-44: the program ended while its result could not be recorded"""
    config = replace(config_for(memory_nats_server.url), ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)
    executor = PretendedExecutor()
    settings = {**SHORT, "exec_run_heartbeat_sec": 0.2}
    async with a_store(config, "g", **settings) as backend, a_lane(backend, executor):
        run_id = await submitted(backend)
        program = await executor.begun()
        memory_nats_server.kill()
        program.end(Report(status=RunState.FAILED, exit_code=3, error_code=ErrorCode.EXIT_NONZERO))
        await asyncio.sleep(0.5)
        memory_nats_server.start()
        run = await ended(backend, run_id)
        assert run.program is not None
        assert (run.status, run.attempt, run.program.exit_code) == (RunState.FAILED, 1, 3)
