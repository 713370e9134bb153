"""A program's run is shown among all others; what flows are done to is not done to it, unless it makes sense."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.cancel_many import RunSelection, cancel_many
from pyoco_server.actions.claim import Spent, claim_run
from pyoco_server.actions.finish import end_unclaimed
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.requeue import requeue
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.rerun import UNCHANGED, RerunChange, rerun
from pyoco_server.actions.rescue import end_cancelled, rescue
from pyoco_server.actions.show_dead_letter import show_dead_letter
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.grid import GridConfig
from pyoco_server.core.change import DoerKind, What, last_change
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import ObjectInputs
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.names import requeued_job_id
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import ArtifactExpired, DeadLetterNotFound, NotRepeatable, Refused, RunNotFound
from pyoco_server.loops.canceller import Canceller
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.dead_letters.port import StoredDeadLetter
from pyoco_server.ports.index.port import RunFilter
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Stored, Withdrawn
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, dead_letters, jobs_left
from support.grid.acts import DONE, FAILED, STOPPED, an_ask, claimed, job_submitted, run_of
from support.servers import unique
from support.waiting import eventually

NOBODY = Caller()
LARGE = {"in.bin": b"x" * 20_000}


@pytest.fixture
async def gateway(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    grid = GridConfig(exec_group=unique("g"))
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path)), grid=grid) as backend:
        await backend.dead_letter_index.open()
        feeder = IndexFeeder(backend.runs, backend.index)
        await feeder.start()
        yield backend
        await feeder.stop()
        await backend.dead_letter_index.close()


async def begun(backend: Backend) -> tuple[Run, ProgramAttempt]:
    run = (await job_submitted(backend)).run
    return run, await claimed(backend, run)


def a_flow_job(run: Run) -> Job:
    """A message on the queue of flows that names a program's run."""
    return Job(run_id=run.run_id, flow_name="f", tag="default", submitted_at=1.0)


class TestFlowsLeaveItAlone:
    async def test_a_job_of_theirs_that_names_it_is_nobodys(self, gateway: GatewayBackend) -> None:
        run, attempt = await begun(gateway)
        job = a_flow_job(run)
        assert await claim_run(gateway, job, ANNA, first_delivery=False) == Spent("of another kind")
        assert isinstance(await end_unclaimed(gateway, run.run_id, "x", DeadReason.INVALID_JOB), Withdrawn)
        await give_up(gateway, Leftover("default", 1, encode_job(job)))
        assert await run_of(gateway, run.run_id) == attempt.run

    async def test_their_keeper_does_not_end_it(self, gateway: GatewayBackend) -> None:
        run, attempt = await begun(gateway)
        assert await rescue(gateway, run.run_id, -1e9, submit_seconds=-1e9) is None
        assert await run_of(gateway, run.run_id) == attempt.run
        cancelled = (await cancel(gateway, NOBODY, run.run_id, None)).run
        assert await end_cancelled(gateway, run.run_id, -1e9) is None
        feeder = IndexFeeder(gateway.runs, gateway.index)
        canceller = Canceller(gateway, gateway.index, feeder, quiet_seconds=-1e9)
        line = (await gateway.index.page(RunFilter(kind="exec"), 10)).items
        assert not any(canceller._is_due(each) for each in line)
        assert await run_of(gateway, run.run_id) == cancelled


class TestCancelling:
    async def test_a_waiting_one_is_cancelled_at_once(self, gateway: GatewayBackend) -> None:
        """GRID-159"""
        run = (await job_submitted(gateway)).run
        stored = await cancel(gateway, Caller(None, "k1"), run.run_id, "no more")
        assert (stored.run.status, stored.run.cancel_requested_by) == (RunState.CANCELLED, "k1")
        assert (await cancel(gateway, NOBODY, run.run_id, "again")).run == stored.run

    async def test_a_running_one_is_stopped_by_its_holder(self, gateway: GatewayBackend) -> None:
        """GRID-160"""
        run, attempt = await begun(gateway)
        assert (await cancel(gateway, NOBODY, run.run_id, None)).run.status is RunState.CANCELLING
        await beat(gateway, attempt)
        await finish_job(gateway, attempt, STOPPED, ())
        assert (await run_of(gateway, run.run_id)).status is RunState.CANCELLED

    async def test_another_tenants_is_not_found(self, gateway: GatewayBackend) -> None:
        """GRID-169"""
        ask = an_ask(gateway)
        await submit_job(gateway, Caller("t1", "k1"), ask, Inline({}))
        with pytest.raises(RunNotFound):
            await cancel(gateway, Caller("t2", "k2"), ask.run_id, None)

    async def test_many_are_cancelled_by_what_programs_have(self, gateway: GatewayBackend) -> None:
        mine = [(await job_submitted(gateway, client_id="clientA")) for _ in range(3)]
        other = await job_submitted(gateway, client_id="clientB")
        await eventually(lambda: gateway.index.applied(other.revision, 1))
        wanted = RunFilter(kind="exec", client_id="clientA")
        done = await cancel_many(gateway, NOBODY, RunSelection(wanted=wanted, limit=100), None)
        assert (done.asked, done.failed) == (3, 0)
        for each in mine:
            assert (await run_of(gateway, each.run.run_id)).status is RunState.CANCELLED
        assert (await run_of(gateway, other.run.run_id)).status is RunState.PENDING
        assert not RunSelection(wanted=RunFilter(client_id="clientA"), limit=1).fits(other.run)


