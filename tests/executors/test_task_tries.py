"""Tries of tasks inside a run: counted, waited for and shown, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyoco import Flow
from pyoco.dsl.syntax import task as plain_task

from pyoco_server import task
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Cancelled, Completed, Failed, Outcome
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.failures import failure_of
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.flow.straight import straight

QUICK = {"tries": 3, "delay": 0.01, "jitter": 0}


class Flaky(ConnectionError):
    """Fails so many times."""


def failing(times: int, error: Callable[[], BaseException] = Flaky) -> Callable[[], str]:
    left = iter(range(times))

    def flaky() -> str:
        if next(left, None) is not None:
            raise error()
        return "done"

    return flaky


def a_job(**more: Any) -> Job:
    return Job(run_id="r", flow_name="f", tag="default", submitted_at=1.0, **more)


def run_of(*tasks: Any, **more: Any) -> EngineRun:
    flow = Flow("f")
    for each in tasks:
        flow = flow >> each
    return EngineRun(a_job(), lambda _: straight(flow), **more)


def record_of(outcome: Outcome, name: str = "flaky") -> dict[str, Any]:
    record: dict[str, Any] = outcome.progress.task_records[name]
    return record


def test_a_task_is_tried_until_it_succeeds() -> None:
    """RETRY-13"""
    outcome = run_of(task(retry=QUICK)(failing(2)), task(lambda: None)).execute()
    assert isinstance(outcome, Completed)
    record = record_of(outcome)
    assert (record["state"], record["output"], record["try"], record["next_try_at"]) == ("SUCCEEDED", "done", 3, None)
    assert [entry["try"] for entry in record["tries"]] == [1, 2]
    first = record["tries"][0]
    assert first.keys() == {"try", "started_at", "ended_at", "error", "kind"}
    assert first["kind"] == f"exception:{__name__}.Flaky"
    assert first["error"] == "Flaky"
    assert first["started_at"] <= first["ended_at"] <= record["tries"][1]["started_at"]


def test_and_as_often_as_its_policy_says() -> None:
    """RETRY-13, RETRY-15: the earlier attempts of the run count, too."""
    outcome = run_of(task(retry=QUICK)(failing(9))).execute()
    assert isinstance(outcome, Failed)
    assert (outcome.cause.kind, len(record_of(outcome)["tries"])) == (f"exception:{__name__}.Flaky", 3)
    earlier = {"flaky": {"first_try_at": 5.0, "tries": [{"try": 1, "kind": "timeout"}]}}
    outcome = run_of(task(retry=QUICK)(failing(9)), task_tries=earlier).execute()
    assert [entry["try"] for entry in record_of(outcome)["tries"]] == [1, 2, 3]
    assert record_of(outcome)["tries"][0]["kind"] == "timeout"
    late = {"tries": 3, "deadline": 60}
    outcome = run_of(task(retry=late)(failing(9)), task_tries=earlier).execute()
    assert len(record_of(outcome)["tries"]) == 2


def test_only_the_failures_it_names_are_retried() -> None:
    """RETRY-9"""
    policy = {**QUICK, "retry_on": ["OSError"], "never_on": [f"{__name__}.Flaky"]}
    outcome = run_of(task(retry=policy)(failing(2))).execute()
    assert len(record_of(outcome)["tries"]) == 1
    assert isinstance(run_of(task(retry=policy)(failing(2, OSError))).execute(), Completed)


def test_the_newest_twenty_tries_are_listed() -> None:
    """RETRY-13"""
    policy = {"tries": 30, "delay": 0, "backoff": "fixed"}
    record = record_of(run_of(task(retry=policy)(failing(29))).execute())
    assert (record["try"], [entry["try"] for entry in record["tries"]]) == (30, list(range(10, 30)))


@pytest.mark.parametrize("beside", [(), (plain_task(lambda: time.sleep(0)),)], ids=["straight", "threads"])
def test_a_wait_ends_at_once_on_cancel(beside: tuple[Any, ...]) -> None:
    """RETRY-13"""
    flow = Flow("f", tasks={task(retry={"tries": 2, "delay": 600})(failing(9)).task, *(each.task for each in beside)})
    run = EngineRun(a_job(), lambda _: straight(flow))
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.execute()))
    thread.start()
    while not (record := run.progress().task_records.get("flaky", {})).get("next_try_at"):
        time.sleep(0.001)
    assert (record["state"], record["try"]) == ("RUNNING", 2)
    assert record["next_try_at"] > time.time() + 500
    run.ask_cancel()
    thread.join(10)
    (outcome,) = outcomes
    assert isinstance(outcome, Failed | Cancelled)
    assert outcome.progress.tasks["flaky"] == "CANCELLED"


def test_a_round_of_a_loop_has_its_own_count() -> None:
    """RETRY-13"""
    text = """
