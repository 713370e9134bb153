"""The native lane on a real NATS, with programs that end when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.job import InputFile, JobAsk
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import ProgramWork
from pyoco_server.loops.programs.cpu import CpuUse
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import ObjectInfo, Objects
from pyoco_server.ports.runs.port import Stored
from support.grid.pretended_programs import DONE, PretendedExecutor, an_archive_file
from support.grid.program_stage import Tally, a_stage, a_store, cap, recorded_run, submitted
from support.servers import NatsServer, config_for, unique
from support.unhurried import unhurried
from support.waiting import eventually

#: Heartbeats are waited for. A lease that ends is not, but where a test is about that.
SHORT: dict[str, Any] = {"exec_run_heartbeat_sec": 0.1, "exec_lease_fresh_sec": 60.0, "worker_drain_sec": 0.3}


class Gauge(CpuUse):
    """A machine that is as busy as a test says."""

    now = 0.0

    def share(self) -> float:
        return self.now


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


@pytest.fixture
def executor() -> PretendedExecutor:
    return PretendedExecutor()


@contextlib.asynccontextmanager
async def a_lane(
    backend: Backend, executor: PretendedExecutor, *patterns: str, gauge: Gauge | None = None
) -> AsyncIterator[ProgramLane]:
    lane = ProgramLane(backend, executor, "w1", patterns or ("job.assign.*",), cpu=gauge or Gauge())
    await lane.start()
    try:
        yield lane
    finally:
        for program in executor.programs:
            program.end()
        await lane.stop()


async def has_ended(backend: Backend, run_id: str) -> bool:
    return (await recorded_run(backend, run_id)).is_terminal


async def ended(backend: Backend, run_id: str) -> Run:
    await eventually(lambda: has_ended(backend, run_id))
    return await recorded_run(backend, run_id)


def slots_held(backend: Backend) -> int:
    programs = programs_of(backend)
    return sum(map(len, programs.slots.all_held(programs.config.exec_group).values()))


async def with_files(backend: Backend, files: Mapping[str, bytes]) -> str:
    import hashlib

    inputs = tuple(InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items())
    ask = JobAsk(
        job_id=backend.new_id(),
        group=programs_of(backend).config.exec_group,
        client_id="clientA",
        exec_name="calcA",
        files=inputs,
    )
    return (await submit_job(backend, Caller(), ask, Inline(files))).run.run_id


class TestAJob:
    async def test_is_run_and_recorded_and_leaves_nothing_behind(
        self, backend: Backend, executor: PretendedExecutor, tmp_path: Path
    ) -> None:
        """GRID-116, GRID-117, GRID-145"""
        async with a_lane(backend, executor) as lane:
            changes: list[tuple[str, ...]] = []
            lane.when_changed = lambda: changes.append(lane.running)
            run_id = await submitted(backend, args=("-n", "3"), timeout_sec=7)
            program = await executor.begun()
            group = programs_of(backend).config.exec_group
            wanted = {"patterns": ("job.assign.*",), "credits": 3, "max_parallel": 4, "group": group}
            await eventually(lambda: lane.facts == wanted)  # a look for more jobs holds a place for a moment
            archive = an_archive_file(tmp_path, b"a zip")
            program.end(DONE, archive)
            run = await ended(backend, run_id)
            await eventually(lambda: lane.facts["credits"] == 4 and lane.running == ())
            assert (lane.last_status, changes) == ("COMPLETED", [(run_id,), ()])
            assert not archive.path.exists()
        work = program.work
        assert (work.args, work.timeout_sec, work.attempt, work.client_id, work.exec_name) == (
            ("-n", "3"),
            7,
            1,
            "clientA",
            "calcA",
        )
        assert run.program is not None
        assert (run.status, run.worker_id, run.program.exit_code) == (RunState.COMPLETED, "w1", 0)
        (artifact,) = run.program.artifacts
        assert (artifact.name, artifact.size) == ("output.zip", 5)
        await eventually(lambda: slots_held(backend) == 0)
        assert (executor.is_started, executor.is_stopped) == (True, True)

    async def test_without_a_time_limit_has_the_one_of_the_settings(
        self, backend: Backend, executor: PretendedExecutor
    ) -> None:
        """GRID-99"""
        async with a_lane(backend, executor):
            await submitted(backend)
            assert (await executor.begun()).work.timeout_sec == 3600

    @pytest.mark.parametrize("size", [10, 100_000])
    async def test_has_its_input_files_inline_or_from_the_store(
        self, backend: Backend, executor: PretendedExecutor, size: int
    ) -> None:
        """GRID-48, GRID-93"""
        files = {"in.txt": b"x" * size, "データ.csv": b"1,2"}
        async with a_lane(backend, executor):
            await with_files(backend, files)
            assert await (await executor.begun()).read_inputs() == files

    async def test_whose_inputs_have_expired_fails_for_good(
        self, backend: Backend, executor: PretendedExecutor
    ) -> None:
        """GRID-101"""
        run_id = await with_files(backend, {"in.txt": b"x" * 100_000})
        job = (await recorded_run(backend, run_id)).program
        assert job is not None
        assert job.job is not None
        await programs_of(backend).artifacts.delete(job.job["inputs"]["object"])
        async with a_lane(backend, executor):
            run = await ended(backend, run_id)
            assert run.program is not None
            assert (run.status, run.program.error_code) == (RunState.FAILED, ErrorCode.INPUT_MISSING)
        assert executor.programs == []

    async def test_of_another_pattern_is_left_to_others(self, backend: Backend, executor: PretendedExecutor) -> None:
        """GRID-28, GRID-117"""
        other = await submitted(backend, "render")
        async with a_lane(backend, executor, "job.assign.calcA", "job.*.calcB"):
            await submitted(backend, "calcB")
            await submitted(backend, "calcA")
            await executor.begun(2)
            assert {each.work.exec_name for each in executor.programs} == {"calcA", "calcB"}
            assert (await recorded_run(backend, other)).attempt == 0

    def test_a_pattern_that_is_none_is_refused(self, backend: Backend, executor: PretendedExecutor) -> None:
        """GRID-30"""
        with pytest.raises(GridRefused):
            ProgramLane(backend, executor, "w1", ["job.assign.calc*"])

    async def test_that_meets_a_defect_of_ours_is_tried_again(
        self, backend: Backend, executor: PretendedExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GRID-79"""

        def broken(_: ProgramWork) -> None:
            raise RuntimeError("on purpose")

        async with a_lane(backend, executor) as lane:
            monkeypatch.setattr(executor, "begin", broken)
            run_id = await submitted(backend)

            async def is_back() -> bool:
                run = await recorded_run(backend, run_id)
                return (run.status, run.attempt) == (RunState.PENDING, 1)

            await eventually(is_back)
            await eventually(lambda: lane.facts["credits"] == 4)
            monkeypatch.undo()
            (await executor.begun()).end()
            assert (await ended(backend, run_id)).attempt == 2


