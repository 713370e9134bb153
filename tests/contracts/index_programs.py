"""What every index promises to count of programs, once for each job."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from contracts.index import MakeIndex, opened
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.index.port import EVERYBODY, OTHER, RUN_SECONDS_BOUNDS, Index, Mark
from pyoco_server.ports.runs.port import Removed, Stored
from support.grid.stores import a_job

__all__ = ["IndexProgramsContract", "ended", "program_run"]


def program_run(group: str = "default", exec_name: str = "calcA") -> Run:
    return moves.accept(a_job(group, exec_name), max_attempts=5)


def claimed(run: Run) -> Run:
    return moves.claim(run, token=f"t{run.attempt}", worker_id="w", holder="h", slot=0, now=run.updated_at + 1)


def put_back(run: Run, why: Why = Why.ACK_TIMEOUT) -> Run:
    return moves.put_back(claimed(run), why, run.updated_at + 5, run.updated_at + 2)


def ended(run: Run, status: RunState = RunState.COMPLETED, seconds: float | None = 1.0) -> Run:
    code = ErrorCode.EXIT_NONZERO if status is RunState.FAILED else None
    report = Report(status=status, exit_code=0, error_code=code, run_seconds=seconds)
    return moves.conclude(claimed(run), report, (), run.updated_at + 3, worker_id="w", buries_errors=True)


def buried(run: Run) -> Run:
    return moves.note_dead_letter(run, run.updated_at + 1)


class Telling:
    """Tells an index of records, each with the next revision, and repeats itself as a feed may."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.revision = 0

    async def __call__(self, *runs: Run | str) -> None:
        for run in runs:
            self.revision += 1
            item = Stored(run, self.revision) if isinstance(run, Run) else Removed(run, self.revision)
            for _ in range(2):
                await self.index.apply((item,), Mark("e", self.revision))