class TestLastChange:
    async def test_one_that_was_put_back_says_so(self, gateway: GatewayBackend) -> None:
        run, attempt = await begun(gateway)
        assert last_change(run).what is What.SUBMITTED
        assert last_change(attempt.run).what is What.STARTED
        await put_back(gateway, attempt, Why.WORKER_DOWN)
        change = last_change(await run_of(gateway, run.run_id))
        assert (change.what, change.by.kind, change.by.id) == (What.HANDED_BACK, DoerKind.WORKER, "w1")


async def a_letter(gateway: GatewayBackend, link: Link, **more: object) -> tuple[Run, StoredDeadLetter]:
    """The letter of a job that failed."""
    files = more.pop("files", None)
    run = (await job_submitted(gateway, files, **more)).run  # type: ignore[arg-type]
    await finish_job(gateway, await claimed(gateway, run), FAILED, ())
    assert (await dead_letters(link, gateway.config))[-1]["body"]["run_id"] == run.run_id
    letter = None
    for letter_id in range(1, 20):
        letter = await gateway.dead_letters.find(letter_id) or letter
    assert letter is not None
    return run, letter


async def inputs_of(backend: Backend, run: Run) -> dict[str, bytes]:
    async with open_inputs(backend, read_job(program_of(run).job or {})) as staged:
        return {each.name: b"".join([piece async for piece in staged.read(each.name)]) for each in staged.files}


class TestRequeueing:
    @pytest.mark.parametrize("files", [{}, {"in.txt": b"small"}, LARGE], ids=["none", "inline", "object"])
    async def test_a_dead_job_is_submitted_again_as_another(
        self, gateway: GatewayBackend, link: Link, files: dict[str, bytes]
    ) -> None:
        """GRID-88"""
        run, letter = await a_letter(gateway, link, files=files, args=("x",), timeout_sec=5)
        again = await requeue(gateway, NOBODY, letter)
        assert program_of(again.run).job_id == requeued_job_id(run.run_id, letter.letter_id)
        assert (program_of(again.run).retry_of, again.run.rerun_of) == (run.run_id, run.run_id)
        assert (again.duplicate, again.run.params) == (False, run.params)
        assert await inputs_of(gateway, again.run) == files
        repeated = await requeue(gateway, NOBODY, letter)
        assert (repeated.duplicate, repeated.run.run_id) == (True, again.run.run_id)
        assert (await run_of(gateway, run.run_id)).status is RunState.FAILED
        attempt = await claimed(gateway, again.run)
        await finish_job(gateway, attempt, DONE, ())
        assert (await requeue(gateway, NOBODY, letter)).run.status is RunState.COMPLETED

    def test_the_new_id_is_that_of_the_contract(self) -> None:
        """GRID-88"""
        made = requeued_job_id("6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01", 17)
        assert made == "24862535-9dd0-51e8-a5f2-9d0fec5177a8"

    async def test_without_its_inputs_it_is_gone(self, gateway: GatewayBackend, link: Link) -> None:
        """GRID-88: 410"""
        run, letter = await a_letter(gateway, link, files=LARGE)
        inputs = read_job(letter.dead_letter.job or {}).inputs
        assert isinstance(inputs, ObjectInputs)
        assert (await show_dead_letter(gateway, NOBODY, str(letter.letter_id))).redrivable
        await programs_of(gateway).artifacts.delete(inputs.object)
        with pytest.raises(ArtifactExpired):
            await requeue(gateway, NOBODY, letter)
        assert not (await show_dead_letter(gateway, NOBODY, str(letter.letter_id))).redrivable
        assert (await run_of(gateway, run.run_id)).status is RunState.FAILED

    @pytest.mark.parametrize("job", [None, {}, {"v": 7}])
    async def test_without_a_usable_job_it_cannot_be(
        self, gateway: GatewayBackend, link: Link, job: dict[str, object] | None
    ) -> None:
        """GRID-88: 422"""
        _, letter = await a_letter(gateway, link)
        with pytest.raises(GridRefused) as refused:
            await requeue(gateway, NOBODY, replace(letter, dead_letter=replace(letter.dead_letter, job=job)))
        assert (refused.value.code, refused.value.facts.http) == (Code.BAD_SCHEMA, 422)

    async def test_a_redrive_is_the_same_and_takes_the_letter_away(self, gateway: GatewayBackend, link: Link) -> None:
        run, letter = await a_letter(gateway, link)
        with pytest.raises(Refused):
            await redrive(gateway, NOBODY, str(letter.letter_id), RerunChange(tag="other"))
        accepted = await redrive(gateway, NOBODY, str(letter.letter_id))
        assert program_of(accepted.stored.run).retry_of == run.run_id
        with pytest.raises(DeadLetterNotFound):
            await redrive(gateway, NOBODY, str(letter.letter_id))
        assert await jobs_left(link, gateway.config) == []