class TestPlaces:
    async def test_are_as_many_as_the_settings_say_and_are_used_again(
        self, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-105, GRID-117, P5"""
        executor = PretendedExecutor()
        async with a_store(config, group, worker_max_par=2, **SHORT) as backend, a_lane(backend, executor) as lane:
            run_ids = [await submitted(backend) for _ in range(12)]
            for count in range(2, 13, 2):
                await executor.begun(count)
                await asyncio.sleep(0.02)
                assert len(executor.programs) == count
                for program in executor.programs:
                    program.end()
            for run_id in run_ids:
                assert (await ended(backend, run_id)).status is RunState.COMPLETED
            await eventually(lambda: lane.facts["credits"] == 2)

    async def test_are_not_used_again_while_the_machine_is_busy_but_results_are_told(
        self, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-70, GRID-117, P31"""
        executor, gauge = PretendedExecutor(ends_at_once=True), Gauge()
        gauge.now = 1.0
        settings = {**SHORT, "worker_max_par": 1}
        async with a_store(config, group, **settings) as backend, a_lane(backend, executor, gauge=gauge) as lane:
            first = await submitted(backend)
            assert (await ended(backend, first)).status is RunState.COMPLETED
            second = await submitted(backend)
            await asyncio.sleep(0.7)
            assert (lane.facts["credits"], len(executor.programs)) == (0, 1)
            gauge.now = 0.1
            await ended(backend, second)

    async def test_are_used_anyway_after_a_while(self, config: NatsBackendConfig, group: str) -> None:
        """GRID-70: 30 s, less here"""
        executor, gauge = PretendedExecutor(ends_at_once=True), Gauge()
        gauge.now = 1.0
        settings = {**SHORT, "worker_max_par": 1, "worker_cpu_wait_sec": 0.6}
        async with a_store(config, group, **settings) as backend, a_lane(backend, executor, gauge=gauge):
            for run_id in [await submitted(backend) for _ in range(2)]:
                await ended(backend, run_id)

    async def test_are_used_again_while_results_are_written_but_not_without_end(
        self, config: NatsBackendConfig, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GRID-117: free are those whose programs are over; what waits to be written is bounded all the same"""
        executor, written = PretendedExecutor(ends_at_once=True), asyncio.Event()
        settings = {**SHORT, "worker_max_par": 2}
        async with a_store(config, group, **settings) as backend, a_lane(backend, executor) as lane:
            finish = lane.holdings.finish

            async def slowly(*given: Any) -> Settlement:
                await written.wait()
                return await finish(*given)

            monkeypatch.setattr(lane.holdings, "finish", slowly)
            await cap(backend, "clientA", 20)
            run_ids = [await submitted(backend) for _ in range(8)]
            await executor.begun(4)
            await asyncio.sleep(0.3)
            assert (len(executor.programs), lane.facts["credits"]) == (4, 0)
            written.set()
            for run_id in run_ids:
                assert (await ended(backend, run_id)).status is RunState.COMPLETED
            await eventually(lambda: lane.facts["credits"] == 2)

    async def test_and_the_doors_beside_it_keep_the_cap_of_a_client_together(
        self, backend: Backend, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-72, GRID-118, P6"""
        await cap(backend, "clientA", 3)
        tally = Tally()

        class Counted(PretendedExecutor):
            def begin(self, work: ProgramWork) -> Any:
                program = super().begin(work)
                tally.add("clientA", 1)

                def over() -> None:
                    tally.add("clientA", -1)
                    program.end()

                asyncio.get_running_loop().call_later(0.005, over)
                return program

        executor = Counted()
        async with a_store(config, group, **SHORT) as other, a_lane(backend, executor), a_stage(other) as door:
            door.workers.tally = tally
            door.runs_everything(0.005)
            door.give(10)
            run_ids = await asyncio.gather(*(submitted(other) for _ in range(120)))
            await eventually(lambda: len(door.workers.started) + len(executor.programs) >= 120)
            for run_id in run_ids:
                assert (await ended(other, run_id)).attempt == 1
            assert tally.most["clientA"] == 3
            assert door.workers.started
            assert executor.programs
        await eventually(lambda: slots_held(backend) == 0)


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
            assert (lane.last_status, set(lane.meter.figures().stale.values())) == (None, {0})


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

        async def scene(scale: float) -> None:
            quick = replace(config, ack_progress_interval_sec=0.2 * scale, consumer_ack_wait_sec=scale)
            settings = SHORT | {"exec_run_heartbeat_sec": 0.1 * scale, "exec_lease_fresh_sec": 0.5 * scale}
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
                    await lane.holdings.stop()
                    graves.push_async_callback(lane.stop, 0.0)
                async with a_lane(backend, heir):
                    runs = [await ended(backend, run_id) for run_id in run_ids]
                    assert {run.status for run in runs} == {RunState.COMPLETED}
                    assert sorted(run.attempt for run in runs) == [1, 1, 2, 2, 2, 2, 2, 2]
                    await eventually(lambda: slots_held(backend) == 0)

        await unhurried(scene)


async def test_a_result_is_written_after_an_outage(own_nats_server: NatsServer) -> None:
    """GRID-11, GRID-44: the program ended while nobody could be told"""
    config = replace(config_for(own_nats_server.url), ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)
    executor = PretendedExecutor()
    settings = {**SHORT, "exec_run_heartbeat_sec": 0.2}
    async with a_store(config, "g", **settings) as backend, a_lane(backend, executor):
        run_id = await submitted(backend)
        program = await executor.begun()
        own_nats_server.kill()
        program.end(Report(status=RunState.FAILED, exit_code=3, error_code=ErrorCode.EXIT_NONZERO))
        await asyncio.sleep(0.5)
        own_nats_server.start()
        run = await ended(backend, run_id)
        assert run.program is not None
        assert (run.status, run.attempt, run.program.exit_code) == (RunState.FAILED, 1, 3)
