"""A backend whose clock stands still, on a JetStream in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import copy
from dataclasses import replace

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.redis import link as redis_link
from support.backends import Clock, opened_backend
from support.grid.program_stage import a_store
from support.memory_nats import nats_url, real_nats
from support.servers import quick_folder, unique
from support.virtual_tests import pytest_asyncio_loop_factories

__all__ = ["nats_url", "pytest_asyncio_loop_factories", "real_nats"]


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.TempPathFactory]:
    """In memory, where there is room: a ledger's file is synced at each commit, and a disk takes its time for that."""
    with quick_folder() as folder:
        quick = copy(tmp_path_factory)
        quick._basetemp, quick._retention_policy = folder, "failed"
        yield quick


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