class TestRunningAgain:
    @pytest.mark.parametrize("files", [{}, LARGE], ids=["none", "object"])
    async def test_a_run_that_has_ended_is_repeated_from_what_is_kept(
        self, gateway: GatewayBackend, files: dict[str, bytes]
    ) -> None:
        run = (await job_submitted(gateway, files, args=("a", "b"), timeout_sec=2.5)).run
        await finish_job(gateway, await claimed(gateway, run), DONE, ())
        accepted = await rerun(gateway, NOBODY, run.run_id, UNCHANGED)
        again = accepted.stored.run
        assert (again.params, program_of(again).fingerprint) == (run.params, program_of(run).fingerprint)
        assert (again.rerun_of, program_of(again).retry_of) == (run.run_id, run.run_id)
        assert again.run_id != run.run_id
        assert await inputs_of(gateway, again) == files
        assert isinstance(await gateway.runs.find(again.run_id), Stored)

    async def test_small_files_are_gone_with_the_message(self, gateway: GatewayBackend) -> None:
        run = (await job_submitted(gateway, {"in.txt": b"x"})).run
        again = (await rerun(gateway, NOBODY, run.run_id, UNCHANGED)).stored.run  # it waits: its record has them
        assert await inputs_of(gateway, again) == {"in.txt": b"x"}
        await cancel(gateway, NOBODY, run.run_id, None)
        with pytest.raises(NotRepeatable, match="no longer kept"):
            await rerun(gateway, NOBODY, run.run_id, UNCHANGED)

    async def test_under_a_key_it_is_one_job(self, gateway: GatewayBackend) -> None:
        run = (await job_submitted(gateway)).run
        first = await rerun(gateway, NOBODY, run.run_id, UNCHANGED, "key")
        second = await rerun(gateway, NOBODY, run.run_id, UNCHANGED, "key")
        assert (first.replayed, second.replayed) == (False, True)
        assert first.stored.run.run_id == second.stored.run.run_id
        other = await rerun(gateway, NOBODY, run.run_id, UNCHANGED)
        assert other.stored.run.run_id != first.stored.run.run_id

    async def test_a_program_cannot_be_changed_on_the_way(self, gateway: GatewayBackend) -> None:
        run = (await job_submitted(gateway)).run
        with pytest.raises(Refused):
            await rerun(gateway, NOBODY, run.run_id, RerunChange(params={"x": 1}))

    async def test_what_does_not_tell_what_it_was_cannot_be_repeated(self, gateway: GatewayBackend) -> None:
        stored = await job_submitted(gateway)
        bare = replace(stored.run, params={}, program=replace(program_of(stored.run), job=None))
        assert isinstance(await gateway.runs.replace(bare, stored.revision), Stored)
        with pytest.raises(NotRepeatable):
            await rerun(gateway, NOBODY, stored.run.run_id, UNCHANGED)
