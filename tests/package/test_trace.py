"""The trace backend for programs that run the engine themselves (section 18.5)."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import nats
import pytest
from nats.js.kv import KeyValue
from pyoco import Flow, task
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext, RunStatus
from pyoco.trace.backend import TraceBackend

from pyoco_server import NatsKvTraceBackend
from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Owner
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from support.backends import opened_backend, recorded, run_now
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("real_nats")  # records are read with the client of the NATS project


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(config) as backend:
        yield backend


@pytest.fixture
async def kv(backend: Backend) -> AsyncIterator[KeyValue]:
    connection = await nats.connect(backend.config.nats_url)
    yield await connection.jetstream().key_value(backend.config.runs_kv_bucket)
    await connection.close()


@pytest.fixture
async def held(backend: Backend) -> FlowAttempt:
    _, job = await recorded(backend)
    held = await claim_run(backend, job, Owner("w", "i"), first_delivery=True)
    assert isinstance(held, FlowAttempt)
    return held


def context_of(held: FlowAttempt) -> RunContext:
    return RunContext(run_id=held.run.run_id, status=RunStatus.RUNNING)


def call_all(trace: TraceBackend) -> None:
    trace.on_flow_start("f", run_id="r")
    trace.on_node_start("a")
    trace.on_node_end("a", 1.0)
    trace.on_node_error("a", ValueError())
    trace.on_flow_end("f")


async def run_in_thread(flow: Flow, trace: TraceBackend, context: RunContext) -> None:
    def run() -> None:
        Engine(trace_backend=trace).run(flow, params={}, run_context=context)

    await asyncio.to_thread(run)


async def test_progress_reaches_the_record_while_the_flow_runs(
    backend: Backend, kv: KeyValue, held: FlowAttempt
) -> None:
    """FLOW-417, FLOW-419"""
    go_on = threading.Event()

    def one() -> int:
        return 1

    def two(one: int) -> int:
        go_on.wait(100)
        return one + 1

    context = context_of(held)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), kv, context)
    assert isinstance(trace, TraceBackend)
    running = asyncio.create_task(run_in_thread(Flow(name="f") >> task(one) >> task(two), trace, context))
    await eventually(lambda: _shows(backend, held, {"one": "SUCCEEDED", "two": "RUNNING"}))
    go_on.set()
    await running
    await eventually(lambda: _shows(backend, held, {"one": "SUCCEEDED", "two": "SUCCEEDED"}))
    run = await run_now(backend, held.run.run_id)
    assert run.status is RunState.RUNNING  # the end is not its business
    assert (run.attempt_id, run.worker_id) == (held.attempt_id, "w")
    assert run.task_records["two"]["output"] == 2
    assert run.updated_at > held.run.updated_at


async def _shows(backend: Backend, held: FlowAttempt, tasks: dict[str, str]) -> bool:
    return dict((await run_now(backend, held.run.run_id)).tasks) == tasks


async def test_a_failed_task_is_shown_as_failed_once(backend: Backend, kv: KeyValue, held: FlowAttempt) -> None:
    """FLOW-419, FLOW-420: with `isolate` the engine calls twice for one failure, and too early both times."""

    def falls() -> None:
        raise ValueError("oh")

    def stands() -> None: ...

    failing, fine = task(falls).task, task(stands).task
    failing.fail_policy = "isolate"
    context = context_of(held)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), kv, context)
    flow = Flow(name="f")
    flow.add_task(failing)
    flow.add_task(fine)
    await run_in_thread(flow, trace, context)
    await eventually(lambda: _shows(backend, held, {"falls": "FAILED", "stands": "SUCCEEDED"}))
    run = await run_now(backend, held.run.run_id)
    assert run.status is RunState.RUNNING
    assert run.error is None
    assert "oh" in run.task_records["falls"]["error"]


class Broken:
    """A bucket that does nothing but fail or hang."""

    def __init__(self, hang_seconds: float = 0.0) -> None:
        self.hang_seconds = hang_seconds
        self.calls = 0

    async def get(self, key: str) -> Any:
        self.calls += 1
        await asyncio.sleep(self.hang_seconds)
        raise OSError("no NATS")


async def test_its_callbacks_never_raise_and_never_wait(held: FlowAttempt) -> None:
    """FLOW-418, ENG-16"""
    for bucket in (Broken(), Broken(hang_seconds=600)):
        trace = NatsKvTraceBackend(asyncio.get_running_loop(), cast("KeyValue", bucket), context_of(held))

        def all_of_them(trace: TraceBackend = trace) -> None:
            for _ in range(100):
                call_all(trace)

        thread = threading.Thread(target=all_of_them, daemon=True)
        thread.start()
        thread.join(100)  # the loop stands still meanwhile, and nobody waits for it either
        assert not thread.is_alive()
        await eventually(lambda bucket=bucket: bucket.calls >= 1)  # type: ignore[misc]
        assert bucket.calls <= 3  # 500 changes, merged
        if trace._flushing is not None:
            trace._flushing.cancel()


async def test_a_task_succeeds_though_nothing_can_be_stored(held: FlowAttempt) -> None:
    """FLOW-418"""

    def fine() -> int:
        return 1

    context = context_of(held)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), cast("KeyValue", Broken()), context)
    await run_in_thread(Flow(name="f") >> task(fine), trace, context)
    assert context.status is RunStatus.COMPLETED


def test_its_callbacks_do_not_mind_a_loop_that_is_closed() -> None:
    """FLOW-418"""
    loop = asyncio.new_event_loop()
    loop.close()
    call_all(NatsKvTraceBackend(loop, cast("KeyValue", Broken()), RunContext()))


async def test_an_ended_run_is_left_alone(backend: Backend, kv: KeyValue, held: FlowAttempt) -> None:
    """FLOW-19"""
    ended = await finish(backend, held, Completed(progress=Progress({"a": "SUCCEEDED"})))
    assert isinstance(ended, Ended)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), kv, context_of(held))
    call_all(trace)
    await eventually(lambda: trace._flushing is not None and trace._flushing.done())
    assert await run_now(backend, held.run.run_id) == ended.run


async def test_a_run_that_is_not_there_is_not_made(backend: Backend, kv: KeyValue) -> None:
    """FLOW-417: the snapshot must exist."""
    context = RunContext(run_id=str(uuid.uuid4()))
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), kv, context)
    call_all(trace)
    await eventually(lambda: trace._flushing is not None and trace._flushing.done())
    assert not hasattr(await backend.runs.find(context.run_id), "run")


async def test_a_conflict_is_not_the_end_of_it(backend: Backend, kv: KeyValue, held: FlowAttempt) -> None:
    """FLOW-178, FLOW-417: somebody else's write in between costs one more round, not the last word."""

    class Racing:
        def __init__(self) -> None:
            self.conflicts = 2

        async def get(self, key: str) -> Any:
            entry = await kv.get(key)
            if self.conflicts:
                self.conflicts -= 1
                await beat_run(backend, held, None)
            return entry

        def __getattr__(self, name: str) -> Any:
            return getattr(kv, name)

    def fine() -> int:
        return 1

    context = context_of(held)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), cast("KeyValue", Racing()), context)
    await run_in_thread(Flow(name="f") >> task(fine), trace, context)
    await eventually(lambda: _shows(backend, held, {"fine": "SUCCEEDED"}))


async def test_a_large_output_does_not_make_a_record_above_the_cap(
    backend: Backend, kv: KeyValue, held: FlowAttempt
) -> None:
    """FLOW-358, FLOW-359"""

    def speaks() -> str:
        return "x" * 600_000

    context = context_of(held)
    trace = NatsKvTraceBackend(asyncio.get_running_loop(), kv, context)
    await run_in_thread(Flow(name="f") >> task(speaks), trace, context)
    await eventually(lambda: _shows(backend, held, {"speaks": "SUCCEEDED"}))
    entry = await kv.get(held.run.run_id)
    assert len(entry.value or b"") <= backend.config.max_run_snapshot_bytes
    run = await run_now(backend, held.run.run_id)
    assert run.task_records_truncated
    assert "output" not in run.task_records["speaks"]
