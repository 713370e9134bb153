"""A gateway on a real socket and reports of a run, for tests of watch streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import uvicorn

from pyoco_server.actions.watch import Watch
from pyoco_server.core.flow_moves import beat
from pyoco_server.core.outcome import Progress
from pyoco_server.core.run import Run
from pyoco_server.doors.cli.gateway import BoundedHttp, _Server
from pyoco_server.doors.http import watch as door
from pyoco_server.doors.http.state import State
from pyoco_server.ports.runs.port import Stored
from support.doors_support import Door
from support.event_streams import Event, Stream
from support.gateways import Gateway, stored
from support.waiting import eventually

__all__ = [
    "beating",
    "calm",
    "change",
    "first",
    "gateway",
    "port",
    "report",
    "served",
    "server",
    "server_of_module",
    "state_of",
]


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeats, unless a test asks for them: a busy machine would hear them between two events."""
    beating(monkeypatch, 600.0)


@contextlib.asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[_Server]:
    """The application behind the gateway's own server."""
    settings = uvicorn.Config(
        gateway.app, port=0, http=BoundedHttp, ws="none", lifespan="off", log_config=None, timeout_keep_alive=600
    )
    server = _Server(settings)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


@pytest.fixture
def gateway(whole_module: Door) -> Gateway:
    """One for all tests that leave it as it was: each has runs of its own."""
    return whole_module.gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_of_module(whole_module: Door) -> AsyncIterator[_Server]:
    async with served(whole_module.gateway) as server:
        yield server


@pytest.fixture
def server(server_of_module: _Server) -> _Server:
    return server_of_module


@pytest_asyncio.fixture(loop_scope="module")
async def port(gateway: Gateway, server: _Server) -> AsyncIterator[int]:
    yield int(server.servers[0].sockets[0].getsockname()[1])
    await eventually(lambda: state_of(gateway).hub.count == 0)  # a client that disconnects frees its place


def state_of(gateway: Gateway) -> State:
    state: State = gateway.app.state.gateway
    return state


def beating(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Heartbeats of the stream so often."""
    monkeypatch.setattr(door, "Watch", functools.partial(Watch, heartbeat_seconds=seconds))


async def change(gateway: Gateway, run_id: str, how: Callable[[Run], Run]) -> Stored:
    found = await stored(gateway, run_id)
    written = await gateway.backend.runs.replace(how(found.run), found.revision)
    assert isinstance(written, Stored)
    return written


async def report(gateway: Gateway, run_id: str, state: str = "RUNNING", **record: Any) -> Stored:
    progress = Progress(tasks={"a": state}, task_records={"a": {"state": state, **record}})
    return await change(gateway, run_id, lambda run: beat(run, progress, time.time()))


async def first(stream: Stream) -> Event:
    event = await stream.next()
    assert event is not None
    return event
