"""The clients that tests of the short way in and out talk with, and two processes' ways to the stores of programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import copy

import nats
import pytest
from nats.aio.client import Client

from contracts.backups import StreamsContract
from pyoco_server.config import grid_from_env
from pyoco_server.ports.nats import watch
from pyoco_server.ports.nats.client import QuickClient
from pyoco_server.ports.nats.grid_resources import ensure_grid
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.objects import reader
from pyoco_server.ports.redis import link as redis_link
from support.nats_clients import connected
from support.servers import NatsServer, config_for, quick_folder, unique


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
def abandoned_consumers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer is deleted by the server during a test: only by the code that made it."""
    for module in (watch, reader):
        monkeypatch.setattr(module, "_ABANDONED_SECONDS", 3600)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Contract classes over NATS run twice: on a real server, and on the JetStream in memory."""
    if "nats_url" in metafunc.fixturenames and metafunc.cls is not None and _is_contract(metafunc.cls):
        metafunc.parametrize("nats_url", ["server", "memory"], indirect=True)


def _is_contract(cls: type) -> bool:
    """StreamsContract needs snapshots, which only a real server makes."""
    return any(base.__module__.startswith("contracts.") for base in cls.__mro__) and not issubclass(
        cls, StreamsContract
    )


@pytest.fixture(scope="session")
def nats_url(request: pytest.FixtureRequest) -> str:
    """A real server, unless a test is parametrized with "memory"."""
    if getattr(request, "param", "server") == "memory":
        return "memory://ports"
    server: NatsServer = request.getfixturevalue("nats_server")
    return server.url


@pytest.fixture
async def nc(nats_url: str) -> AsyncIterator[QuickClient]:
    client = await connected(nats_url)
    yield client
    await client.close()


@pytest.fixture
async def plain(nats_url: str) -> AsyncIterator[Client]:
    """The library's own client, as the other end."""
    client = await nats.connect(nats_url)
    yield client
    await client.close()


@pytest.fixture
async def links(link: Link, nats_url: str) -> AsyncIterator[tuple[Link, Link]]:
    """Two processes' worth, and the streams and buckets of programs."""
    await ensure_grid(link, config_for(nats_url), grid_from_env())
    other = await open_link(nats_url, "another")
    yield link, other
    await other.close()


@pytest.fixture
def group() -> str:
    """Of this test's own: the streams and buckets of programs have one name each, and are shared."""
    return unique("g")
