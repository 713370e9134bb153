"""A priced run is shown among all others, and nothing that is done to those touches its record."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.runs import a_run, stored
from pyoco_server.actions.attend import attend
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.cancel_many import RunSelection, cancel_many
from pyoco_server.actions.claim import Spent, claim_run
from pyoco_server.actions.explain_wait import explain_wait
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.list_queues import list_queues
from pyoco_server.actions.measure import Lag, measure
from pyoco_server.actions.rerun import UNCHANGED, rerun
from pyoco_server.actions.rescue import end_cancelled, rescue
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.attention import FindingKind
from pyoco_server.core.job import encode_job, job_of
from pyoco_server.core.priced.projection import TAG
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.trend import Trend
from pyoco_server.core.waiting import WaitReason
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import NotOfThisKind, RunNotFound
from pyoco_server.loops.canceller import Canceller
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.rescuer import Rescuer
from pyoco_server.loops.tally import Tally
from pyoco_server.loops.trend import TrendSampler
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.index.port import RunFilter
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Changes, Stored
from support.backends import ANNA, dead_letters, jobs_left, opened_backend
from support.gateway_backends import opened_gateway_backend
from support.priced.shown_packs import a_pack, a_row, completed, disputed, failed, started
from support.waiting import eventually

OPEN = [a_row(), started(a_row())]
ENDED = [completed(started(a_row())), failed(a_row())]
LONG_AGO = 1_000.0
NOBODY = Caller()
ACME = Caller("acme", "key-1")


async def shown(backend: Backend, pack: Run) -> Stored:
    return await stored(backend.runs, replace(pack, run_id=backend.new_id()))


def age(pack: Run, seconds: float) -> Run:
    """Its last heartbeat was so long ago."""
    at = time.time() - seconds
    return replace(pack, submitted_at=at, updated_at=at, heartbeat_at=at)


@pytest.fixture
async def gateway(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with opened_gateway_backend(config, tmp_path) as backend:
        await backend.dead_letter_index.open()
        feeder = IndexFeeder(backend.runs, backend.index)
        await feeder.start()
        yield backend
        await feeder.stop()
        await backend.dead_letter_index.close()


async def listed(backend: GatewayBackend, *packs: Stored) -> None:
    await eventually(lambda: backend.index.applied(max(pack.revision for pack in packs), 1))


INSTEAD = {
    RunState.PENDING: "if none does, it fails, and all money is back",
    RunState.RUNNING: "within its timebox|an operator ends it",
    RunState.COMPLETED: "it has ended",
    RunState.FAILED: "it has ended",
}


class TestNothingWrites:
    @pytest.mark.parametrize("row", [*OPEN, *ENDED], ids=lambda row: row.status)
    async def test_a_pack_cannot_be_cancelled_or_run_again(self, gateway: GatewayBackend, row: object) -> None:
        found = await shown(gateway, a_pack(row))  # type: ignore[arg-type]  # a table of rows
        run_id = found.run.run_id
        with pytest.raises(NotOfThisKind, match=INSTEAD[found.run.status]):
            await cancel(gateway, ACME, run_id, "why not")
        with pytest.raises(NotOfThisKind):
            await rerun(gateway, ACME, run_id, UNCHANGED)
        for stranger in (NOBODY, Caller("other", "key-2")):
            with pytest.raises(RunNotFound):
                await cancel(gateway, stranger, run_id, None)
            with pytest.raises(RunNotFound):
                await rerun(gateway, stranger, run_id, UNCHANGED)
        assert await gateway.runs.find(run_id) == found

    async def test_of_many_those_that_are_asked_for_fail_and_others_are_passed_over(
        self, gateway: GatewayBackend
    ) -> None:
        packs = [await shown(gateway, a_pack(row)) for row in OPEN]
        flow = await stored(gateway.runs, a_run())
        await listed(gateway, flow)
        everything = await cancel_many(gateway, NOBODY, RunSelection(limit=100), None)
        assert (everything.asked, everything.failed, everything.matched) == (1, 0, 1)
        ids = tuple(pack.run.run_id for pack in packs)
        assert (await cancel_many(gateway, ACME, RunSelection(run_ids=ids, limit=100), None)).failed == 2
        asked = RunSelection(wanted=RunFilter(kind="pack"), limit=100)
        assert (await cancel_many(gateway, ACME, asked, None)).failed == 2
        named = await cancel_many(gateway, NOBODY, RunSelection(run_ids=ids, limit=100), None)
        assert (named.not_found, named.matched) == (2, 0)
        assert (await cancel_many(gateway, NOBODY, asked, None)).matched == 0
        assert [await gateway.runs.find(run_id) for run_id in ids] == packs

    async def test_a_job_that_names_a_pack_is_dropped(self, gateway: GatewayBackend, link: Link) -> None:
        """Only a stranger can write such a job: packs have a queue of their own."""
        found = await shown(gateway, a_pack())
        ask = Submission(flow_name="f", tag="default", tags=("default",), params={})
        job = replace(job_of(found.run, ask, 1), revision=None)
        assert await claim_run(gateway, job, ANNA, first_delivery=False) == Spent("of another kind")
        await submit(gateway, NOBODY, ask)
        assert len(await jobs_left(link, gateway.config)) == 1
        leftover = Leftover(tag="default", sequence=1, data=encode_job(job))
        assert await give_up(gateway, leftover) is None
        assert await jobs_left(link, gateway.config) == []
        assert await dead_letters(link, gateway.config) == []
        assert await gateway.runs.find(found.run.run_id) == found

    async def test_a_quiet_pack_is_not_rescued(self, gateway: GatewayBackend) -> None:
        for row in OPEN:
            found = await shown(gateway, age(a_pack(row), LONG_AGO))
            run_id = found.run.run_id
            assert await rescue(gateway, run_id, 0.0, submit_seconds=0.0) is None
            assert await gateway.runs.find(run_id) == found
        odd = await shown(gateway, age(a_pack(), LONG_AGO))
        cancelling = await gateway.runs.replace(replace(odd.run, status=RunState.CANCELLING), odd.revision)
        assert isinstance(cancelling, Stored)
        assert await end_cancelled(gateway, odd.run.run_id, 0.0) is None
        assert await rescue(gateway, odd.run.run_id, 0.0, submit_seconds=0.0) is None

    async def test_the_keepers_loops_pass_packs_over(self, config: NatsBackendConfig, gateway: GatewayBackend) -> None:
        """Whatever their record says: one that is CANCELLING was written by a stranger."""
        quick = replace(config, abandon_after_sec=0.1, worker_disconnect_timeout_sec=0.1)
        packs = [await shown(gateway, age(a_pack(row), LONG_AGO)) for row in OPEN]
        packs.append(await shown(gateway, replace(age(a_pack(), LONG_AGO), status=RunState.CANCELLING)))
        orphan = await stored(gateway.runs, age(a_run(), LONG_AGO))
        async with opened_backend(quick) as backend:
            feeder = IndexFeeder(backend.runs, gateway.index)
            await eventually(lambda: gateway.index.applied(orphan.revision, 1))
            rescuer = Rescuer(backend, gateway.index, _Listed(feeder), submit_seconds=0.0)
            canceller = Canceller(backend, gateway.index, _Listed(feeder), quiet_seconds=0.0)
            await rescuer.turn()
            await canceller.turn()
        ended = await gateway.runs.find(orphan.run.run_id)
        assert isinstance(ended, Stored)
        assert ended.run.status is RunState.FAILED
        assert [await gateway.runs.find(pack.run.run_id) for pack in packs] == packs


class _Listed(IndexFeeder):
    """The index is fed by another one."""

    def __init__(self, _: IndexFeeder) -> None:
        pass

    async def caught_up(self, _: float) -> bool:
        return True


async def register(
    backend: GatewayBackend, *, alive: bool = True, packs: tuple[str, ...] | None = ("decision", "url")
) -> None:
    at = time.time() - (0 if alive else 10_000)
    record = WorkerRecord(
        worker_id="anna",
        instance_id="1",
        state=WorkerState.RUNNING,
        tags=("default",),
        last_seen_at=at,
        last_heartbeat_at=at,
        slots=2,
        packs=packs,
    )
    await backend.registry.announce(record)

    async def is_known() -> bool:
        return bool(await backend.registry.all())

    await eventually(is_known)


class TestWaiting:
    @pytest.mark.parametrize(
        ("alive", "seconds", "reason", "text"),
        [
            (None, 5, WaitReason.NO_WORKER, "There is no worker."),
            (False, 5, WaitReason.WORKERS_DISCONNECTED, "Stopped or silent: 1."),
            (True, 5, WaitReason.STARTING, "at any moment"),
            (True, 60, WaitReason.UNCLEAR, "PYOCO_PACKS"),
        ],
    )
    async def test_it_is_told_what_a_pack_waits_for(
        self, gateway: GatewayBackend, alive: bool | None, seconds: float, reason: WaitReason, text: str
    ) -> None:
        """No worker has its tag, and none needs to."""
        if alive is not None:
            await register(gateway, alive=alive)
        found = await shown(gateway, age(a_pack(), seconds))
        await listed(gateway, found)
        wait = await explain_wait(gateway, NOBODY, found.run)
        assert wait is not None
        assert (wait.reason, wait.position) == (reason, 1)
        assert text in wait.message
        assert "tag" not in wait.message

    @pytest.mark.parametrize(
        ("packs", "reason"),
        [(("url",), WaitReason.NO_WORKER), ((), WaitReason.NO_WORKER), (None, WaitReason.STARTING)],
        ids=["another", "none", "does not tell"],
    )
    async def test_a_worker_that_does_not_execute_the_pack_is_none_for_it(
        self, gateway: GatewayBackend, packs: tuple[str, ...] | None, reason: WaitReason
    ) -> None:
        """One of an older version does not tell, and may."""
        await register(gateway, packs=packs)
        found = await shown(gateway, age(a_pack(), 5))
        await listed(gateway, found)
        wait = await explain_wait(gateway, NOBODY, found.run)
        assert wait is not None
        assert (wait.reason, wait.workers_alive) == (reason, 1)
        if reason is WaitReason.NO_WORKER:
            for message in (wait.message, wait.message_ja):
                assert "decision" in message
                assert "PYOCO_PACKS" in message

    async def test_packs_that_came_first_are_counted_and_flows_are_not(self, gateway: GatewayBackend) -> None:
        await register(gateway)
        first = await shown(gateway, age(a_pack(), 50))
        await stored(gateway.runs, replace(age(a_run(), 60), tag=TAG))
        last = await shown(gateway, age(a_pack(), 5))
        await listed(gateway, last)
        wait = await explain_wait(gateway, NOBODY, last.run)
        assert wait is not None
        assert (wait.reason, wait.position, wait.workers_alive) == (WaitReason.QUEUE, 2, 1)
        assert wait.oldest_ahead is not None
        assert wait.oldest_ahead.run_id == first.run.run_id
        mine = await explain_wait(gateway, Caller("other"), last.run)
        assert mine is not None
        assert mine.oldest_ahead is not None
        assert mine.oldest_ahead.run_id is None, "another tenant's"

    @pytest.mark.parametrize("row", [disputed(a_row()), disputed(started(a_row()))], ids=lambda row: row.status)
    async def test_a_disputed_one_waits_for_an_operator(self, gateway: GatewayBackend, row: PricedRun) -> None:
        """Whatever its status is: no worker continues it, and nothing ends it automatically."""
        found = await shown(gateway, a_pack(row))
        wait = await explain_wait(gateway, NOBODY, found.run)
        assert wait is not None
        assert wait.reason is WaitReason.DISPUTED
        for message in (wait.message, wait.message_ja):
            assert "pyoco-server-admin budget resolve" in message
        with pytest.raises(NotOfThisKind, match="an operator ends it"):
            await cancel(gateway, ACME, found.run.run_id, None)

    async def test_one_that_was_started_waits_for_nothing(self, gateway: GatewayBackend) -> None:
        found = await shown(gateway, a_pack(started(a_row())))
        assert await explain_wait(gateway, NOBODY, found.run) is None


class TestFigures:
    async def test_packs_are_no_queue_of_a_tag_and_no_stale_runs(self, gateway: GatewayBackend) -> None:
        await register(gateway)
        packs = [await shown(gateway, age(a_pack(row), LONG_AGO)) for row in OPEN]
        await listed(gateway, *packs)
        queues = await list_queues(gateway, Trend())
        assert [(queue.tag, queue.depth) for queue in queues.items] == [("default", 0)]
        assert (queues.packs.depth, queues.packs.workers_alive) == (1, 1)
        assert (queues.packs.oldest_age_seconds or 0) >= LONG_AGO
        told = await attend(gateway, Trend(), NOBODY, runs_listed=True, dead_letters_listed=False)
        assert [each.kind for each in told] == [FindingKind.INDEX_BEHIND], "of the letters, which nobody feeds here"

    async def test_packs_that_wait_without_any_worker_are_told(self, gateway: GatewayBackend) -> None:
        found = await shown(gateway, age(a_pack(), LONG_AGO))
        await listed(gateway, found)
        told = await attend(gateway, Trend(), NOBODY, runs_listed=True, dead_letters_listed=False)
        assert [each.kind for each in told] == [FindingKind.PACKS_WITHOUT_WORKER, FindingKind.INDEX_BEHIND]

    async def test_they_are_measured_by_status_and_money(self, gateway: GatewayBackend) -> None:
        packs = [await shown(gateway, a_pack(row)) for row in [*OPEN, *ENDED]]
        await listed(gateway, *packs)
        figures = await measure(gateway, Lag())
        assert figures.packs == {
            ("PENDING", "RESERVED"): 1,
            ("RUNNING", "RESERVED"): 1,
            ("COMPLETED", "SETTLED"): 1,
            ("FAILED", "REFUNDED"): 1,
        }
        assert sum(figures.runs.values()) == 4
        assert figures.waiting == {}

    async def test_a_packs_end_is_not_that_of_a_flow_with_its_name(self, gateway: GatewayBackend) -> None:
        trend, flow = Trend(), replace(a_run(flow_name="decision", tag=TAG), status=RunState.COMPLETED)

        async def true() -> bool:
            return True

        tally = Tally(listener=TrendSampler(gateway, trend, true))
        tally.on_changes(Changes((), caught_up=True, epoch="e"))
        times = {"start_time": 2.0, "end_time": 3.0}
        ends = [replace(a_pack(row), **times) for row in ENDED] + [replace(flow, **times)]  # type: ignore[arg-type]
        tally.on_changes(
            Changes(tuple(Stored(run, number + 1) for number, run in enumerate(ends)), caught_up=True, epoch="e")
        )
        assert set(tally.ends) == {
            ("pack:decision", "COMPLETED"),
            ("pack:decision", "FAILED"),
            ("decision", "COMPLETED"),
        }
        [told] = trend.flows(gateway.clock())
        assert (told.flow, told.ended, told.failed) == ("decision", 1, 0)
