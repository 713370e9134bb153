"""What every index of runs promises."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from contracts.runs import NOW, a_run
from pyoco_server.core.flow_moves import ask_cancel, claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index.port import (
    EVERYBODY,
    Ahead,
    Index,
    Mark,
    Page,
    ProgramCounts,
    RunFilter,
    RunInProgress,
    Summary,
)
from pyoco_server.ports.runs.port import Removed, Stored
from support.earlier_versions import left_running
from support.grid.shown_programs import a_program

__all__ = ["IndexContract", "MakeIndex", "feed", "ids", "opened"]


class MakeIndex(Protocol):
    """The test's one index, as the same gateway would open it after a restart."""

    def __call__(self) -> Index: ...


@asynccontextmanager
async def opened(index: Index) -> AsyncIterator[Index]:
    await index.open()
    try:
        yield index
    finally:
        await index.close()


async def ids(index: Index, limit: int = 200, **wanted: Any) -> list[str]:
    return [line.run_id for line in (await index.page(RunFilter(**wanted), limit)).items]


async def feed(index: Index, *items: Stored | Removed) -> None:
    await index.apply(items, Mark("e", max(item.revision for item in items)))


def expected(runs: list[Run], wanted: RunFilter) -> list[str]:
    """FLOW-99 to FLOW-104 and FLOW-110, by hand."""

    def fits(run: Run) -> bool:
        return (
            wanted.tenant_id in {EVERYBODY, run.tenant_id}
            and wanted.status in {None, run.status.value}
            and wanted.flow in {None, run.flow_name}
            and wanted.kind in {None, run.kind}
            and wanted.workflow_yaml_sha256 in {None, run.workflow_yaml_sha256}
            and (wanted.tag is None or wanted.tag in {run.tag, *run.tags})
            and run.run_id.startswith(wanted.run_id_prefix or "")
        )

    return [run.run_id for run in sorted(runs, key=lambda run: (run.updated_at, run.run_id), reverse=True) if fits(run)]


class IndexContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    async def index(self, make_index: MakeIndex) -> AsyncIterator[Index]:
        async with opened(make_index()) as index:
            yield index

    async def test_a_new_index_begins_at_the_beginning(self, make_index: MakeIndex) -> None:
        index = make_index()
        assert await index.open() == Mark()
        assert await index.page(RunFilter(), 50) == Page([], None)
        await index.close()
        await index.close()

    async def test_the_version_is_another_whenever_something_changed(self, index: Index, make_index: MakeIndex) -> None:
        versions = [await index.version()]
        run = a_run()
        for item in (Stored(run, 1), Stored(run, 2), Removed(run.run_id, 3)):
            await feed(index, item)
            versions.append(await index.version())
        assert len(set(versions)) == 4
        await index.close()
        async with opened(make_index()) as again:
            assert await again.version() == versions[-1]
            await again.reset("another store")
            await again.apply((Stored(run, 3),), Mark("another store", 3))
            assert await again.version() not in versions

    async def test_a_line_tells_what_the_run_tells(self, index: Index) -> None:
        """FLOW-109"""
        run = claim(a_run(kind="exec", tags=("x", "y")), Owner("w", "i"), "1", NOW + 1)
        ended = conclude(run, Failed(message="why 日本語"), NOW + 2)
        await feed(index, Stored(ended, 7))
        assert (await index.page(RunFilter(), 50)).items == [
            Summary(
                run_id=run.run_id,
                kind="exec",
                status="FAILED",
                flow_name="flow",
                tag="default",
                tags=("x", "y"),
                submitted_at=NOW,
                updated_at=NOW + 2,
                heartbeat_at=NOW + 2,
                start_time=NOW + 1,
                end_time=NOW + 2,
                worker_id="w",
                error="why 日本語",
            )
        ]

    async def test_a_line_of_a_program_tells_whose_job_it_is_and_how_it_went(self, index: Index) -> None:
        """GRID-151, GRID-154"""
        job = {"group": "g1", "client_id": "bert", "exec_name": "render"}
        run = a_program(**job, attempt=2, lost=1, exit_code=-9, error_code="SIGNALED", job={"args": ["secret"]})
        await feed(index, Stored(run, 1))
        (line,) = (await index.page(RunFilter(), 50)).items
        assert (line.kind, line.flow_name, line.tag) == ("exec", "exec:render", "exec")
        assert line.program == job | {
            "job_id": run.program.job_id if run.program else "",
            "attempt": 2,
            "lost": 1,
            "exit_code": -9,
            "error_code": "SIGNALED",
        }

    async def test_programs_are_found_by_job_by_client_and_by_group(self, index: Index) -> None:
        """GRID-150"""
        job_id = str(uuid.uuid4())
        runs = [
            a_program(job_id=job_id),
            a_program(job_id=job_id, group="g1", tenant_id="t"),
            a_program(client_id="bert", group="g1"),
            a_run(),
        ]
        await feed(index, *(Stored(run, number) for number, run in enumerate(runs, 1)))
        found: dict[str, dict[str, Any]] = {
            "01": {"job_id": job_id},
            "1": {"job_id": job_id, "tenant_id": "t"},
            "2": {"client_id": "bert"},
            "12": {"group": "g1"},
            "0": {"group": "default", "flow": "exec:calcA"},
            "": {"client_id": "bert", "job_id": job_id},
        }
        for numbers, wanted in found.items():
            assert set(await ids(index, **wanted)) == {runs[int(number)].run_id for number in numbers}, wanted

    async def test_programs_wait_in_no_queue_of_flows_and_are_nobodys_that_keeps_flows(self, index: Index) -> None:
        """GRID-57"""
        waits, runs = a_program(), a_program(status=RunState.RUNNING, updated_at=NOW + 1)
        ended = a_program(status=RunState.COMPLETED)
        await feed(index, Stored(waits, 1), Stored(runs, 2), Stored(ended, 3), Stored(a_run(), 4))
        counts = await index.counts()
        assert list(counts.waiting) == ["default"]
        assert counts.by_status == {"PENDING": 2, "RUNNING": 1, "COMPLETED": 1}
        assert (await index.ahead("exec", NOW + 9, "z", 10)).count == 0
        assert [line.kind for line in await index.unfinished(0.0, NOW + 9, 10)] == ["flow"]
        assert await index.quiet(EVERYBODY, NOW + 9, 10) == []
        open_ones = await index.open_programs(0.0, NOW + 9, 10)
        assert [line.run_id for line in open_ones] == [waits.run_id, runs.run_id]
        assert [line.run_id for line in await index.open_programs(NOW + 1, NOW + 9, 10)] == [runs.run_id]
        assert len(await index.open_programs(0.0, NOW + 9, 1)) == 1
        await feed(index, Removed(waits.run_id, 5))
        assert (await index.counts()).by_status == {"PENDING": 1, "RUNNING": 1, "COMPLETED": 1}

    async def test_jobs_are_counted_by_group_and_program_as_they_change(self, index: Index) -> None:
        """GRID-172"""
        first = a_program(submitted_at=NOW - 5)
        others = [a_program(client_id="bert"), a_program(group="g1"), a_program(exec_name="b", group="g1")]
        await feed(index, *(Stored(run, number) for number, run in enumerate([first, *others], 1)))
        waits = ProgramCounts("default", "calcA", 2, NOW - 5, 0)
        in_g1 = [ProgramCounts("g1", "b", 1, NOW, 0), ProgramCounts("g1", "calcA", 1, NOW, 0)]
        assert await index.programs() == [waits, *in_g1]
        running = replace(first, status=RunState.RUNNING)
        await feed(index, Stored(running, 5))
        assert (await index.programs())[0] == ProgramCounts("default", "calcA", 1, NOW, 1)
        await feed(index, Stored(replace(running, status=RunState.CANCELLING), 6))
        assert (await index.programs())[0].inflight == 1
        await feed(index, Stored(replace(running, status=RunState.CANCELLED), 7), Removed(others[0].run_id, 8))
        assert await index.programs() == in_g1

    async def test_what_is_ahead_of_a_job_is_ahead_in_its_lane(self, index: Index) -> None:
        """GRID-58"""
        runs = [a_program(submitted_at=NOW + number, tenant_id="t") for number in range(4)]
        elsewhere = [a_program(client_id="bert"), a_program(group="g1"), a_program(exec_name="b")]
        begun = a_program(status=RunState.RUNNING)
        everything = [*runs, *elsewhere, begun]
        await feed(index, *(Stored(run, number) for number, run in enumerate(everything, 1)))
        ahead = await index.programs_ahead(runs[3], 100)
        assert (ahead.count, ahead.oldest_tenant_id) == (3, "t")
        assert ahead.oldest is not None
        assert ahead.oldest.run_id == runs[0].run_id
        assert (await index.programs_ahead(runs[3], 2)).count == 2
        assert await index.programs_ahead(runs[0], 100) == Ahead(0, None)
        assert await index.programs_ahead(a_run(), 100) == Ahead(0, None)

    async def test_the_newest_update_comes_first_and_ties_go_by_run_id(self, index: Index) -> None:
        """FLOW-110"""
        runs = [a_run(updated_at=NOW + n % 3) for n in range(30)]
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
        assert await ids(index) == expected(runs, RunFilter())
        assert await ids(index, limit=7) == expected(runs, RunFilter())[:7]

    async def test_every_filter_and_any_two_of_them_hold(self, index: Index) -> None:
        """FLOW-99, FLOW-104, FLOW-113, FLOW-275; and the beginning of a run id"""
        dice = random.Random(7)
        runs = [
            a_run(
                run_id=f"{dice.choice(['ab', 'af', 'b0'])}{uuid.UUID(int=dice.getrandbits(128))}"[:36],
                kind=dice.choice(["flow", "exec"]),
                status=dice.choice(list(RunState)),
                flow_name=dice.choice(["f", "g"]),
                tag=dice.choice(["a", "b"]),
                tags=tuple(dice.sample(["a", "b", "c"], dice.randrange(3))),
                tenant_id=dice.choice([None, "t", "u"]),
                workflow_yaml_sha256=dice.choice([None, "s" * 64]),
                updated_at=NOW + dice.randrange(20),
            )
            for _ in range(200)
        ]
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
        wanted: dict[str, Any] = {"kind": "flow", "status": "PENDING", "flow": "f", "tag": "a", "tenant_id": "t"}
        wanted |= {"workflow_yaml_sha256": "s" * 64, "run_id_prefix": "af"}
        for one, value in wanted.items():
            for other, more in (*wanted.items(), ("status", "FAILED"), ("tag", "c")):
                filters = {one: value, other: more}
                for limit in (200, 5):
                    want = expected(runs, RunFilter(**filters))
                    assert await ids(index, limit, **filters) == want[:limit], filters
        assert await ids(index, **wanted) == expected(runs, RunFilter(**wanted))

    @pytest.mark.parametrize("many", [0, 2100], ids=["few begin so", "many begin so"])
    async def test_runs_are_found_by_the_beginning_of_their_id(self, index: Index, many: int) -> None:
        """Exactly those: its neighbours in the order of ids are others, and no character stands for another."""
        ends = ("-0000-4000-8000-000000000000", "-ffff-4fff-bfff-ffffffffffff")
        starts = ("00000000", "000abcde", "000abcdf", "000abce0", "ffffffff", "fffffffe")
        runs = [a_run(run_id=start + end, updated_at=NOW + n) for n, start in enumerate(starts) for end in ends]
        runs += [a_run(run_id=f"000abcdf-0000-4000-9000-{n:012x}", updated_at=NOW - n) for n in range(many)]
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
        for prefix in (
            "000a",
            "000abcd",
            "000abcdf",
            "000abcdf-",
            "f",
            "ffffffff",
            "-",
            "0",
            runs[1].run_id,
            "000abcd0",
        ):
            want = expected(runs, RunFilter(run_id_prefix=prefix))
            assert await ids(index, 50, run_id_prefix=prefix) == want[:50], prefix
            assert await ids(index, 3, run_id_prefix=prefix, flow="flow", tag="default") == want[:3], prefix
            assert await ids(index, run_id_prefix=prefix, tenant_id="nobody") == []

    async def test_a_newer_revision_replaces_and_an_older_never_wins(self, index: Index) -> None:
        run = a_run(tags=("x",))
        newer = claim(replace(run, tags=("y",)), Owner("w", "i"), "1", NOW + 5)
        await feed(index, Stored(newer, 5), Stored(run, 4))
        await index.apply((Stored(run, 3),), Mark("e", 5))
        assert [line.status for line in (await index.page(RunFilter(), 50)).items] == ["RUNNING"]
        assert await ids(index, tag="y") == [run.run_id]
        assert await ids(index, tag="x") == []
        assert await ids(index, status="PENDING") == []

    async def test_an_older_revision_never_wins_even_beyond_the_mark(self, index: Index) -> None:
        run = a_run()
        await index.apply((Stored(replace(run, flow_name="new"), 9),), Mark("e", 5))
        await index.apply((Stored(replace(run, flow_name="old"), 7),), Mark("e", 6))
        assert [line.flow_name for line in (await index.page(RunFilter(), 50)).items] == ["new"]

    async def test_a_removed_run_is_gone_from_every_list(self, index: Index) -> None:
        """FLOW-112"""
        gone, stays = a_run(tags=("x",)), a_run(tags=("x",))
        await feed(index, Stored(gone, 1), Stored(stays, 2))
        await feed(index, Removed(gone.run_id, 3), Removed("never was", 4))
        lists: list[dict[str, Any]] = [{}, {"tag": "x"}, {"tag": "default"}, {"flow": "flow"}, {"status": "PENDING"}]
        for filters in lists:
            assert await ids(index, **filters) == [stays.run_id]

    async def test_a_removed_run_is_not_brought_back_by_an_older_word(self, index: Index) -> None:
        run = a_run()
        await feed(index, Removed(run.run_id, 3), Stored(run, 2))
        await index.apply((Stored(run, 1),), Mark("e", 3))
        assert await ids(index) == []

    async def test_an_older_removal_does_not_remove_a_newer_run(self, index: Index) -> None:
        run = a_run()
        await feed(index, Stored(run, 5), Removed(run.run_id, 4))
        assert await ids(index) == [run.run_id]

    async def test_a_restart_goes_on_at_the_mark(self, make_index: MakeIndex) -> None:
        run = a_run()
        async with opened(make_index()) as index:
            await feed(index, Stored(run, 41))
            await index.apply((), Mark("e", 42))
        index = make_index()
        assert await index.open() == Mark("e", 42)
        assert await ids(index) == [run.run_id]
        assert await index.applied(42, 0)
        await index.close()

    async def test_a_reset_forgets_everything(self, make_index: MakeIndex) -> None:
        async with opened(make_index()) as index:
            await feed(index, Stored(a_run(tags=("x",)), 41))
            await index.reset("another")
            assert await ids(index) == []
            assert await ids(index, tag="x") == []
            run = a_run()
            await index.apply((Stored(run, 1),), Mark("another", 1))
            assert await ids(index) == [run.run_id]
        index = make_index()
        assert await index.open() == Mark("another", 1)
        await index.close()

    async def test_who_wrote_a_revision_can_wait_for_it(self, index: Index) -> None:
        waits = [asyncio.create_task(index.applied(revision, 200)) for revision in (1, 5, 5, 6)]
        began = time.monotonic()
        assert not await index.applied(5, 0.1)
        assert time.monotonic() - began < 100
        await feed(index, Stored(a_run(), 5))
        assert await asyncio.gather(*waits[:3]) == [True, True, True]
        assert not waits[3].done()
        await index.apply((), Mark("e", 9))
        assert await waits[3]
        assert await index.applied(9, 0)
        assert not await index.applied(10, 0)

    async def test_odd_records_of_strangers_stop_nothing(self, index: Index) -> None:
        odd = a_run(
            flow_name=5, error={"a": 1}, submitted_at="soon", end_time=10**400, tags=("\ud800", 3, ["x"], {"y": 1})
        )
        sound = a_run(updated_at=NOW + 1)
        await feed(index, Stored(odd, 1), Stored(sound, 2))
        assert await ids(index) == [sound.run_id, odd.run_id]
        await feed(index, Stored(replace(odd, flow_name="f"), 3))
        assert await ids(index, flow="f") == [odd.run_id]

    async def test_a_null_character_is_a_character(self, index: Index) -> None:
        runs = [a_run(flow_name="x\0y", tag="a\0", error="\0", worker_id="\0"), a_run(flow_name="x", tag="a")]
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
        for run in runs:
            assert await ids(index, flow=run.flow_name) == [run.run_id]
            assert await ids(index, tag=run.tag) == [run.run_id]
        shown = (await index.page(RunFilter(flow="x\0y"), 1)).items[0]
        assert (shown.flow_name, shown.tag, shown.error, shown.worker_id) == ("x\0y", "a\0", "\0", "\0")

    async def test_many_changes_of_one_run_in_one_batch_leave_the_last(self, index: Index) -> None:
        run = a_run()
        await feed(index, *(Stored(replace(run, updated_at=NOW + n, flow_name=f"f{n}"), n + 1) for n in range(10)))
        assert [line.flow_name for line in (await index.page(RunFilter(), 50)).items] == ["f9"]

    async def test_lists_are_answered_while_changes_come_in(self, index: Index) -> None:
        async def write() -> None:
            for batch in range(20):
                await feed(index, *(Stored(a_run(), batch * 100 + n + 1) for n in range(100)))

        writing = asyncio.create_task(write())
        sizes = [0]
        while not writing.done():
            sizes.append(len((await index.page(RunFilter(), 5000)).items))
        await writing
        assert sizes == sorted(sizes)
        assert all(size % 100 == 0 for size in sizes), "half a batch was seen"
        assert len((await index.page(RunFilter(), 5000)).items) == 2000

    async def test_unfinished_runs_come_oldest_first(self, index: Index) -> None:
        old, older, young = (a_run(updated_at=NOW - age) for age in (50, 100, 1))
        running = claim(a_run(), Owner("w", "i"), "1", NOW - 75)
        ended = conclude(running, Failed(message="x"), NOW - 90)
        ended = replace(ended, run_id=a_run().run_id)
        everything = (old, older, young, running, ended)
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(everything)))
        found = [line.run_id for line in await index.unfinished(0, NOW - 10, 10)]
        assert found == [older.run_id, running.run_id, old.run_id]
        assert [line.run_id for line in await index.unfinished(0, NOW - 10, 1)] == [older.run_id]
        assert [line.run_id for line in await index.unfinished(NOW - 80, NOW - 10, 9)] == [running.run_id, old.run_id]

    async def test_quiet_runs_are_running_ones_that_nobody_updated(self, index: Index) -> None:
        """FLOW-30, FLOW-274, FLOW-275"""

        def running(age: float, tenant_id: str | None) -> Run:
            return claim(a_run(tenant_id=tenant_id), Owner("w", "i"), "1", NOW - age)

        mine, theirs, nobodys, fresh = running(50, "t"), running(90, "u"), running(70, None), running(9, "t")
        pending, ended = a_run(updated_at=NOW - 99), conclude(running(99, "t"), Completed(), NOW - 99)
        everything = (mine, theirs, nobodys, fresh, pending, ended)
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(everything)))
        found = await index.quiet(EVERYBODY, NOW - 10, 9)
        assert found == [
            RunInProgress(theirs.run_id, "w", "u", "default", NOW - 90),
            RunInProgress(nobodys.run_id, "w", None, "default", NOW - 70),
            RunInProgress(mine.run_id, "w", "t", "default", NOW - 50),
        ]
        assert await index.quiet(EVERYBODY, NOW - 10, 1) == found[:1]
        assert await index.quiet("t", NOW - 10, 9) == found[2:]
        assert await index.quiet("nobody", NOW, 9) == []

    async def test_held_runs_are_told_with_their_worker_tenant_and_tag(self, index: Index) -> None:
        mine = claim(a_run(tenant_id="t"), Owner("anna", "i"), "1", NOW)
        stopping = ask_cancel(claim(a_run(), Owner("bert", "i"), "1", NOW), None, NOW)
        handed_back = left_running(claim(a_run(tag="gpu"), Owner("bert", "i"), "1", NOW), NOW + 1)
        ended = conclude(claim(a_run(), Owner("anna", "i"), "1", NOW), Completed(), NOW)
        everything = (mine, stopping, handed_back, ended, a_run())
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate(everything)))
        found = await index.held([*(run.run_id for run in everything), "nobody", "'\0日本"])
        assert found == [
            RunInProgress(mine.run_id, "anna", "t", "default", NOW),
            RunInProgress(stopping.run_id, "bert", None, "default", NOW),
            RunInProgress(handed_back.run_id, None, None, "gpu", NOW + 1),
        ]
        assert (await index.quiet(EVERYBODY, NOW + 2, 9))[-1] == found[-1]
        assert await index.held([]) == []

    async def test_a_closed_index_says_so(self, make_index: MakeIndex) -> None:
        index = make_index()
        with pytest.raises(Unavailable):
            await index.page(RunFilter(), 1)
        await index.open()
        await index.close()
        with pytest.raises(Unavailable):
            await index.apply((), Mark("e", 1))
