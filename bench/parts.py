"""What single decisions cost and bring: the figures that the records in docs/adr point at."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable

import uvloop
from examples.flows import resolve

from bench import drain, submit
from bench.report import heading, table
from bench.stack import Stack, serve, stack
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept, beat
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import NOTHING_YET
from pyoco_server.core.run import Caller, Submission
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Executor, Work
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_JOB = json.dumps({"run_id": str(uuid.uuid4()), "flow_name": "noop", "tag": "default", "submitted_at": 1.0}).encode()
_SETTINGS = Settings("examples.flows:resolve", (), 262_144, 262_144, 0)


async def _per_second(one: Callable[[], Awaitable[object]], at_once: int, seconds: float = 2.0) -> float:
    done, end = 0, time.perf_counter() + seconds

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await one()
            done += 1

    await asyncio.gather(*(repeat() for _ in range(at_once)))
    return done / seconds


async def _store(nats_url: str) -> list[tuple[str, str, str]]:
    """ADR 1: one compare-and-set, one read from the leader."""
    ask = Submission(flow_name="noop", tag="default", tags=("default",), params={})
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:

        async def written() -> None:
            stored = await backend.runs.create(accept(ask, Caller(), backend.new_id(), 1.0))
            assert isinstance(stored, Stored)
            for _ in range(9):
                again = await backend.runs.replace(beat(stored.run, NOTHING_YET, 2.0), stored.revision)
                assert isinstance(again, Stored)
                stored = again

        run_id = (await _created(backend.runs.create(accept(ask, Caller(), backend.new_id(), 1.0)))).run.run_id
        rows = []
        for at_once in (1, 64):
            writes = await _per_second(written, at_once) * 10
            reads = await _per_second(lambda: backend.runs.find(run_id), at_once)
            rows.append((f"{at_once} at once", f"{writes:,.0f}", f"{reads:,.0f}"))
        return rows


async def _created(making: Awaitable[object]) -> Stored:
    stored = await making
    assert isinstance(stored, Stored)
    return stored


async def _executors() -> list[tuple[str, str]]:
    """ADR 2: the same empty flow in a thread, in a warm host, and in a process of its own."""
    work = Work(decode_job(_JOB), _JOB)

    async def run(executor: Executor) -> None:
        execution = await executor.begin(work, lambda: None)
        assert execution is not None
        await execution.outcome()

    threads = wiring.thread_executor(NatsBackendConfig(), resolve)
    host = HostExecutor(_SETTINGS, 1, 10**9, 0)
    await host.start()
    await asyncio.sleep(1)
    rows = [
        ("thread of the same process", f"{await _per_second(lambda: run(threads), 1):,.0f}"),
        ("warm host, one after another", f"{await _per_second(lambda: run(host), 1):,.0f}"),
        ("warm host, the next one waiting", f"{await _per_second(lambda: run(host), 3):,.0f}"),
    ]
    await host.stop()

    async def whole_process() -> None:
        alone = HostExecutor(_SETTINGS, 1, 1, 0)
        await alone.start()
        await run(alone)
        await alone.stop()

    rows.append(("a process for each run", f"{await _per_second(whole_process, 1, 5):,.1f}"))
    return rows


def _worker_without(what: str) -> list[str]:
    lane = f"import pyoco_server.loops.flow_lane as lane; lane.{what} = 0"
    code = f"{lane}; from pyoco_server.doors.cli.worker import main; main()"
    return [sys.executable, "-c", code]


def main(running: Stack) -> None:
    heading("a compare-and-set and a leader read, per second (ADR 1)")
    table([("", "writes", "reads"), *uvloop.run(_store(running.nats_url))])
    heading("one empty flow, per second, by where it runs (ADR 2)")
    table([("", "per second"), *uvloop.run(_executors())])
    heading("POST /runs at 32 connections, per second, by the way to the endpoint (ADR 6)")
    with serve("bench.framework:app", PYOCO_NATS_URL=running.nats_url) as port:
        way = {"the framework's way": submit.load(port, 32), "the guard's way": submit.load(running.port, 32)}
    table([("", "per second"), *((name, f"{value:,.0f}") for name, value in way.items())])
    heading("drain with and without claiming ahead, per second (ADR 7)")
    running.start_worker()
    time.sleep(2)
    running.stop_workers()
    ahead = drain.drain(running, 1)
    running.worker_command = _worker_without("_AHEAD_MAX")
    alone = drain.drain(running, 1)
    table([("", "per second"), ("claiming ahead", f"{ahead:,.0f}"), ("only when a slot is free", f"{alone:,.0f}")])
    heading("POST /runs at 32 connections, per second, by how often NATS syncs to disk")
    each_second = submit.load(running.port, 32)
    with stack(PYOCO_NATS_SYNC="always") as durable:
        each_write = submit.load(durable.port, 32)
    table([("", "per second"), ("every second", f"{each_second:,.0f}"), ("every write", f"{each_write:,.0f}")])
