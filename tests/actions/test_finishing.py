"""Ending a run once, whatever fails on the way."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions import finish as finish_module
from pyoco_server.actions.bury import bury
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.finish import Ended, Fenced, Unwritten, end_unclaimed, finish
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Died, Failed, Outcome, Progress, TimedOut
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import Absent, Withdrawn
from support.backends import ANNA, BERT, Clock, a_submission, dead_letters, fields_of, logged, recorded, run_now
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble

DONE = Progress({"a": "SUCCEEDED", "b": "RUNNING", "c": "PENDING"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_module, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
async def job(backend: Backend) -> Job:
    return (await recorded(backend, a_submission(params={"n": 1})))[1]


@pytest.fixture
async def held(backend: Backend, job: Job) -> FlowAttempt:
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    return held


#: FLOW-379 to FLOW-384: what the work did, whether a cancel was requested, and how the run ends.
ENDS: list[tuple[Outcome, bool, RunState, str | None]] = [
    (Completed(progress=DONE), False, RunState.COMPLETED, None),
    (Cancelled(progress=DONE), True, RunState.CANCELLED, None),
    (Completed(progress=DONE), True, RunState.CANCELLED, None),
    (Failed(message="oh", progress=DONE), False, RunState.FAILED, "oh"),
    (Failed(message="oh", progress=DONE), True, RunState.CANCELLED, "oh"),
    (Cancelled(progress=DONE), False, RunState.FAILED, "the engine stopped the run"),
    (TimedOut(seconds=3, progress=DONE), False, RunState.FAILED, "the run took longer than 3 s and was stopped"),
    (Died(how="gone", progress=DONE), False, RunState.FAILED, "the process that executed the run ended: gone"),
]


@pytest.mark.parametrize(("outcome", "asked", "status", "error"), ENDS)
async def test_the_end_follows_from_the_outcome_and_a_cancel_outranks_it(
    backend: Backend,
    clock: Clock,
    held: FlowAttempt,
    outcome: Outcome,
    asked: bool,
    status: RunState,
    error: str | None,
) -> None:
    """FLOW-14, FLOW-15, FLOW-17, FLOW-20, FLOW-23, FLOW-348, FLOW-379 to FLOW-384"""
    if asked:
        await cancel(backend, Caller(), held.run.run_id, None)
    clock.now += 2
    ended = await finish(backend, held, outcome)
    assert isinstance(ended, Ended)
    run = await run_now(backend, held.run.run_id)
    assert run == ended.run
    assert (run.status, run.error, run.end_time) == (status, error, clock.now)
    assert (run.reason is not None) == (status is RunState.FAILED)  # FLOW-182: no dead letter for a cancelled run
    assert "RUNNING" not in run.tasks.values()


async def test_ending_costs_one_write(backend: Backend, held: FlowAttempt) -> None:
    trouble = Trouble()
    await finish(with_trouble(backend, trouble), held, Completed())
    assert trouble.calls == ["runs.replace"]


class TestAWriteThatFails:
    @pytest.mark.parametrize("fates", [[BEFORE], [UNHEARD], [BEFORE, UNHEARD]], ids=str)
    async def test_is_tried_three_times(
        self, backend: Backend, held: FlowAttempt, caplog: pytest.LogCaptureFixture, fates: list[str]
    ) -> None:
        """FLOW-322"""
        with caplog.at_level(logging.ERROR):
            ended = await finish(with_trouble(backend, Trouble({"runs.replace": list(fates)})), held, Completed())
        assert isinstance(ended, Ended)
        assert len(logged(caplog.records, 8)) == len(fates)
        assert (await run_now(backend, held.run.run_id)).status is RunState.COMPLETED

    @pytest.mark.parametrize("outcome", [Completed(), Failed(message="oh")])
    async def test_and_had_worked_is_recognised_as_our_own(
        self, backend: Backend, held: FlowAttempt, outcome: Outcome
    ) -> None:
        """FLOW-19, FLOW-322: the answer was lost, the end was not."""
        ended = await finish(with_trouble(backend, Trouble({"runs.replace": [AFTER]})), held, outcome)
        assert isinstance(ended, Ended)
        assert await run_now(backend, held.run.run_id) == ended.run

    async def test_and_had_worked_is_recognised_after_more_trouble(self, backend: Backend, held: FlowAttempt) -> None:
        trouble = Trouble({"runs.replace": [AFTER], "runs.find": [BEFORE]})
        assert isinstance(await finish(with_trouble(backend, trouble), held, Completed()), Ended)

    async def test_for_good_leaves_the_run_to_the_next_delivery(
        self, backend: Backend, clock: Clock, job: Job, held: FlowAttempt
    ) -> None:
        """FLOW-320, FLOW-322"""
        trouble = Trouble({"runs.replace": [BEFORE] * 3})
        assert isinstance(await finish(with_trouble(backend, trouble), held, Completed()), Unwritten)
        assert trouble.calls == ["runs.replace"] * 3
        assert (await run_now(backend, job.run_id)).status is RunState.RUNNING
        clock.now += 60
        again = await claim_run(backend, job, BERT, first_delivery=False)
        assert isinstance(again, FlowAttempt)
        assert isinstance(await finish(backend, again, Completed()), Ended)

    async def test_for_good_but_had_worked_is_found_ended_by_the_next_delivery(
        self, backend: Backend, job: Job, held: FlowAttempt
    ) -> None:
        """FLOW-309"""
        trouble = Trouble({"runs.replace": [AFTER, BEFORE, BEFORE]})
        assert isinstance(await finish(with_trouble(backend, trouble), held, Completed()), Unwritten)
        assert await claim_run(backend, job, BERT, first_delivery=False) == Spent("ended")


class TestALateWriter:
    async def test_loses_unseen_by_the_user_and_seen_in_the_log(
        self, backend: Backend, clock: Clock, job: Job, held: FlowAttempt, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-19, FLOW-311"""
        clock.now += 60
        newer = await claim_run(backend, job, BERT, first_delivery=False)
        assert isinstance(newer, FlowAttempt)
        with caplog.at_level(logging.WARNING):
            assert isinstance(await finish(backend, held, Failed(message="late")), Fenced)
        assert await run_now(backend, job.run_id) == newer.run
        [told] = [record for record in caplog.records if "another attempt owns the run" in record.message]
        assert fields_of(told) == {"run_id": job.run_id, "attempt": 1, "outcome": "Failed"}

    async def test_never_overwrites_an_end(self, backend: Backend, clock: Clock, job: Job, held: FlowAttempt) -> None:
        """FLOW-19"""
        clock.now += 60
        newer = await claim_run(backend, job, BERT, first_delivery=False)
        assert isinstance(newer, FlowAttempt)
        ended = await finish(backend, newer, Completed())
        assert isinstance(ended, Ended)
        for outcome in (Completed(), Failed(message="late"), Died(how="x")):
            assert isinstance(await finish(backend, replace(held), outcome), Fenced)
        assert await run_now(backend, job.run_id) == ended.run

    async def test_whose_run_is_gone_writes_nothing(self, backend: Backend, held: FlowAttempt) -> None:
        assert await backend.runs.withdraw(held.run.run_id, held.revision)
        assert isinstance(await finish(backend, held, Completed()), Fenced)


