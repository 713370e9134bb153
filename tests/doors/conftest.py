"""The gateways that tests of the HTTP door talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from pyoco_server.ports.nats.link import Link, open_link
from support.doors_support import Door
from support.gateways import Gateway, fresh_gateway
from support.memory_nats import memory_nats_server, module_nats_url, nats_url, new_memory_url, real_nats
from support.patient_gateways import impatient_gateways, patient_gateways
from support.priced.gateways import PricedDoor, fresh_priced_gateway
from support.sites import Site, open_site
from support.virtual_tests import pytest_asyncio_loop_factories

__all__ = [
    "impatient_gateways",
    "memory_nats_server",
    "module_nats_url",
    "nats_url",
    "patient_gateways",
    "pytest_asyncio_loop_factories",
    "real_nats",
]


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_module(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    link = await open_link(module_nats_url, "tests")
    async with fresh_gateway(link, module_nats_url, tmp_path_factory.mktemp("data")) as gateway:
        yield Door(gateway, link)
    await link.close()


@pytest_asyncio.fixture(loop_scope="module")
async def door(whole_module: Door) -> AsyncIterator[Door]:
    """Whatever a test sends, it leaves no trace unless it was accepted."""
    yield whole_module
    await whole_module.check()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def priced_door(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PricedDoor]:
    """Authentication is off: under `/v1` that makes no difference. Each test has tenants of its own."""
    link = await open_link(module_nats_url, "tests")
    async with fresh_priced_gateway(link, module_nats_url, tmp_path_factory.mktemp("priced")) as door:
        yield door
    await link.close()


@pytest_asyncio.fixture(loop_scope="module")
async def link_of_module(nats_url: str) -> AsyncIterator[Link]:
    link = await open_link(nats_url, "tests")
    yield link
    await link.close()


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(new_memory_url(), tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """A gateway and a worker in another thread, for commands; all tests of this process share it."""
    shared_site.wake()
    yield shared_site
    shared_site.rest()
