"""Showing that a run is alive, and hearing what has become of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.beat import beat_run, report_overdue_cancel
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, BERT, Clock, a_submission, logged, recorded, run_now
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble

SOME = Progress({"a": "RUNNING"}, {"a": {"state": "RUNNING", "output": None}})


@pytest.fixture
async def held(backend: Backend) -> FlowAttempt:
    _, job = await recorded(backend, a_submission(params={"n": 1}))
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    return held


async def test_a_heartbeat_shows_progress_and_life_and_nothing_else(
    backend: Backend, clock: Clock, held: FlowAttempt
) -> None:
    """FLOW-349, FLOW-350, FLOW-374"""
    before = held.run
    clock.now += 1
    assert await beat_run(backend, held, SOME) is Standing.OURS
    after = await run_now(backend, before.run_id)
    assert after == held.run
    assert after == replace(
        before, heartbeat_at=clock.now, updated_at=clock.now, tasks=SOME.tasks, task_records=SOME.task_records
    )


async def test_a_heartbeat_without_news_keeps_what_is_known(backend: Backend, held: FlowAttempt) -> None:
    await beat_run(backend, held, SOME)
    await beat_run(backend, held, None)
    assert (await run_now(backend, held.run.run_id)).tasks == SOME.tasks


async def test_a_cancel_request_is_heard_and_survives_the_heartbeat(backend: Backend, held: FlowAttempt) -> None:
    """FLOW-178, FLOW-179"""
    await cancel(backend, Caller(), held.run.run_id, "enough")
    assert await beat_run(backend, held, SOME) is Standing.CANCEL_REQUESTED
    assert await beat_run(backend, held, SOME) is Standing.CANCEL_REQUESTED
    run = await run_now(backend, held.run.run_id)
    assert (run.status, run.cancel_reason, run.tasks) == (RunState.CANCELLING, "enough", SOME.tasks)


async def test_who_was_overtaken_hears_it_and_writes_nothing(backend: Backend, clock: Clock, held: FlowAttempt) -> None:
    """FLOW-311"""
    clock.now += 60
    again = Job(run_id=held.run.run_id, flow_name="flow", tag="default", submitted_at=1.0)
    newer = await claim_run(backend, again, BERT, first_delivery=False)
    assert isinstance(newer, FlowAttempt)
    assert await beat_run(backend, held, SOME) is Standing.FENCED
    assert await report_overdue_cancel(backend, held, 1.0) is Standing.FENCED
    assert not await put_back_run(backend, held)
    assert await run_now(backend, held.run.run_id) == newer.run


async def test_a_run_somebody_else_ended_is_not_ours_any_more(backend: Backend, held: FlowAttempt) -> None:
    """FLOW-311, FLOW-19"""
    twin = FlowAttempt(held.run, held.revision, held.attempt_id)
    ended = await finish(backend, twin, Completed())
    assert isinstance(ended, Ended)
    assert await beat_run(backend, held, SOME) is Standing.FENCED
    assert await run_now(backend, held.run.run_id) == ended.run


async def test_after_the_end_no_heartbeat_is_written(backend: Backend, held: FlowAttempt) -> None:
    """FLOW-376"""
    ended = await finish(backend, held, Completed())
    assert isinstance(ended, Ended)
    trouble = Trouble()
    await beat_run(with_trouble(backend, trouble), held, SOME)
    await report_overdue_cancel(with_trouble(backend, trouble), held, 1.0)
    assert not await put_back_run(with_trouble(backend, trouble), held)
    assert trouble.calls == []


async def test_progress_that_does_not_fit_is_skipped_and_said(
    link: Link, backend: Backend, clock: Clock, held: FlowAttempt, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-362"""
    small = replace(backend, runs=JetStreamRuns(link, backend.config.runs_kv_bucket, 1200))
    clock.now += 1
    too_much = Progress({f"task {n}": "RUNNING" for n in range(100)})
    with caplog.at_level(logging.WARNING):
        assert await beat_run(small, held, too_much) is Standing.OURS
    assert len(logged(caplog.records, 10)) == 1
    run = await run_now(backend, held.run.run_id)
    assert (run.heartbeat_at, run.tasks) == (clock.now, {})


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["runs.replace", "runs.find"])
async def test_a_lost_heartbeat_costs_nothing_but_itself(
    backend: Backend, held: FlowAttempt, call: str, fate: str
) -> None:
    """FLOW-374: the next one continues from what is stored."""
    if call == "runs.find":  # it is read only after a conflict
        await cancel(backend, Caller(), held.run.run_id, None)
    with pytest.raises(Unavailable):
        await beat_run(with_trouble(backend, Trouble({call: [fate]})), held, SOME)
    wanted = Standing.OURS if call == "runs.replace" else Standing.CANCEL_REQUESTED
    assert await beat_run(backend, held, SOME) is wanted
    assert await beat_run(backend, held, SOME) is wanted
    assert (await run_now(backend, held.run.run_id)).tasks == SOME.tasks
    assert isinstance(await finish(backend, held, Completed()), Ended)