async def test_a_cancel_that_comes_while_the_end_is_written_wins(backend: Backend, held: FlowAttempt) -> None:
    """FLOW-20, FLOW-178"""

    async def cancelled() -> None:
        await cancel(backend, Caller(), held.run.run_id, "now")

    # The first try is lost on its way; by the second the record says CANCELLING.
    trouble = Trouble({"runs.replace": [BEFORE]})
    flaky = with_trouble(backend, trouble)
    await cancelled()
    ended = await finish(flaky, held, Completed())
    assert isinstance(ended, Ended)
    assert (ended.run.status, ended.run.cancel_reason) == (RunState.CANCELLED, "now")


class TestASnapshotThatDoesNotFit:
    @pytest.mark.parametrize("fates", [[], [AFTER], [BEFORE]], ids=str)
    async def test_is_replaced_by_the_smallest_one(
        self, link: Link, backend: Backend, caplog: pytest.LogCaptureFixture, fates: list[str]
    ) -> None:
        """FLOW-363"""
        _, job = await recorded(backend, a_submission(params={"big": "x" * 2000}))
        held = await claim_run(backend, job, ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        small = replace(backend, runs=JetStreamRuns(link, backend.config.runs_kv_bucket, 1200))
        trouble = Trouble({"runs.replace_smallest": list(fates)})
        with caplog.at_level(logging.ERROR):
            ended = await finish(with_trouble(small, trouble), held, Completed(progress=DONE))
        assert isinstance(ended, Ended)
        run = await run_now(backend, job.run_id)
        assert run == ended.run
        assert (run.status, run.params, run.params_truncated) == (RunState.COMPLETED, {}, True)
        assert "ERR-PYOCO-0010" in (run.error or "")
        assert set(run.tasks) == {"a", "b", "c"}
        assert logged(caplog.records, 10)


class TestEndingARunThatNobodyCanExecute:
    async def test_fails_it(self, backend: Backend, job: Job) -> None:
        """FLOW-15, FLOW-316"""
        run = await end_unclaimed(backend, job.run_id, "bad", DeadReason.INVALID_JOB)
        assert isinstance(run, Run)
        assert run == await run_now(backend, job.run_id)
        assert (run.status, run.error, run.reason) == (RunState.FAILED, "bad", "invalid_job")

    async def test_leaves_one_that_has_ended(self, backend: Backend, job: Job, held: FlowAttempt) -> None:
        """FLOW-19"""
        ended = await finish(backend, held, Completed())
        assert isinstance(ended, Ended)
        assert await end_unclaimed(backend, job.run_id, "bad", DeadReason.INVALID_JOB) == ended.run
        assert await run_now(backend, job.run_id) == ended.run

    async def test_ends_one_that_is_being_cancelled_as_cancelled(self, backend: Backend, job: Job) -> None:
        """FLOW-20"""
        await cancel(backend, Caller(), job.run_id, None)
        run = await end_unclaimed(backend, job.run_id, "bad", DeadReason.INVALID_JOB)
        assert isinstance(run, Run)
        assert (run.status, run.reason) == (RunState.CANCELLED, None)
        assert await run_now(backend, job.run_id) == run

    async def test_tells_why_there_is_none(self, backend: Backend) -> None:
        """FLOW-310"""
        assert isinstance(await end_unclaimed(backend, backend.new_id(), "bad", DeadReason.INVALID_JOB), Absent)
        stored, _ = await recorded(backend)
        assert await backend.runs.withdraw(stored.run.run_id, stored.revision)
        assert isinstance(await end_unclaimed(backend, stored.run.run_id, "bad", DeadReason.INVALID_JOB), Withdrawn)


def a_letter(reason: DeadReason, **more: Any) -> DeadLetter:
    return DeadLetter(timestamp=1.0, reason=reason, error="e", tag="gpu", run_id="r", **more)


class TestBurying:
    async def test_sets_a_letter_aside_under_its_tag(self, link: Link, backend: Backend) -> None:
        """FLOW-330 to FLOW-334"""
        await bury(backend, a_letter(DeadReason.FLOW_NOT_FOUND, num_delivered=2), "id")
        [letter] = await dead_letters(link, backend.config)
        assert letter["subject"] == f"{backend.config.dlq_subject_prefix}.gpu"
        assert letter["body"] == {
            "timestamp": 1.0,
            "reason": "flow_not_found",
            "error": "e",
            "run_id": "r",
            "tag": "gpu",
            "num_delivered": 2,
        }

    async def test_of_execution_errors_can_be_switched_off_and_of_nothing_else(
        self, link: Link, backend: Backend
    ) -> None:
        """FLOW-335"""
        quiet = replace(backend, config=replace(backend.config, dlq_publish_execution_error=False))
        for reason in DeadReason:
            await bury(quiet, a_letter(reason), f"id {reason}")
        told = [letter["body"]["reason"] for letter in await dead_letters(link, backend.config)]
        assert sorted(told) == sorted(set(DeadReason) - {DeadReason.EXECUTION_ERROR})

    @pytest.mark.parametrize("fate", [BEFORE, AFTER, UNHEARD])
    async def test_that_fails_is_logged_and_changes_nothing(
        self, backend: Backend, caplog: pytest.LogCaptureFixture, fate: str
    ) -> None:
        """FLOW-336"""
        with caplog.at_level(logging.ERROR):
            await bury(with_trouble(backend, Trouble({"queue.bury": [fate]})), a_letter(DeadReason.TIMEOUT), "id")
        [told] = logged(caplog.records, 11)
        assert told["run_id"] == "r"
