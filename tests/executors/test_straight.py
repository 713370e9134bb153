"""Flows whose tasks follow one another run in one thread, and nobody can tell by what they do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext, RunStatus, Task

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Failed, Outcome
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.graph import graph_of
from pyoco_server.executors.flow.straight import straight
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Work


def chain(*functions: Callable[..., Any], **policy: Any) -> Flow:
    """One after another. The policy is that of the first."""
    flow = Flow(name="chain")
    for number, function in enumerate(functions):
        made = task(function)
        for name, value in policy.items() if number == 0 else ():
            setattr(made.task, name, value)
        flow = flow >> made
    return flow


def first() -> str:
    return "first"


def second(first: str) -> str:
    return first + " second"


def third(second: str) -> str:
    return second + " third"


def fails(first: str = "") -> None:
    raise ValueError("on purpose")


def leaves(first: str = "") -> None:
    raise SystemExit(3)


def as_it_is(flow: Flow) -> Flow:
    return flow


def is_straight(flow: Flow) -> bool:
    return straight(flow) is not flow


def a_job(name: str = "it", **params: Any) -> Job:
    return Job(run_id=str(uuid.uuid4()), flow_name=name, tag="default", submitted_at=1.0, params=params)


def ended(flow: Flow, **params: Any) -> Outcome:
    return EngineRun(a_job(**params), lambda _: flow).execute()


def told(outcome: Outcome) -> tuple[Any, ...]:
    """All that a record shows of it, but for its times."""
    records = {
        name: {key: value for key, value in record.items() if key not in {"started_at", "ended_at", "duration_ms"}}
        for name, record in outcome.progress.task_records.items()
    }
    for record in records.values():  # of the places in the code only the last is the task's
        record["traceback"] = record["traceback"] and record["traceback"].splitlines()[-1]
    return type(outcome), outcome.error, outcome.reason, outcome.progress.tasks, records, outcome.progress.graph


class TestWhatIsStraight:
    @pytest.mark.parametrize("functions", [(first,), (first, second), (first, second, third)], ids=len)
    def test_is_a_task_or_a_chain_of_them(self, functions: tuple[Callable[..., Any], ...]) -> None:
        made = straight(flow := chain(*functions))
        assert made is not flow
        assert [node.task.name for node in made.build_program().steps] == [each.__name__ for each in functions]
        assert (made.name, made.tasks, graph_of(made)) == (flow.name, flow.tasks, graph_of(flow))
        assert not flow.has_control_flow()  # it is somebody's, and stays as it was

    def test_is_what_leaves_no_choice_though_it_is_no_mere_chain(self) -> None:
        flow = chain(first, second, third)
        by_name = {each.name: each for each in flow.tasks}
        by_name["third"].dependencies.add(by_name["first"])
        assert is_straight(flow)

    @pytest.mark.parametrize(
        "policy",
        [{"fail_policy": "isolate"}, {"timeout_sec": 5.0}, {"trigger_policy": "ANY"}],
        ids=lambda policy: next(iter(policy)),
    )
    def test_is_nothing_with_a_policy_that_needs_threads(self, policy: dict[str, Any]) -> None:
        """ENG-35"""
        assert not is_straight(chain(first, second, **policy))

    def test_is_nothing_of_which_two_tasks_may_run_at_once(self) -> None:
        """ENG-34"""
        flow = Flow(name="wide")
        flow.tasks |= {Task(first, "one"), Task(first, "two")}
        assert not is_straight(flow)

    def test_is_nothing_that_cannot_end(self) -> None:
        """ENG-33: the engine says what is wrong with it."""
        waits, outside = Task(first, "waits"), Task(first, "outside")
        waits.dependencies.add(outside)
        flow = Flow(name="stuck")
        flow.tasks.add(waits)
        assert not is_straight(flow)
        outside.dependencies.add(waits)
        flow.tasks.add(outside)
        assert not is_straight(flow)
        assert not is_straight(Flow(name="empty"))

    def test_is_nothing_that_is_somebody_s_own_kind_of_flow_or_task(self) -> None:
        class OwnFlow(Flow):  # type: ignore[misc]  # the engine is not typed
            pass

        class OwnTask(Task):  # type: ignore[misc]
            __hash__ = Task.__hash__

        assert not is_straight(OwnFlow(name="own") >> task(first))
        flow = Flow(name="own")
        flow.tasks.add(OwnTask(first, "own"))
        assert not is_straight(flow)

    def test_is_nothing_that_goes_step_by_step_already(self) -> None:
        flow = straight(chain(first))
        assert straight(flow) is flow


class TestAStraightFlow:
    @pytest.mark.parametrize(
        "functions",
        [(first,), (first, second, third), (first, fails), (fails,), (first, fails, third), (first, leaves), (leaves,)],
        ids=lambda functions: " ".join(each.__name__ for each in functions),
    )
    def test_ends_as_it_would_with_threads(self, functions: tuple[Callable[..., Any], ...]) -> None:
        """ENG-28, ENG-32"""
        flow = chain(*functions)
        assert told(ended(straight(flow), own=[1])) == told(ended(flow, own=[1]))

    @pytest.mark.parametrize("make", [as_it_is, straight])
    def test_repeats_a_task_as_it_would_with_threads(self, make: Callable[[Flow], Flow]) -> None:
        """ENG-30"""
        tries: list[int] = []

        def hesitates() -> int:
            tries.append(1)
            if len(tries) < 2:
                raise ValueError("not yet")
            return len(tries)

        outcome = ended(make(chain(hesitates, retries=1)))
        assert isinstance(outcome, Completed)
        assert outcome.progress.task_records["hesitates"]["output"] == 2

    @pytest.mark.parametrize("when", ["before", "during the first", "during the last"])
    def test_is_cancelled_as_it_would_be_with_threads(self, when: str) -> None:
        """ENG-21, ENG-22"""
        seen = []
        for make in (as_it_is, straight):
            context = RunContext(run_id=str(uuid.uuid4()), status=RunStatus.RUNNING)

            def cancel(now: str, context: RunContext = context) -> None:
                if now == when:
                    context.status = RunStatus.CANCELLING

            flow = make(chain(lambda: cancel("during the first"), lambda: cancel("during the last")))
            cancel("before")
            Engine(trace_backend=_Silent()).run(flow, params={}, run_context=context)
            seen.append((context.status, dict(context.tasks)))
        assert seen[0] == seen[1]

    def test_runs_in_the_thread_that_calls(self) -> None:
        threads: list[threading.Thread] = []

        def note() -> None:
            threads.append(threading.current_thread())

        ended(straight(chain(note)))
        assert threads == [threading.current_thread()]


class _Silent:
    """A trace that tells nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


