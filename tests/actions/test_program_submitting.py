"""A job is accepted once, however often and wherever it is submitted; a refusal leaves nothing."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO

import pytest

from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import ObjectInputs
from pyoco_server.core.programs.message import decode_job, read_job
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, ObjectNotFound, QueueFull, Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.runs.port import Absent, Withdrawn
from support.faulty_ports import AFTER, BEFORE, Trouble
from support.grid.acts import DONE, an_ask, claimed, job_submitted, run_of, taken, troubled
from support.grid.crashes import crashing_at
from support.grid.program_stage import a_store
from support.servers import unique

LARGE = {"a.bin": b"a" * 20_000, "データ.csv": b"1,2\n" * 5_000, "empty": b""}


async def messages(backend: Backend) -> list[str]:
    group = programs_of(backend).config.exec_group
    return [run_id for lane, run_id in await programs_of(backend).queue.listed() if lane.group == group]


async def content_of(backend: Backend, run_id: str) -> dict[str, bytes]:
    job = read_job(program_of(await run_of(backend, run_id)).job or {})
    async with open_inputs(backend, job) as staged:
        return {each.name: b"".join([piece async for piece in staged.read(each.name)]) for each in staged.files}


class TestOnce:
    async def test_a_job_is_recorded_and_queued(self, grid: Backend) -> None:
        """GRID-48"""
        done = await job_submitted(grid, {"in.txt": b"hello\n"}, args=("--n", "3"))
        assert (done.duplicate, done.run.status) == (False, RunState.PENDING)
        assert await run_of(grid, done.run.run_id) == done.run
        delivery = await taken(grid, done.run)
        job = decode_job(delivery.data)
        assert (job.args, job.revision) == (("--n", "3"), done.revision)
        assert await content_of(grid, done.run.run_id) == {"in.txt": b"hello\n"}

    async def test_a_hundred_at_once_are_one(self, config: NatsBackendConfig) -> None:
        """GRID-50"""
        group = unique("g")
        async with a_store(config, group) as one, a_store(config, group) as other:
            ask = an_ask(one)
            both = [one, other] * 50
            done = await asyncio.gather(*(submit_job(each, Caller(), ask, Inline({})) for each in both))
            assert sum(not each.duplicate for each in done) == 1
            assert await messages(one) == [ask.run_id]
            events = await programs_of(one).events.recent(job_id=None, event=None, group=group, limit=500)
            assert [event.event for event in events] == [EventName.ENQUEUE]

    async def test_a_repeat_later_is_told_how_it_stands(self, grid: Backend) -> None:
        """GRID-48, GRID-50"""
        ask = an_ask(grid)
        run = (await submit_job(grid, Caller(), ask, Inline({}))).run
        attempt = await claimed(grid, run)
        again = await submit_job(grid, Caller(), ask, Inline({}))
        assert (again.duplicate, again.run.status) == (True, RunState.RUNNING)
        await finish_job(grid, attempt, DONE, ())
        again = await submit_job(grid, Caller(), ask, Inline({}))
        assert (again.duplicate, again.run.status) == (True, RunState.COMPLETED)
        assert await messages(grid) == []

    @pytest.mark.parametrize("point", ["submit.recorded", "submit.told"])
    async def test_a_repeat_puts_what_the_first_one_could_not(self, grid: Backend, point: str) -> None:
        """GRID-49"""
        ask = an_ask(grid)
        dying, _ = crashing_at(grid, point)
        with pytest.raises(BaseException, match=point):
            await submit_job(dying, Caller(), ask, Inline({}))
        assert await messages(grid) == []
        assert (await submit_job(grid, Caller(), ask, Inline({}))).duplicate
        assert await messages(grid) == [ask.run_id]

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_who_gets_no_answer_asks_again(self, grid: Backend, fate: str) -> None:
        """GRID-49: the outcome is unknown, and a repeated request settles it"""
        ask = an_ask(grid)
        broken = troubled(grid, Trouble({"programs.queue.put": [fate]}))
        with pytest.raises(Unavailable):
            await submit_job(broken, Caller(), ask, Inline({}))
        assert (await run_of(grid, ask.run_id)).status is RunState.PENDING
        assert (await submit_job(grid, Caller(), ask, Inline({}))).duplicate
        assert await messages(grid) == [ask.run_id]


class TestConflicts:
    @pytest.mark.parametrize(
        "change", [{"args": ("other",)}, {"client_id": "clientB"}, {"exec_name": "calcB"}, {"timeout_sec": 5}], ids=str
    )
    async def test_another_job_cannot_have_the_same_id(self, grid: Backend, change: dict[str, object]) -> None:
        """GRID-48"""
        ask = an_ask(grid)
        first = await submit_job(grid, Caller(), ask, Inline({}))
        with pytest.raises(GridRefused) as refused:
            await submit_job(grid, Caller(), replace(ask, **change), Inline({}))  # type: ignore[arg-type]
        assert (refused.value.code, refused.value.job_id) == (Code.JOB_ID_CONFLICT, ask.job_id)
        assert await run_of(grid, ask.run_id) == first.run

    async def test_another_tenant_cannot_have_it_either(self, grid: Backend) -> None:
        """GRID-48, GRID-169"""
        ask = an_ask(grid)
        await submit_job(grid, Caller("t1", "k1"), ask, Inline({}))
        assert (await submit_job(grid, Caller("t1", "k2"), ask, Inline({}))).duplicate
        with pytest.raises(GridRefused, match="JOB_ID_CONFLICT"):
            await submit_job(grid, Caller("t2", "k3"), ask, Inline({}))

    async def test_the_id_of_a_flow_is_taken(self, grid: Backend) -> None:
        ask = an_ask(grid)
        flow = accept(Submission(flow_name="f", tag="default", tags=(), params={}), Caller(), ask.run_id, 1.0)
        await grid.runs.create(flow)
        with pytest.raises(GridRefused, match="JOB_ID_CONFLICT"):
            await submit_job(grid, Caller(), ask, Inline({}))

    async def test_a_conflict_cannot_write_over_the_inputs_of_the_first(self, grid: Backend) -> None:
        """GRID-48"""
        ask = an_ask(grid, LARGE)
        await submit_job(grid, Caller(), ask, Inline(LARGE))
        other = {"a.bin": b"b" * 30_000}
        with pytest.raises(GridRefused, match="JOB_ID_CONFLICT"):
            await submit_job(grid, Caller(), an_ask(grid, other, job_id=ask.job_id), Inline(other))
        assert await content_of(grid, ask.run_id) == LARGE

    async def test_what_cannot_be_a_job_changes_nothing(self, grid: Backend) -> None:
        """GRID-48"""
        for bad in ({"exec_name": "-x"}, {"client_id": "a.b"}, {"args": ("\0",)}, {"job_id": "x"}):
            ask = replace(an_ask(grid), **bad)
            with pytest.raises(GridRefused):
                await submit_job(grid, Caller(), ask, Inline({}))
        assert await messages(grid) == []

    async def test_what_does_not_fit_into_a_record_is_too_large(self, config: NatsBackendConfig) -> None:
        """GRID-156"""
        async with a_store(replace(config, max_run_snapshot_bytes=4096), unique("g")) as grid:
            ask = an_ask(grid, args=("x" * 3000,))
            with pytest.raises(GridRefused, match="TOO_LARGE"):
                await submit_job(grid, Caller(), ask, Inline({}))
            assert isinstance(await grid.runs.find(ask.run_id), Absent)


class TestFullQueue:
    async def test_a_refused_job_leaves_no_record_and_can_be_submitted_later(self, grid: Backend) -> None:
        """GRID-48, GRID-64"""
        ask = an_ask(grid)
        full = _full(grid)
        with pytest.raises(GridRefused) as refused:
            await submit_job(full, Caller(), ask, Inline({}))
        assert refused.value.code is Code.QUEUE_FULL
        assert isinstance(await grid.runs.find(ask.run_id), Withdrawn)
        assert not (await submit_job(grid, Caller(), ask, Inline({}))).duplicate
        assert await messages(grid) == [ask.run_id]

    async def test_a_repeat_that_finds_no_room_leaves_the_record_of_the_first(self, grid: Backend) -> None:
        ask = an_ask(grid)
        await submit_job(grid, Caller(), ask, Inline({}))
        with pytest.raises(GridRefused, match="QUEUE_FULL"):
            await submit_job(_full(grid), Caller(), ask, Inline({}))
        assert (await run_of(grid, ask.run_id)).status is RunState.PENDING

    async def test_a_repeat_that_finds_room_brings_back_what_the_first_took_back(self, grid: Backend) -> None:
        """GRID-49, GRID-50"""
        ask = an_ask(grid)
        trouble = Trouble()
        dying, _ = crashing_at(grid, "submit.recorded")
        with pytest.raises(BaseException, match="submit"):
            await submit_job(dying, Caller(), ask, Inline({}))
        found = await grid.runs.find(ask.run_id)
        trouble.meanwhile["programs.queue.put"] = lambda: grid.runs.withdraw(ask.run_id, found.revision)
        again = await submit_job(troubled(grid, trouble), Caller(), ask, Inline({}))
        assert again.duplicate
        assert (await run_of(grid, ask.run_id)).status is RunState.PENDING
        assert await messages(grid) == [ask.run_id]


def _full(backend: Backend) -> Backend:
    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(programs_of(backend).queue, name)

        async def put(self, _: object) -> None:
            raise QueueFull

    return replace(backend, programs=replace(programs_of(backend), queue=Full()))  # type: ignore[arg-type]


class TestInputs:
    async def test_small_files_travel_in_the_message_and_larger_ones_are_kept_as_one_object(
        self, grid: Backend
    ) -> None:
        """GRID-48, GRID-52"""
        small = await job_submitted(grid, {"in.txt": b"x" * 16_384})
        assert program_of(small.run).job["inputs"]["mode"] == "inline"  # type: ignore[index]
        large = await job_submitted(grid, LARGE)
        job = read_job(program_of(large.run).job or {})
        assert isinstance(job.inputs, ObjectInputs)
        assert job.inputs.object == f"{large.run.run_id}/in-{job.fingerprint[:16]}.zip"
        assert await content_of(grid, large.run.run_id) == LARGE
        assert len(json.dumps(program_of(large.run).job)) < 2_000

    async def test_the_object_is_a_zip_that_everybody_can_read(self, grid: Backend) -> None:
        run = (await job_submitted(grid, LARGE)).run
        artifacts = programs_of(grid).artifacts
        job = read_job(program_of(run).job or {})
        assert isinstance(job.inputs, ObjectInputs)
        info = await artifacts.info(job.inputs.object)
        data = b"".join([chunk async for chunk in artifacts.read(info)])
        with zipfile.ZipFile(BytesIO(data)) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == LARGE

    async def test_inputs_above_a_megabyte_pass_through_a_file(self, grid: Backend) -> None:
        """GRID-147"""
        files = {"big": bytes(range(256)) * 8192, "small": b"s"}
        run = (await job_submitted(grid, files)).run
        assert await content_of(grid, run.run_id) == files

    async def test_the_same_inputs_are_not_sent_twice(self, grid: Backend) -> None:
        """GRID-48"""
        ask = an_ask(grid, LARGE)
        dying, _ = crashing_at(grid, "submit.stored")
        with pytest.raises(BaseException, match="submit"):
            await submit_job(dying, Caller(), ask, Inline(LARGE))
        await submit_job(grid, Caller(), ask, _Once())
        assert await content_of(grid, ask.run_id) == LARGE

    async def test_content_that_is_not_what_was_said_is_refused(self, grid: Backend) -> None:
        for files in ({"in.txt": b"xy"}, LARGE):
            ask = an_ask(grid, files)
            with pytest.raises(Corrupt):
                await submit_job(grid, Caller(), ask, Inline(dict.fromkeys(files, b"other")))
            assert isinstance(await grid.runs.find(ask.run_id), Absent)

    async def test_inputs_that_are_gone_are_missed(self, grid: Backend) -> None:
        """GRID-101"""
        run = (await job_submitted(grid, LARGE)).run
        job = read_job(program_of(run).job or {})
        assert isinstance(job.inputs, ObjectInputs)
        await programs_of(grid).artifacts.delete(job.inputs.object)
        with pytest.raises(ObjectNotFound):
            async with open_inputs(grid, job):
                pass

    async def test_inputs_that_are_others_are_refused(self, grid: Backend) -> None:
        """GRID-97: write access to the store is not enough to replace the files of a worker"""
        run = (await job_submitted(grid, LARGE)).run
        job = read_job(program_of(run).job or {})
        assert isinstance(job.inputs, ObjectInputs)

        async def other() -> AsyncIterator[bytes]:
            yield b"PK\x05\x06" + b"\0" * 18

        await programs_of(grid).artifacts.put(job.inputs.object, other(), 100)
        with pytest.raises(Corrupt):
            async with open_inputs(grid, job):
                pass


class _Once:
    """Content that must not be requested."""

    def open(self, name: str) -> AsyncIterator[bytes]:
        raise AssertionError(f"{name} was sent again")


async def test_a_message_is_found_by_the_address_of_its_run(grid: Backend) -> None:
    run = (await job_submitted(grid)).run
    assert await programs_of(grid).queue.has(addressed(run))