flow: {graph: "repeat(count=3) { flaky }"}
tasks: {flaky: {callable: "test_task_tries:every_second", retry: "2 times, fixed, 0s"}}
"""
    calls.clear()
    outcome = built(text).execute()
    assert isinstance(outcome, Completed), outcome.error
    assert len(calls) == 6


calls: list[int] = []


def every_second() -> None:
    calls.append(1)
    if len(calls) % 2:
        raise Flaky


def built(text: str) -> EngineRun:
    builder = FlowBuilder(None, YamlFlowFiles(100_000), ["test_task_tries"])
    told: list[Any] = []
    run = EngineRun(a_job(workflow_yaml=text), builder, tell=told.append)
    run.heard = told  # type: ignore[attr-defined]
    return run


def test_a_file_says_what_it_is_to_be_tried_as() -> None:
    """RETRY-11, RETRY-12: the terms of the flow are told before its tasks begin; a renamed task keeps its own."""
    text = """
flow: {graph: "again: flaky", retry: "4 times, fixed", timeout: 1m}
tasks: {flaky: {callable: "test_task_tries:every_second", retry: {tries: 2, delay: 0}, timeout: 5s}}
"""
    calls.clear()
    run = built(text)
    outcome = run.execute()
    assert isinstance(outcome, Completed), outcome.error
    assert record_of(outcome, "again")["try"] == 2
    retry = outcome.progress.terms.retry
    assert retry is not None
    assert (retry["tries"], retry["backoff"], outcome.progress.terms.timeout) == (4, "fixed", 60.0)
    heard: list[Any] = run.heard  # type: ignore[attr-defined]
    assert heard[0] == {"terms": {"retry": retry, "timeout": 60.0}}
    assert [each["timeout"] for each in heard[1:]] == [5.0, None, 5.0, None]


def test_null_in_a_file_overrides_the_code() -> None:
    """RETRY-11"""
    text = 'flow: {graph: own, retry: null}\ntasks: {own: {callable: "test_task_tries:own", retry: null}}'
    outcome = built(text).execute()
    assert isinstance(outcome, Failed)
    assert len(record_of(outcome, "own")["tries"]) == 1
    assert outcome.progress.terms.retry == {}


@task(retry="3 times, fixed, 0s", timeout=60)
def own() -> None:
    raise Flaky


def test_a_policy_beside_the_engines_retries_is_refused() -> None:
    """RETRY-12"""
    both = task(retry=QUICK)(failing(1))
    both.task.retries = 2
    outcome = run_of(both).execute()
    assert isinstance(outcome, Failed)
    assert outcome.error == (
        "building the flow failed: ValueError: task flaky has both `retry` and the engine's `retries`: keep one of them"
    )
    assert outcome.progress.tasks == {}


def test_the_decorator_takes_what_the_file_takes() -> None:
    """RETRY-11, APP-3"""
    assert task(lambda a: a + 1)(1) == 2  # called, it is the function
    named = task(name="other", timeout="5s")(failing(0))
    assert (named.task.name, named()) == ("other", "done")
    for bad in ({"retry": "often"}, {"retry": {"tries": 0}}, {"timeout": -1}, {"timeout": "8d"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            task(**bad)


def test_the_names_of_an_exception() -> None:
    """RETRY-9: as it is exported, too."""
    import json

    names = failure_of(json.JSONDecodeError("no", "", 0)).names
    assert names[:3] == ("json.decoder.JSONDecodeError", "json.JSONDecodeError", "builtins.ValueError")
    assert failure_of(MemoryError()).kind == "memory"
