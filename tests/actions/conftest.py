"""A real backend whose clock stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from backends import Clock, opened_backend
from program_stage import a_store
from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.redis import link as redis_link
from servers import unique


@pytest.fixture(scope="session", autouse=True)
def patient_with_redis() -> Iterator[None]:
    """A machine that stands still for two seconds is no outage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_link, "_PATIENCE_SECONDS", 60)
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def backend(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    async with opened_backend(config) as backend:
        yield replace(backend, clock=clock)


@pytest.fixture
async def grid(config: NatsBackendConfig, clock: Clock) -> AsyncIterator[Backend]:
    """The same for programs, in a group of this test's own."""
    async with a_store(config, unique("g")) as backend:
        yield replace(backend, clock=clock)
