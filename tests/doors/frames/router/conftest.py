"""A router in front of two groups whose doors do what a test says (section 17.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.link import open_link
from support.grid.fake_door import FakeDoor, fake_door
from support.grid.peers import grid_config
from support.grid.router_acts import PEPPER
from support.grid.routers import OpenRouter, open_router
from support.servers import config_for, forget


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def names(module_nats_url: str) -> AsyncIterator[NatsBackendConfig]:
    """The streams and buckets of all routers here."""
    config = config_for(module_nats_url, auth_pepper=PEPPER)
    yield config
    link = await open_link(module_nats_url, "tests")
    await forget(link, config)
    await link.close()


@pytest_asyncio.fixture(loop_scope="module")
async def g1() -> AsyncIterator[FakeDoor]:
    async with fake_door("g1") as door:
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def g2() -> AsyncIterator[FakeDoor]:
    async with fake_door("g2") as door:
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def router(names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor) -> AsyncIterator[OpenRouter]:
    async with open_router(names, {"g1": g1.address, "g2": g2.address}) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def keyed(names: NatsBackendConfig, g1: FakeDoor, g2: FakeDoor) -> AsyncIterator[OpenRouter]:
    grid = grid_config(exec_auth="api_key", clientx_grace_sec=0.5)
    async with open_router(names, {"g1": g1.address, "g2": g2.address}, grid=grid) as opened:
        yield opened
