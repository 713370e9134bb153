"""A client of one group and its door, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyoco_server.grid_client import (
    GridClient,
    JobRequest,
    LinkSettings,
)
from support.grid.fake_door import QUICK, FakeDoor, fake_door

__all__ = ["ask", "client", "client_of", "door"]


def ask(name: str = "calcA", *args: str, job_id: str = "") -> JobRequest:
    return JobRequest(exec_name=name, args=args, job_id=job_id)


@pytest.fixture
async def door() -> AsyncIterator[FakeDoor]:
    async with fake_door() as door:
        yield door


@pytest.fixture
async def client(door: FakeDoor) -> AsyncIterator[GridClient]:
    async with client_of(door) as client:
        yield client


def client_of(door: FakeDoor, *more: FakeDoor, settings: LinkSettings = QUICK, desired: int = 4) -> GridClient:
    doors = [each.address for each in more]
    return GridClient("127.0.0.1", door.port, "clientA", desired=desired, doors=doors, token="k", settings=settings)