LEAVES_THINGS = """
import asyncio, contextvars, signal
from pyoco import Flow, task

WORD = contextvars.ContextVar("WORD", default="unset")

@task
def leaves():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()
    WORD.set("secret")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: None)

@task
def looks():
    try:
        asyncio.get_event_loop()
        loop = "there is one"
    except RuntimeError:
        loop = "none"
    handlers = [getattr(signal.getsignal(each), "__name__", "?") for each in (signal.SIGTERM, signal.SIGINT)]
    return [loop, WORD.get(), handlers, asyncio.run(asyncio.sleep(0, "ran"))]

@task
def fails_in_a_loop():
    asyncio.set_event_loop(asyncio.new_event_loop())
    raise ValueError("on purpose")

FLOWS = {each.task.name: Flow() >> each for each in (leaves, looks, fails_in_a_loop)}
resolve = FLOWS.__getitem__
"""


class TestTheNextRunOfAHost:
    @pytest.fixture
    async def hosts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostExecutor]:
        (tmp_path / "leaving.py").write_text(LEAVES_THINGS)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        hosts = HostExecutor(Settings("leaving:resolve", (), 262_144, 65_536, 0), 1, 1000, 0.0)
        try:
            await hosts.start()
            yield hosts
        finally:
            await hosts.stop()

    async def _ended(self, hosts: HostExecutor, name: str) -> Outcome:
        job = a_job(name)
        execution = await hosts.begin(Work(job, encode_job(job)), lambda: None)
        assert execution is not None
        return await execution.outcome()

    async def test_finds_nothing_that_a_task_has_left_in_its_thread(self, hosts: HostExecutor) -> None:
        """No event loop, closed or not, no variables of its context, and our signals are ours again."""
        for word, kind in (("leaves", Completed), ("fails_in_a_loop", Failed)) * 2:  # both hosts, the spare too
            assert isinstance(await self._ended(hosts, word), kind)
            outcome = await self._ended(hosts, "looks")
            assert isinstance(outcome, Completed), outcome
            assert outcome.progress.task_records["looks"]["output"] == ["none", "unset", ["stay", "stay"], "ran"]