class IndexProgramsContract:
    """An adapter passes all of it or does not ship."""

    async def test_an_empty_index_counts_nothing(self, make_index: MakeIndex) -> None:
        async with opened(make_index()) as index:
            found = await index.program_totals()
            assert (found.ended, found.retries, found.dead_letters, found.seconds, found.corrupt) == ({}, {}, {}, {}, 0)
            assert await index.program_seconds("calcA", 10) == []

    async def test_each_job_ends_once(self, make_index: MakeIndex) -> None:
        """GRID-171: whichever part of its history is fed, and however often"""
        async with opened(make_index()) as index:
            tell = Telling(index)
            for _ in range(3):
                run = program_run()
                await tell(run, claimed(run), ended(run))
            await tell(ended(program_run()))  # the feed came late, and saw its end alone
            failed = ended(program_run(exec_name="failn"), RunState.FAILED)
            await tell(failed, buried(failed), buried(failed))
            await tell(buried(ended(program_run("g2", "failn"), RunState.FAILED)))
            await tell(moves.cancel(program_run(), 9.0))
            found = await index.program_totals()
            assert found.ended == {
                ("default", "calcA", "COMPLETED"): 4,
                ("default", "calcA", "CANCELLED"): 1,
                ("default", "failn", "FAILED"): 1,
                ("g2", "failn", "FAILED"): 1,
            }
            assert found.dead_letters == {
                ("default", "failn", "execution_error"): 1,
                ("g2", "failn", "execution_error"): 1,
            }

    async def test_what_has_ended_stays_counted_when_it_expires(self, make_index: MakeIndex) -> None:
        """And over a restart; where the store is another one, counting begins anew."""
        index = make_index()
        async with opened(index):
            tell, run = Telling(index), ended(program_run())
            await tell(run, run.run_id)
            assert await index.programs() == []
        async with opened(make_index()) as index:
            assert (await index.program_totals()).ended == {("default", "calcA", "COMPLETED"): 1}
            await index.reset("e2")
            assert (await index.program_totals()).ended == {}

    async def test_each_attempt_that_was_put_back_counts_once(self, make_index: MakeIndex) -> None:
        """GRID-171: also when words of the feed are missing, and when the record has forgotten its oldest attempts"""
        async with opened(make_index()) as index:
            tell = Telling(index)
            run = program_run()
            for why in (Why.ACK_TIMEOUT, Why.WORKER_ERROR, Why.WORKER_DOWN):
                run = put_back(run, why)
            await tell(run)
            run = put_back(run, Why.ACK_TIMEOUT)
            await tell(run, claimed(run), ended(run))
            many = program_run(exec_name="poison")
            for _ in range(24):
                many = put_back(many, Why.WORKER_DOWN)
                await tell(many)
            lost = claimed(program_run(exec_name="held"))
            await tell(lost, claimed(lost))  # its lease was old
            found = (await index.program_totals()).retries
            assert found == {
                ("default", "calcA", "ack_timeout"): 2,
                ("default", "calcA", "worker_error"): 1,
                ("default", "calcA", "worker_down"): 1,
                ("default", "poison", "worker_down"): 24,
                ("default", "held", "holder_lost"): 1,
            }

    async def test_run_times_fall_between_their_bounds(self, make_index: MakeIndex) -> None:
        """Section 23.1"""
        dice = random.Random(1)
        times = [*RUN_SECONDS_BOUNDS, 0.0, 2000.0, *(dice.uniform(0, 100) for _ in range(20))]
        async with opened(make_index()) as index:
            tell = Telling(index)
            for seconds in times:
                await tell(ended(program_run(), seconds=seconds))
            await tell(ended(program_run(), seconds=None), ended(program_run("g2", "other_one"), seconds=3.0))
            counts, total = (await index.program_totals()).seconds["calcA"]
            upper = (*RUN_SECONDS_BOUNDS, float("inf"))
            wanted = Counter(next(n for n, bound in enumerate(upper) if seconds <= bound) for seconds in times)
            assert counts == tuple(wanted[n] for n in range(len(upper)))
            assert abs(total - sum(times)) < 0.001
            assert len((await index.program_totals()).seconds) == 2

    async def test_the_run_times_of_the_last_jobs_are_told(self, make_index: MakeIndex) -> None:
        """GRID-171: of all that ended, not of those that completed"""
        async with opened(make_index()) as index:
            tell = Telling(index)
            states = [RunState.COMPLETED, RunState.FAILED]
            for number in range(10):
                run = replace(program_run(), updated_at=1_000_000.0 + number)
                await tell(ended(run, states[number % 2], float(number)))
            await tell(program_run(), ended(program_run(exec_name="another")))
            assert sorted(await index.program_seconds("calcA", 100)) == [float(number) for number in range(10)]
            assert sorted(await index.program_seconds("calcA", 3)) == [7.0, 8.0, 9.0]

    async def test_the_run_times_of_the_last_jobs_of_a_group_are_told_by_program(self, make_index: MakeIndex) -> None:
        """GRID-172: of those that completed or failed, and of one tenant if one asks"""
        async with opened(make_index()) as index:
            assert await index.group_seconds(EVERYBODY, "default", 10) == {}
            tell = Telling(index)
            states = [RunState.COMPLETED, RunState.FAILED]
            for number in range(10):
                name, tenant = ("calcA", "anna") if number < 8 else ("calcB", "bert")
                run = replace(program_run(exec_name=name), updated_at=1_000_000.0 + number, tenant_id=tenant)
                await tell(ended(run, states[number % 2], float(number)))
            later = replace(program_run(), updated_at=2_000_000.0)
            await tell(later, ended(replace(program_run("g2"), updated_at=2_000_000.0)))
            await tell(moves.cancel(replace(program_run(), updated_at=2_000_000.0), 2_000_001.0))
            assert await index.group_seconds(EVERYBODY, "default", 4) == {"calcA": [6.0, 7.0], "calcB": [8.0, 9.0]}
            assert await index.group_seconds("bert", "default", 4) == {"calcB": [8.0, 9.0]}
            await tell(ended(later, seconds=None))
            assert await index.group_seconds(EVERYBODY, "default", 3) == {"calcB": [8.0, 9.0]}

    async def test_a_thousand_programs_are_told_apart_and_the_others_together(self, make_index: MakeIndex) -> None:
        """GRID-171"""
        async with opened(make_index()) as index:
            items = [Stored(ended(program_run("g", f"p{n}")), n + 1) for n in range(1005)]
            await index.apply(tuple(items), Mark("e", 1005))
            run = ended(program_run("g", "p3"))
            await index.apply((Stored(run, 1006),), Mark("e", 1006))
            found = await index.program_totals()
            assert found.ended["g", OTHER, "COMPLETED"] == 5
            assert found.ended["g", "p3", "COMPLETED"] == 2
            assert len(found.ended) == len(found.seconds) == 1001

    async def test_a_strangers_names_are_counted_together(self, make_index: MakeIndex) -> None:
        async with opened(make_index()) as index:
            run = ended(program_run())
            assert run.program is not None
            odd = replace(run.program, group="a/b\0", exec_name="c/d")
            await index.apply((Stored(replace(run, program=odd), 1),), Mark("e", 1))
            assert (await index.program_totals()).ended == {(OTHER, OTHER, "COMPLETED"): 1}

    async def test_records_that_cannot_be_read_are_counted_while_they_are_there(self, make_index: MakeIndex) -> None:
        """Section 26.1"""
        async with opened(make_index()) as index:
            run = program_run()
            spoilt = (Removed(run.run_id, 1, is_corrupt=True), Removed("another", 2, is_corrupt=True))
            await index.apply(spoilt, Mark("e", 2))
            await index.apply((Removed("another", 3, is_corrupt=True),), Mark("e", 3))
            assert (await index.program_totals()).corrupt == 2
            await index.apply((Stored(run, 4),), Mark("e", 4))
            assert (await index.program_totals()).corrupt == 1
            await index.apply((Removed("another", 5),), Mark("e", 5))
            assert (await index.program_totals()).corrupt == 0
