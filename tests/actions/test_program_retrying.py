"""Programs under a retry policy: failed tries are counted, and the next one comes at its time (RETRY-18)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import Passed, claim_job, free_slot
from pyoco_server.actions.programs.finish import Settlement, finish_job, finish_reported
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.requeue import Again, rerun_job
from pyoco_server.actions.release_run import release_due
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.change import What, last_change
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.snapshot import shown_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import Clock, dead_letters
from support.faulty_ports import AFTER, BEFORE, Trouble
from support.grid.acts import (
    BROKEN,
    DONE,
    FAILED,
    claimed,
    exact,
    job_submitted,
    run_of,
    slot_of,
    taken,
    troubled,
)
from support.grid.program_stage import a_store
from support.servers import unique

TIMEOUT = Report(status=RunState.FAILED, error_code=ErrorCode.RUN_TIMEOUT, error="too long")
KILLED = Report(status=RunState.FAILED, exit_code=-9, error_code=ErrorCode.SIGNALED, error="killed")
REFUSED = Report(status=RunState.FAILED, error_code=ErrorCode.INPUT_MISSING, error="a file is missing")


def policy(tries: int = 3, **more: Any) -> dict[str, Any]:
    return {"tries": tries, "jitter": 0.0, **more}


@pytest.fixture
async def grid(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    async with a_store(config, unique("g"), exec_max_lost=2, exec_worker_down_delay_sec=0.05) as backend:
        yield replace(backend, clock=clock)


async def a_run(grid: Backend, **more: Any) -> Run:
    return (await job_submitted(grid, **{"retry": policy(), **more})).run


async def reported(grid: Backend, run: Run, report: Report = FAILED) -> ProgramAttempt:
    attempt = await claimed(grid, run)
    await finish_job(grid, attempt, report, ())
    if attempt.slot is not None:
        await free_slot(grid, attempt.slot)
    return attempt


async def released(grid: Backend, clock: Clock, run: Run) -> None:
    clock.now += await release_due(grid, run.run_id)
    assert await release_due(grid, run.run_id) == 0


async def test_a_failed_try_waits_without_a_message(grid: Backend, clock: Clock) -> None:
    """RETRY-14, RETRY-18: its message is not kept in flight, because the wait may take days."""
    run = await a_run(grid, retry=policy(delay=600))
    attempt = await claimed(grid, run)
    clock.now += 5
    assert await finish_job(grid, attempt, FAILED, ()) is Settlement.PUT_BACK
    assert attempt.slot is not None
    await free_slot(grid, attempt.slot)
    found = await run_of(grid, run.run_id)
    assert (found.status, found.waits_for, found.due_at) == (RunState.PENDING, "retry", clock.now + 600)
    assert last_change(found).what is What.RETRYING
    shown = shown_snapshot(found)
    assert (shown["try"], shown["max_tries"], shown["retry"]["tries"]) == (2, 3, 3)
    assert [(entry["try"], entry["attempts"], entry["kind"]) for entry in shown["tries"]] == [(1, [1], "exit:3")]
    await released(grid, clock, run)
    again = await reported(grid, run, DONE)
    ended = await exact(grid, again)
    assert (ended.status, len(ended.tries), program_of(ended).exit_code) == (RunState.COMPLETED, 1, 0)


async def test_the_last_try_ends_the_run_as_it_failed(
    link: Link, config: NatsBackendConfig, grid: Backend, clock: Clock
) -> None:
    """RETRY-15, RETRY-17, RETRY-18"""
    run = await a_run(grid)
    for report in (KILLED, TIMEOUT):
        await reported(grid, run, report)
        await released(grid, clock, run)
    await reported(grid, run)
    ended = await run_of(grid, run.run_id)
    assert (ended.status, ended.reason, program_of(ended).exit_code) == (RunState.FAILED, "execution_error", 3)
    assert [entry["kind"] for entry in ended.tries] == ["signal:9", "timeout", "exit:3"]
    (letter,) = await dead_letters(link, config)
    assert letter["body"]["tries"] == list(ended.tries)


@pytest.mark.parametrize(("report", "retry"), [(REFUSED, policy()), (FAILED, policy(retry_on=["exit:4-9"]))])
async def test_other_failures_end_it_at_once(grid: Backend, report: Report, retry: dict[str, Any]) -> None:
    """RETRY-6, RETRY-10"""
    run = await a_run(grid, retry=retry)
    await reported(grid, run, report)
    ended = await run_of(grid, run.run_id)
    assert (ended.status, len(ended.tries)) == (RunState.FAILED, 1)


async def test_without_a_policy_a_failure_is_final(grid: Backend) -> None:
    """RETRY-18, GRID-82"""
    run = await a_run(grid, retry=None)
    await reported(grid, run)
    ended = await run_of(grid, run.run_id)
    assert (ended.status, ended.tries, "try" in shown_snapshot(ended)) == (RunState.FAILED, (), False)


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_a_failed_try_is_counted_once(grid: Backend, fate: str) -> None:
    """RETRY-15: the answer of the write is lost, and the worker reports again."""
    run = await a_run(grid)
    attempt = await claimed(grid, run)
    flaky = troubled(grid, Trouble({"runs.replace": [fate]}))
    for _ in range(2):
        with contextlib.suppress(Unavailable):
            await finish_job(flaky, attempt, FAILED, ())
    found = await run_of(grid, run.run_id)
    assert (found.waits_for, len(found.tries)) == ("retry", 1)
    late = await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", FAILED, ())
    assert late is Settlement.STALE
    assert len((await run_of(grid, run.run_id)).tries) == 1


async def test_a_late_failure_of_a_lost_attempt_is_a_failed_try(grid: Backend, clock: Clock) -> None:
    """RETRY-15: it was not lost after all."""
    run = await a_run(grid)
    attempt = await claimed(grid, run)
    assert attempt.slot is not None
    await put_back(grid, attempt, Why.WORKER_DOWN)
    assert (await run_of(grid, run.run_id)).attempts_lost == 1
    await finish_reported(grid, run.run_id, attempt.attempt_id, "w1", FAILED, ())
    found = await run_of(grid, run.run_id)
    assert (found.waits_for, len(found.tries), found.attempts_lost, program_of(found).lost) == ("retry", 1, 0, 0)


@pytest.mark.parametrize("retry_on", [["*"], ["*", "lost"]], ids=str)
async def test_lost_attempts_are_bounded_over_the_whole_run(grid: Backend, clock: Clock, retry_on: list[str]) -> None:
    """RETRY-15"""
    run = await a_run(grid, retry=policy(retry_on=retry_on))
    await reported(grid, run)
    await released(grid, clock, run)
    for _ in range(2):
        attempt = await claimed(grid, run)
        await put_back(grid, attempt, Why.WORKER_DOWN)
        assert attempt.slot is not None
        await free_slot(grid, attempt.slot)
        clock.now += 100
    found = await run_of(grid, run.run_id)
    if "lost" in retry_on:
        assert (found.waits_for, [entry["kind"] for entry in found.tries]) == ("retry", ["exit:3", "lost"])
        assert found.attempts_lost == 0
    else:
        assert (found.status, found.reason, len(found.tries)) == (RunState.FAILED, "max_lost", 1)


async def test_errors_of_workers_count_as_tries(grid: Backend, clock: Clock) -> None:
    """RETRY-18, GRID-79"""
    run = await a_run(grid, retry=policy(2))
    await reported(grid, run, BROKEN)
    clock.now += 100
    await reported(grid, run, BROKEN)
    ended = await run_of(grid, run.run_id)
    assert (ended.status, ended.reason) == (RunState.FAILED, "max_attempts")
    assert [entry["kind"] for entry in ended.tries] == ["worker_error", "worker_error"]


async def test_no_try_begins_after_the_deadline(grid: Backend, clock: Clock) -> None:
    """RETRY-7"""
    run = await a_run(grid, retry=policy(9, deadline=30))
    await reported(grid, run)
    await released(grid, clock, run)
    clock.now += 60
    passed = await claim_job(grid, await taken(grid, run), await slot_of(grid, run), worker_id="w1", holder="me")
    assert isinstance(passed, Passed)
    ended = await run_of(grid, run.run_id)
    assert (ended.status, ended.attempt, ended.error) == (RunState.FAILED, 1, "exit code 3")


async def test_a_rerun_starts_with_the_first_try(grid: Backend, clock: Clock) -> None:
    """RETRY-17"""
    run = await a_run(grid, retry=policy(1))
    await reported(grid, run)
    old = await run_of(grid, run.run_id)
    again = (await rerun_job(grid, Caller(), old, None)).run
    assert (again.retry, again.tries) == (policy(1), ())
    other = (await rerun_job(grid, Caller(), old, None, Again(retry=policy(5), timeout_sec=7))).run
    assert (other.retry, program_of(other).max_attempts, other.params["timeout_sec"]) == (policy(5), 5, 7)
