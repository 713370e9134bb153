"""Taking a run, with every call failing before and after it took effect, and with others who want it too."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Busy, FlowAttempt, Spent, claim_run
from pyoco_server.actions.finish import Ended, Fenced, finish
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.core.job import Job, run_of
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Caller, Owner
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import ABSENT
from support.backends import ANNA, BERT, Clock, a_submission, recorded, run_now
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble


async def taken(backend: Backend, job: Job, me: Owner = ANNA, *, first: bool = False) -> FlowAttempt:
    held = await claim_run(backend, job, me, first_delivery=first)
    assert isinstance(held, FlowAttempt), held
    return held


class TestTheFirstDelivery:
    async def test_costs_one_write_and_no_read(self, backend: Backend) -> None:
        trouble = Trouble()
        _, job = await recorded(backend)
        await taken(with_trouble(backend, trouble), job, first=True)
        assert trouble.calls == ["runs.replace"]

    async def test_writes_who_has_it_and_keeps_everything_else(self, backend: Backend, clock: Clock) -> None:
        """FLOW-13, FLOW-311, FLOW-347"""
        ask = a_submission("f", "gpu", tags=("a", "b"), params={"n": [1, {"x": None}]}, workflow_yaml_sha256="00")
        stored, job = await recorded(backend, ask)
        clock.now += 3
        held = await taken(backend, job, first=True)
        run = await run_now(backend, job.run_id)
        assert run == held.run
        assert run == replace(
            stored.run,
            status=RunState.RUNNING,
            attempt=1,
            attempt_id=held.attempt_id,
            worker_id="anna",
            instance_id="a1",
            start_time=clock.now,
            try_since=clock.now,
            heartbeat_at=clock.now,
            updated_at=clock.now,
        )
        assert uuid.UUID(held.attempt_id)

    async def test_reads_when_somebody_cancelled_and_never_starts_the_run(self, backend: Backend) -> None:
        """FLOW-184"""
        _, job = await recorded(backend)
        await cancel(backend, Caller(), job.run_id, "no need")
        assert await claim_run(backend, job, ANNA, first_delivery=True) == Spent("cancelled")
        run = await run_now(backend, job.run_id)
        assert (run.status, run.attempt, run.cancel_reason) == (RunState.CANCELLED, 0, "no need")

    async def test_does_not_trust_a_revision_that_is_not_the_newest(self, backend: Backend) -> None:
        _, job = await recorded(backend)
        held = await taken(backend, job, first=True)
        # The same job again, as a redrive would send it: its revision is outdated by now.
        assert isinstance(await claim_run(backend, job, BERT, first_delivery=True), Busy)
        assert await run_now(backend, job.run_id) == held.run


class TestAJobFromElsewhere:
    async def test_without_a_record_gets_one_made_from_the_job(self, backend: Backend, clock: Clock) -> None:
        """FLOW-310"""
        job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="x", submitted_at=5.0, params={"a": 1})
        held = await taken(backend, job, first=True)
        run = await run_now(backend, job.run_id)
        assert run == held.run
        assert (run.submitted_at, run.params, run.start_time) == (5.0, {"a": 1}, clock.now)

    async def test_of_a_withdrawn_submission_is_dropped(self, backend: Backend) -> None:
        """FLOW-310"""
        stored, job = await recorded(backend)
        assert await backend.runs.withdraw(job.run_id, stored.revision)
        for first in (True, False):
            assert await claim_run(backend, job, ANNA, first_delivery=first) == Spent("withdrawn")


class TestARunThat:
    async def test_has_ended_stays_ended(self, backend: Backend) -> None:
        """FLOW-309, FLOW-19"""
        _, job = await recorded(backend)
        ended = await finish(backend, await taken(backend, job), Completed())
        assert isinstance(ended, Ended)
        for first in (True, False):
            assert await claim_run(backend, job, BERT, first_delivery=first) == Spent("ended")
        assert await run_now(backend, job.run_id) == ended.run

    async def test_shows_signs_of_life_is_left_alone_until_they_are_stale(self, backend: Backend, clock: Clock) -> None:
        """FLOW-18, FLOW-311: two live executions must not overlap."""
        _, job = await recorded(backend)
        first = await taken(backend, job)
        stale_after = 5.0 + 3 * backend.config.run_heartbeat_interval_sec
        clock.now += stale_after - 0.1
        assert isinstance(await claim_run(backend, job, BERT, first_delivery=False), Busy)
        assert await run_now(backend, job.run_id) == first.run
        clock.now += 0.1
        second = await taken(backend, job, BERT)
        assert (second.run.attempt, second.run.worker_id) == (2, "bert")
        assert second.attempt_id != first.attempt_id

    async def test_is_taken_over_starts_from_nothing(self, backend: Backend, clock: Clock) -> None:
        """FLOW-18, FLOW-22"""
        _, job = await recorded(backend)
        first = await taken(backend, job)
        await beat_run(backend, first, Progress({"a": "RUNNING"}, {"a": {"state": "RUNNING"}}, truncated=True))
        clock.now += 60
        second = await taken(backend, job, BERT)
        assert (second.run.tasks, second.run.task_records, second.run.task_records_truncated) == ({}, {}, False)

    async def test_was_handed_back_may_be_taken_at_once(self, backend: Backend) -> None:
        _, job = await recorded(backend)
        assert await put_back_run(backend, await taken(backend, job))
        assert (await taken(backend, job, BERT)).run.attempt == 2

    async def test_was_handed_back_and_then_lost_tells_of_both(self, backend: Backend, clock: Clock) -> None:
        """FLOW-18: and each claim reads the whole record first, so that no attempt is forgotten."""
        _, job = await recorded(backend)
        began = clock.now
        handed = await taken(backend, job, first=True)
        clock.now += 3
        assert await put_back_run(backend, handed)
        clock.now += 1
        await beat_run(backend, await taken(backend, job, BERT), Progress({"a": "RUNNING"}, graph={"a": ()}))
        clock.now += 60
        held = await taken(backend, job, ANNA)
        assert held.run.graph == {}
        assert isinstance(await finish(backend, held, Completed(progress=Progress(graph={"a": ()}))), Ended)
        run = await run_now(backend, job.run_id)
        assert run.earlier_attempts == (
            {"attempt": 1, "worker_id": "anna", "started_at": began, "ended_at": began + 3, "why": "handed_back"},
            {"attempt": 2, "worker_id": "bert", "started_at": began + 4, "ended_at": began + 4, "why": "lost"},
        )
        assert (run.graph, run.ended_by) == ({"a": []}, None)

    async def test_has_no_room_for_its_history_is_taken_all_the_same(self, backend: Backend, clock: Clock) -> None:
        """FLOW-362: no run fails because it was handed around."""
        size = backend.config.max_run_snapshot_bytes - 1600
        _, job = await recorded(backend, a_submission(params={"x": "y" * size}))
        for _ in range(18):
            held = await taken(backend, job)
            clock.now += 60
        assert held.run.attempt == 18
        assert isinstance(await finish(backend, held, Completed()), Ended)
        run = await run_now(backend, job.run_id)
        assert (run.status, run.params_truncated) == (RunState.COMPLETED, False)
        assert len(run.earlier_attempts) < 17

    async def test_is_being_cancelled_by_a_live_worker_is_left_to_it(self, backend: Backend, clock: Clock) -> None:
        """FLOW-184: and if that worker is lost, the next one ends it without executing anything."""
        _, job = await recorded(backend)
        held = await taken(backend, job)
        await cancel(backend, Caller(), job.run_id, None)
        assert isinstance(await claim_run(backend, job, BERT, first_delivery=False), Busy)
        clock.now += 60
        assert await claim_run(backend, job, BERT, first_delivery=False) == Spent("cancelled")
        assert isinstance(await finish(backend, held, Completed()), Ended | Fenced)
        assert (await run_now(backend, job.run_id)).status is RunState.CANCELLED


FAILURES = [
    (True, {"runs.replace": [BEFORE]}),
    (True, {"runs.replace": [UNHEARD]}),
    (True, {"runs.replace": [AFTER]}),
    (False, {"runs.find": [BEFORE]}),
    (False, {"runs.find": [AFTER]}),
    (False, {"runs.replace": [BEFORE]}),
    (False, {"runs.replace": [AFTER]}),
]


@pytest.mark.parametrize(("first", "plan"), FAILURES, ids=str)
async def test_a_claim_that_fails_anywhere_leaves_a_run_that_the_next_delivery_takes(
    backend: Backend, clock: Clock, first: bool, plan: dict[str, list[str]]
) -> None:
    """FLOW-319"""
    _, job = await recorded(backend)
    fates = {name: list(each) for name, each in plan.items()}
    with pytest.raises(Unavailable):
        await claim_run(with_trouble(backend, Trouble(fates)), job, ANNA, first_delivery=first)
    run = await run_now(backend, job.run_id)
    took_effect = plan == {"runs.replace": [AFTER]}
    assert run.status is (RunState.RUNNING if took_effect else RunState.PENDING)
    clock.now += 60 if took_effect else 0
    held = await taken(backend, job, BERT)
    assert isinstance(await finish(backend, held, Completed()), Ended)


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_creating_the_record_of_a_foreign_job_may_fail_and_is_done_again(
    backend: Backend, clock: Clock, fate: str
) -> None:
    """FLOW-310"""
    job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="x", submitted_at=5.0)
    with pytest.raises(Unavailable):
        await claim_run(with_trouble(backend, Trouble({"runs.create": [fate]})), job, ANNA, first_delivery=True)
    assert (await backend.runs.find(job.run_id) is ABSENT) == (fate == BEFORE)
    clock.now += 60
    assert (await taken(backend, job, BERT)).run.params == run_of(job).params


class TestTwoWorkersWhoWantOneJob:
    async def test_cannot_both_have_it(self, backend: Backend) -> None:
        """FLOW-311, FLOW-178"""
        for first in (True, False):
            for _ in range(10):
                _, job = await recorded(backend)
                answers = await asyncio.gather(
                    *(claim_run(backend, job, Owner(f"w{n}", "i"), first_delivery=first) for n in range(4))
                )
                assert sorted(type(answer).__name__ for answer in answers) == ["Busy", "Busy", "Busy", "FlowAttempt"]

    async def test_end_it_once_and_the_one_who_was_overtaken_writes_nothing(
        self, backend: Backend, clock: Clock
    ) -> None:
        """FLOW-19, FLOW-311"""
        _, job = await recorded(backend)
        stale = await taken(backend, job)
        clock.now += 60
        fresh = await taken(backend, job, BERT)
        answers = await asyncio.gather(
            finish(backend, stale, Completed(progress=Progress({"a": "FAILED"}))),
            finish(backend, fresh, Completed(progress=Progress({"b": "SUCCEEDED"}))),
        )
        assert [type(answer) for answer in answers] == [Fenced, Ended]
        run = await run_now(backend, job.run_id)
        assert (run.status, run.worker_id, dict(run.tasks)) == (RunState.COMPLETED, "bert", {"b": "SUCCEEDED"})
