"""Tries of a run under a policy: counted once each, bounded, and followed by the next one at its time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions import finish as finish_module
from pyoco_server.actions.bury import bury_run
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.finish import Ended, Retried, finish
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.actions.release_run import release_due
from pyoco_server.core.change import What, last_change
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import (
    Completed,
    DeadReason,
    Died,
    Failed,
    Outcome,
    Progress,
    TaskTimedOut,
    Terms,
    TimedOut,
)
from pyoco_server.core.retries.matching import raised
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.snapshot import shown_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Leftover
from support.backends import ANNA, BERT, Clock, a_submission, dead_letters, jobs_left, recorded, run_now
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble

OH = Failed(message="oh", cause=raised(["builtins.OSError", "builtins.Exception"]))


def policy(tries: int = 3, **more: Any) -> dict[str, Any]:
    return {"tries": tries, "jitter": 0.0, **more}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_module, "_PAUSE_SECONDS", 0.0)


async def a_run(backend: Backend, **more: Any) -> Job:
    return (await recorded(backend, a_submission(**{"retry": policy(), **more})))[1]


async def claimed(backend: Backend, job: Job, *, first: bool = False) -> FlowAttempt:
    held = await claim_run(backend, job, ANNA, first_delivery=first)
    assert isinstance(held, FlowAttempt), held
    return held


async def released(backend: Backend, clock: Clock, job: Job) -> None:
    clock.now += await release_due(backend, job.run_id)
    assert await release_due(backend, job.run_id) == 0


async def failed_try(backend: Backend, clock: Clock, job: Job, outcome: Outcome = OH) -> Run:
    """One try, from its claim to its end."""
    clock.now += 1
    held = await claimed(backend, job)
    clock.now += 10
    result = await finish(backend, held, outcome)
    assert isinstance(result, Ended | Retried)
    return result.run


async def test_a_failed_try_waits_for_the_next_one_without_a_job_or_an_owner(backend: Backend, clock: Clock) -> None:
    """RETRY-12, RETRY-14"""
    job = await a_run(backend, timeout=60.0)
    first = await claimed(backend, job, first=True)  # over its revision: the job carries the policy
    clock.now += 10
    result = await finish(backend, first, OH)
    assert isinstance(result, Retried)
    run = await run_now(backend, job.run_id)
    assert (run.status, run.waits_for, run.not_before) == (RunState.PENDING, "retry", clock.now + 1)
    assert (run.worker_id, run.attempt_id, run.error) == (None, None, "oh")
    change = last_change(run)
    assert (change.what, change.at, change.by.id) == (What.RETRYING, clock.now, "anna")
    shown = shown_snapshot(run)
    assert (shown["try"], shown["max_tries"], shown["timeout"]) == (2, 3, 60.0)
    assert shown["tries"] == [
        {
            "try": 1,
            "attempts": [1],
            "worker_id": "anna",
            "started_at": clock.now - 10,
            "ended_at": clock.now,
            "reason": "execution_error",
            "error": "oh",
            "kind": "exception:OSError",
        }
    ]
    assert await claim_run(backend, job, BERT, first_delivery=False) == Spent("not due yet")


async def test_the_last_failed_try_ends_the_run_with_all_tries_in_its_letter(
    link: Link, backend: Backend, clock: Clock
) -> None:
    """RETRY-8, RETRY-15, RETRY-17"""
    job, waits = await a_run(backend), []
    for _ in range(2):
        run = await failed_try(backend, clock, job)
        assert run.not_before is not None
        waits.append(run.not_before - clock.now)
        await released(backend, clock, job)
    run = await failed_try(backend, clock, job, Died(how="killed", status=-9))
    assert (run.status, run.reason, waits) == (RunState.FAILED, "host_killed", [1.0, 2.0])
    assert [entry["kind"] for entry in run.tries] == ["exception:OSError", "exception:OSError", "signal:9"]
    assert [entry["attempts"] for entry in run.tries] == [[1], [2], [3]]
    assert (shown_snapshot(run)["try"], shown_snapshot(run)["max_tries"]) == (3, 3)
    assert await bury_run(backend, run)
    (letter,) = await dead_letters(link, backend.config)
    assert letter["body"]["tries"] == list(run.tries)
    assert len(await jobs_left(link, backend.config)) == 2  # one for each try after the first


async def test_success_after_a_retry_keeps_the_tries(backend: Backend, clock: Clock) -> None:
    """RETRY-17"""
    job = await a_run(backend)
    await failed_try(backend, clock, job)
    await released(backend, clock, job)
    run = await failed_try(backend, clock, job, Completed())
    assert (run.status, len(run.tries), shown_snapshot(run)["try"]) == (RunState.COMPLETED, 1, 2)


NEVER: list[Outcome] = [
    Failed(message="no", why=DeadReason.INVALID_JOB),
    Failed(message="no", why=DeadReason.FLOW_NOT_FOUND),
    Failed(message="ERR-PYOCO-0031: refused", why=DeadReason.FLOW_NOT_FOUND),
]


@pytest.mark.parametrize("outcome", NEVER)
async def test_what_would_fail_again_is_never_retried(backend: Backend, clock: Clock, outcome: Outcome) -> None:
    """RETRY-10"""
    run = await failed_try(backend, clock, await a_run(backend), outcome)
    assert (run.status, run.reason, [entry["kind"] for entry in run.tries]) == (
        RunState.FAILED,
        outcome.reason,
        [outcome.reason],
    )


async def test_a_cancelled_run_is_never_retried(backend: Backend, clock: Clock) -> None:
    """RETRY-10"""
    job = await a_run(backend)
    held = await claimed(backend, job)
    await cancel(backend, Caller(), job.run_id, None)
    result = await finish(backend, held, OH)
    assert isinstance(result, Ended)
    assert (result.run.status, result.run.tries) == (RunState.CANCELLED, ())


async def test_only_named_failures_are_retried(backend: Backend, clock: Clock) -> None:
    """RETRY-6, RETRY-16"""
    job = await a_run(backend, retry=policy(retry_on=["timeout"]))
    assert (await failed_try(backend, clock, job, TimedOut(seconds=3))).waits_for == "retry"
    await released(backend, clock, job)
    run = await failed_try(backend, clock, job)
    assert (run.status, [entry["kind"] for entry in run.tries]) == (RunState.FAILED, ["timeout", "exception:OSError"])


async def test_no_try_begins_after_the_deadline(link: Link, backend: Backend, clock: Clock) -> None:
    """RETRY-7: neither is one planned, nor does one begin that had to wait for a worker."""
    job = await a_run(backend, retry=policy(9, delay=5, backoff="fixed", deadline=30))
    await failed_try(backend, clock, job)  # at 10 s
    await released(backend, clock, job)
    clock.now += 20
    spent = await claim_run(backend, job, BERT, first_delivery=False)
    assert isinstance(spent, Spent)
    run = await run_now(backend, job.run_id)
    assert (run.status, run.reason, run.error) == (RunState.FAILED, "execution_error", "oh")
    assert (run.attempt, len(run.tries)) == (1, 1)
    other = await a_run(backend, retry=policy(9, delay=25, backoff="fixed", deadline=30))
    assert (await failed_try(backend, clock, other)).status is RunState.FAILED


async def test_what_the_flow_says_counts_where_the_submission_says_nothing(backend: Backend, clock: Clock) -> None:
    """RETRY-12"""
    said = replace(OH, progress=Progress(terms=Terms(retry=policy(2), timeout=7.0)))
    run = await failed_try(backend, clock, await a_run(backend, retry=None), said)
    assert (run.waits_for, run.retry, run.timeout) == ("retry", policy(2), 7.0)
    refused = await failed_try(backend, clock, await a_run(backend, retry={}, timeout=9.0), said)
    assert (refused.status, refused.tries, refused.timeout) == (RunState.FAILED, (), 9.0)
    assert shown_snapshot(refused)["retry"] is None


async def test_a_timeout_is_never_above_that_of_the_worker(backend: Backend) -> None:
    """RETRY-16"""
    strict = replace(backend, config=replace(backend.config, run_timeout_sec=30.0))
    assert (await claimed(strict, await a_run(strict, timeout=60.0), first=True)).run.timeout == 30.0
    assert (await claimed(strict, await a_run(strict, timeout=20.0), first=True)).run.timeout == 20.0


class TestKilledAtAnyPoint:
    @pytest.mark.parametrize("fates", [[BEFORE], [AFTER], [BEFORE, AFTER], [AFTER, BEFORE]], ids=str)
    async def test_a_failed_try_is_counted_once(self, backend: Backend, clock: Clock, fates: list[str]) -> None:
        """RETRY-15: whatever becomes of the answer to its write."""
        held = await claimed(backend, await a_run(backend))
        trouble = Trouble({"runs.replace": list(fates)})
        result = await finish(with_trouble(backend, trouble), held, OH)
        assert isinstance(result, Retried)
        assert len((await run_now(backend, held.run.run_id)).tries) == 1

    async def test_a_late_report_counts_nothing(self, backend: Backend, clock: Clock) -> None:
        """RETRY-15: the next attempt owns the run."""
        job = await a_run(backend)
        late = await claimed(backend, job)
        clock.now += 100
        await claimed(backend, job)
        await finish(backend, late, OH)
        run = await run_now(backend, job.run_id)
        assert (run.status, run.attempt, run.tries) == (RunState.RUNNING, 2, ())

    async def test_lost_and_handed_back_attempts_use_up_no_try(self, backend: Backend, clock: Clock) -> None:
        """RETRY-15"""
        job = await a_run(backend)
        await put_back_run(backend, await claimed(backend, job))
        await claimed(backend, job)
        clock.now += 100
        run = (await claimed(backend, job)).run
        assert (run.attempt, run.attempts_lost, run.tries) == (3, 2, ())
        clock.now += 100
        run = await failed_try(backend, clock, job)
        assert [(entry["try"], entry["attempts"]) for entry in run.tries] == [(1, [1, 2, 3, 4])]
        assert run.attempts_lost == 3

    @pytest.mark.parametrize("retry_on", [["*"], ["*", "lost"]], ids=str)
    async def test_a_job_given_up_by_the_queue_is_one_failed_try_if_that_is_retried(
        self, backend: Backend, clock: Clock, retry_on: list[str]
    ) -> None:
        """RETRY-15"""
        clock.now = time.time() + 300  # ahead of the store's, with which a keeper compares it
        job = await a_run(backend, retry=policy(retry_on=retry_on))
        await claimed(backend, job)
        clock.now += 1000
        leftover = Leftover("default", 1, encode_job(job), "")
        for _ in range(2):  # several keepers may try
            assert await give_up(backend, leftover, 20) is None
        run = await run_now(backend, job.run_id)
        if "lost" in retry_on:
            assert [entry["kind"] for entry in run.tries] == ["lost"]
            assert (run.waits_for, run.attempts_lost) == ("retry", 0)
        else:
            assert (run.status, run.reason, run.tries) == (RunState.FAILED, "max_deliver", ())


TRIES = {"load": {"first_try_at": 5.0, "tries": [{"try": 1, "kind": "timeout"}]}}


async def test_a_task_that_may_try_again_restarts_the_run_without_using_up_its_try(
    backend: Backend, clock: Clock
) -> None:
    """RETRY-16: with the count of the task kept."""
    job = await a_run(backend, retry=None)
    slow = TaskTimedOut(task="load", seconds=3, task_tries=TRIES, again_after=4.0)
    run = await failed_try(backend, clock, job, slow)
    assert (run.waits_for, run.not_before, run.tries, run.attempts_lost) == ("retry", clock.now + 4, (), 0)
    assert last_change(run).what is What.RETRYING
    await released(backend, clock, job)
    again = await claimed(backend, job)
    assert again.run.task_tries == TRIES
    result = await finish(backend, again, replace(slow, again_after=None))
    assert isinstance(result, Ended)
    assert (result.run.status, result.run.reason) == (RunState.FAILED, "timeout")
    record = result.run.task_records["load"]
    assert (record["state"], record["tries"]) == ("FAILED", [{"try": 1, "kind": "timeout"}])


async def test_the_tries_of_tasks_are_counted_on_after_a_lost_worker_and_anew_in_the_next_try(
    backend: Backend, clock: Clock
) -> None:
    """RETRY-13, RETRY-15"""
    job = await a_run(backend)
    held = await claimed(backend, job)
    records = {"load": {"state": "RUNNING", **TRIES["load"]}, "save": {"state": "PENDING"}}
    written = await backend.runs.replace(replace(held.run, task_records=records), held.revision)
    clock.now += 100
    assert (await claimed(backend, job)).run.task_tries == TRIES
    clock.now += 100
    assert (await failed_try(backend, clock, job)).task_tries == {}
    assert written is not None
