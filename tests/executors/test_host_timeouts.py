"""Time limits of runs and of their tasks, as real hosts keep them: by being killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.job import encode_job
from pyoco_server.core.outcome import Completed, DeadReason, Died, Failed, TaskTimedOut, Terms, TimedOut
from pyoco_server.core.retries.matching import exited, killed
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Work
from support.host_scenes import helpers_on_path, hosts, is_gone, next_of, outcome_of, pool, still_works, work
from support.waiting import eventually

__all__ = ["helpers_on_path", "hosts", "pool"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("warm_hosts_of_module")]


def written(tasks: str, graph: str = "a", flow: str = "", **more: Any) -> Work:
    """A run of a flow.yaml."""
    plain = work("f")
    job = replace(plain.job, workflow_yaml=f"flow: {{graph: {graph}{flow}}}\ntasks:\n{tasks}")
    return replace(plain, job=job, data=encode_job(job), **more)


def calling(name: str, more: str = "") -> str:
    return f'  {name}: {{callable: "support.naughty:{name}"{more}}}\n'


@pytest.mark.parametrize("task", ["spins", "sleeps"])
async def test_a_task_that_takes_too_long_costs_its_host(hosts: HostExecutor, task: str) -> None:
    """RETRY-16: also code that never gives way."""
    host = next_of(hosts)
    outcome = await outcome_of(hosts, written(calling(task, ", timeout: 300ms"), task))
    assert isinstance(outcome, TaskTimedOut)
    assert (outcome.task, outcome.seconds, outcome.again_after, outcome.task_tries) == (task, 0.3, None, {})
    assert (outcome.reason, outcome.error) == (
        DeadReason.TIMEOUT,
        f"task {task} took longer than 0.3 s and was stopped",
    )
    await eventually(lambda: is_gone(host.pid))
    await still_works(hosts)


async def test_its_policy_decides_whether_it_may_try_again(hosts: HostExecutor) -> None:
    """RETRY-16: with the count of all tasks kept."""
    tasks = calling("fine", ", timeout: 60s") + calling(
        "sleeps", ", timeout: 300ms, retry: {tries: 3, delay: 5, jitter: 0}"
    )
    outcome = await outcome_of(hosts, written(tasks, "fine >> sleeps"))
    assert isinstance(outcome, TaskTimedOut)
    assert outcome.again_after is not None
    assert 4.9 < outcome.again_after <= 5
    assert list(outcome.task_tries) == ["sleeps"]
    (entry,) = outcome.task_tries["sleeps"]["tries"]
    assert (entry["try"], entry["kind"]) == (1, "timeout")
    await still_works(hosts)
    last = {"sleeps": {"first_try_at": 1.0, "tries": [{"try": 2}]}}
    outcome = await outcome_of(hosts, written(tasks, "fine >> sleeps", task_tries=last))
    assert isinstance(outcome, TaskTimedOut)
    assert outcome.again_after is None
    assert [entry["try"] for entry in outcome.task_tries["sleeps"]["tries"]] == [2, 3]
    await still_works(hosts)


async def test_a_task_within_its_time_is_left_alone(hosts: HostExecutor) -> None:
    """RETRY-16"""
    tasks = calling("fine", ", timeout: 60s") + calling("sleeps", ", inputs: {seconds: 0.1}, timeout: 60s")
    assert isinstance(await outcome_of(hosts, written(tasks, "fine >> sleeps")), Completed)
    assert hosts.restarts == 0


async def test_the_flow_limits_its_runs_unless_the_submission_does(hosts: HostExecutor) -> None:
    """RETRY-12, RETRY-16"""
    tasks = calling("sleeps")
    flow = ", timeout: 1s, retry: 2 times"
    outcome = await outcome_of(hosts, written(tasks, "sleeps", flow))
    assert isinstance(outcome, TimedOut)
    assert outcome.seconds == 1.0
    terms = outcome.progress.terms
    assert terms.retry is not None
    assert (terms.timeout, terms.retry["tries"]) == (1.0, 2)
    await still_works(hosts)
    outcome = await outcome_of(hosts, written(tasks, "sleeps", ", timeout: 1h", timeout=0.2))
    assert isinstance(outcome, TimedOut)
    assert (outcome.seconds, outcome.progress.terms) == (0.2, Terms(timeout=3600.0))
    await still_works(hosts)


async def test_no_limit_is_above_that_of_the_worker(hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """RETRY-16"""
    monkeypatch.setattr(hosts, "_timeout", 0.5)
    outcome = await outcome_of(hosts, written(calling("sleeps"), "sleeps", ", timeout: 1h", timeout=7200.0))
    assert isinstance(outcome, TimedOut)
    assert (outcome.seconds, outcome.progress.terms.timeout) == (0.5, 0.5)
    monkeypatch.undo()
    await still_works(hosts)


async def test_how_a_host_ended_is_what_a_policy_decides_on(hosts: HostExecutor) -> None:
    """RETRY-9"""
    for flow, failure in (("leaves", exited(3)), ("is_killed", killed(9))):
        outcome = await outcome_of(hosts, work(flow))
        assert isinstance(outcome, Died)
        assert outcome.failure == failure
        await still_works(hosts)
    outcome = await outcome_of(hosts, work("exits"))
    assert isinstance(outcome, Failed)
    assert outcome.cause.names[0] == "builtins.SystemExit"


async def test_a_remark_that_is_none_costs_its_own_run(hosts: HostExecutor) -> None:
    host = next_of(hosts)
    host._on_remark(b"of another run")
    host._on_remark(wire.number(host.runs) + b'{"task": 3}')
    assert not host.is_alive
    await still_works(hosts)
