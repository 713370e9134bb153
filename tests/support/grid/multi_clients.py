"""A client of several groups and the doors of these groups, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pyoco_server.grid_client import GridMultiClient, JobRequest, JobResult, Spread
from support.grid.fake_door import QUICK, FakeDoor, fake_door
from support.waiting import eventually

__all__ = ["GRACE", "all_live", "ask", "client_of", "doors", "gives_up_soon", "submitted"]

#: In the client's time, which runs ten times as fast.
GRACE = 10.0


@pytest.fixture
async def doors() -> AsyncIterator[list[FakeDoor]]:
    """One of each of three groups."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(fake_door(name)) for name in ("a", "b", "c")]


def client_of(doors: list[FakeDoor], total: int = 12, **spread: object) -> GridMultiClient:
    settings = Spread(**{"grace_seconds": GRACE, **spread})  # type: ignore[arg-type]
    return GridMultiClient(
        "clientA", [door.address for door in doors], desired_total=total, spread=settings, settings=QUICK
    )


async def all_live(client: GridMultiClient) -> None:
    await eventually(lambda: all(group.state == "live" for group in client.stats().groups))


def gives_up_soon(client: GridMultiClient, number: int) -> None:
    """This group alone, the next time it is lost: `--connect-timeout`."""
    client._groups[number].link._settings = replace(QUICK, connect_timeout=0.1)


def ask(number: int = 0, job_id: str = "") -> JobRequest:
    return JobRequest(exec_name="calcA", args=(str(number),), job_id=job_id)


async def submitted(client: GridMultiClient, count: int) -> list[asyncio.Future[JobResult]]:
    return [await client.submit(ask(number)) for number in range(count)]