async def test_an_overdue_cancel_is_told_in_the_record(backend: Backend, held: FlowAttempt) -> None:
    """FLOW-186"""
    await cancel(backend, Caller(), held.run.run_id, None)
    await beat_run(backend, held, None)
    assert await report_overdue_cancel(backend, held, 30.0) is Standing.CANCEL_REQUESTED
    run = await run_now(backend, held.run.run_id)
    assert run.status is RunState.CANCELLING
    assert (run.error or "").startswith("ERR-PYOCO-0021")


class TestPuttingBack:
    async def test_leaves_a_run_that_nobody_owns(self, backend: Backend, held: FlowAttempt) -> None:
        assert await put_back_run(backend, held)
        run = await run_now(backend, held.run.run_id)
        assert (run.status, run.worker_id, run.attempt_id, run.attempt) == (RunState.PENDING, None, None, 1)
        assert await beat_run(backend, held, SOME) is Standing.OURS  # and writes nothing
        assert await run_now(backend, held.run.run_id) == run

    async def test_is_not_done_when_a_cancel_waits_to_be_served(self, backend: Backend, held: FlowAttempt) -> None:
        """FLOW-20"""
        await cancel(backend, Caller(), held.run.run_id, None)
        assert not await put_back_run(backend, held)
        ended = await finish(backend, held, Completed())
        assert isinstance(ended, Ended)
        assert ended.run.status is RunState.CANCELLED

    async def test_is_done_although_the_record_was_written_meanwhile(self, backend: Backend, held: FlowAttempt) -> None:
        """A member that another version has added, say."""
        other = replace(held.run, extra={"colour": "red"})
        assert isinstance(await backend.runs.replace(other, held.revision), Stored)
        assert await put_back_run(backend, held)
        run = await run_now(backend, held.run.run_id)
        assert (run.status, run.extra) == (RunState.PENDING, {"colour": "red"})

    async def test_is_known_to_be_done_although_the_answer_was_lost(self, backend: Backend, held: FlowAttempt) -> None:
        """The store writes again after an outage, and finds its own record."""
        assert await put_back_run(backend, FlowAttempt(held.run, held.revision, held.attempt_id))
        before = await run_now(backend, held.run.run_id)
        assert await put_back_run(backend, held)
        assert held.is_put_back
        assert await run_now(backend, held.run.run_id) == before

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_in_an_outage_leaves_an_attempt_that_writes_nothing_more(
        self, backend: Backend, clock: Clock, held: FlowAttempt, fate: str
    ) -> None:
        """RETRY-15: the next delivery claims the run, at once or when its heartbeat is stale, and no try is used up."""
        with pytest.raises(Unavailable):
            await put_back_run(with_trouble(backend, Trouble({"runs.replace": [fate]})), held)
        trouble = Trouble()
        assert await beat_run(with_trouble(backend, trouble), held, SOME) is Standing.OURS
        assert trouble.calls == []
        clock.now += 0 if fate == AFTER else 60
        job = Job(run_id=held.run.run_id, flow_name="flow", tag="default", submitted_at=1.0)
        again = await claim_run(backend, job, BERT, first_delivery=False)
        assert isinstance(again, FlowAttempt)
        assert [past["why"] for past in again.run.earlier_attempts] == ["handed_back" if fate == AFTER else "lost"]

    async def test_costs_one_write(self, backend: Backend, held: FlowAttempt) -> None:
        trouble = Trouble()
        assert await put_back_run(with_trouble(backend, trouble), held)
        assert trouble.calls == ["runs.replace"]
