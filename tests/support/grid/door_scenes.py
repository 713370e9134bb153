"""A door in this process with a client and workers, for tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.grid.peers import (
    ClientPeer,
    OpenDoor,
    WorkerPeer,
    grid_config,
    open_door,
)

__all__ = ["a_worker", "client", "door", "exec_name"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    """A lost worker's jobs come back soon."""
    grid = grid_config(exec_worker_down_delay_sec=0.3, exec_ack_timeout_sec=120.0, exec_run_heartbeat_sec=0.5)
    async with open_door(module_nats_url, grid) as opened:
        yield opened


@pytest.fixture
def exec_name() -> str:
    return f"x{uuid.uuid4().hex[:8]}"


@pytest_asyncio.fixture(loop_scope="module")
async def client(door: OpenDoor) -> AsyncIterator[ClientPeer]:
    async with await ClientPeer.connect(door) as peer:
        await peer.hello(cap=100)
        yield peer


async def a_worker(door: OpenDoor, exec_name: str, credit: int = 1, worker_id: str | None = None) -> WorkerPeer:
    worker = await WorkerPeer.connect(door)
    await worker.hello(worker_id, patterns=[f"job.assign.{exec_name}"], credit=credit)
    return worker
