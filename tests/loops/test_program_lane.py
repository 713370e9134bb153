"""The native lane on a real NATS, with programs that end when a test says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import ProgramWork
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.ports.backend import Backend
from support.grid.lanes import SHORT, Gauge, a_lane, backend, config, ended, executor, group, slots_held, with_files
from support.grid.pretended_programs import DONE, PretendedExecutor, an_archive_file
from support.grid.program_stage import Tally, a_stage, a_store, cap, recorded_run, submitted
from support.waiting import eventually

__all__ = ["backend", "config", "executor", "group"]

pytestmark = pytest.mark.virtual_time


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
            wanted |= {"programs": (), "lacks": (), "allow": None}
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
            finish = lane.in_flight.finish

            async def slowly(*given: Any) -> Settlement:
                await written.wait()
                return await finish(*given)

            monkeypatch.setattr(lane.in_flight, "finish", slowly)
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


class TestProgramsThere:
    class Shelf(PretendedExecutor):
        """It has what a test puts there."""

        def __init__(self, *names: str) -> None:
            super().__init__(ends_at_once=True)
            self.there = set(names)

        def has(self, exec_name: str) -> bool:
            return exec_name in self.there

        def names(self) -> tuple[str, ...]:
            return tuple(sorted(self.there))

    async def test_a_job_is_claimed_only_where_its_program_is(
        self, backend: Backend, config: NatsBackendConfig, group: str
    ) -> None:
        """FIND-14: both lanes take every name"""
        without, having = self.Shelf("other"), self.Shelf("calcA")
        async with (
            a_store(config, group, **SHORT) as elsewhere,
            a_lane(backend, without) as first,
            a_lane(elsewhere, having),
        ):
            assert (first.facts["programs"], first.takes("calcA"), first.serves("calcA")) == (("other",), True, False)
            for run_id in [await submitted(backend) for _ in range(5)]:
                assert (await ended(backend, run_id)).attempt == 1
            assert (len(without.programs), len(having.programs)) == (0, 5)

    async def test_a_program_is_taken_as_soon_as_it_is_there_and_no_longer(self, backend: Backend) -> None:
        """FIND-14"""
        executor = self.Shelf()
        async with a_lane(backend, executor) as lane:
            run_id = await submitted(backend)
            executor.there.add("calcA")
            assert (await ended(backend, run_id)).status is RunState.COMPLETED
            await eventually(lambda: lane.facts["programs"] == ("calcA",))
            executor.there.clear()
            await eventually(lambda: not lane.serves("calcA"))

    async def test_a_job_of_a_program_that_nobody_has_ends_without_an_attempt(
        self, config: NatsBackendConfig, group: str
    ) -> None:
        """FIND-14, GRID-89"""
        executor = self.Shelf("other")
        async with (
            a_store(config, group, **SHORT, exec_worker_down_delay_sec=0.1) as backend,
            a_lane(backend, executor),
        ):
            run = await ended(backend, await submitted(backend))
            assert run.program is not None
            assert (run.status, run.attempt, run.program.error_code) == (RunState.FAILED, 0, "EXEC_NOT_FOUND")
            assert (run.program.dlq_due, executor.programs) == (True, [])
