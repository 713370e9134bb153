"""`nats_url` of folders whose subject is not NATS: a server in this process (`ports/nats/memory`).

A `conftest.py` imports these fixtures; `link`, `config` and everything built on them then use the server in memory. A
test that needs nats-server (another process connects, the server is killed or frozen) requests `real_nats` as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyoco_server.ports.nats.memory.server import drop_server, server_at
from support.servers import unique

__all__ = ["MemoryServer", "memory_nats_server", "module_nats_url", "nats_url", "new_memory_url", "real_nats"]


def new_memory_url() -> str:
    """The address of a server in this process that no other test uses."""
    return f"memory://{unique('nats')}"


@pytest.fixture
def real_nats() -> None:
    """`nats_url` is the address of a real nats-server."""


@pytest.fixture
def nats_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty server, or that of the module if a fixture of the module uses one."""
    if "real_nats" in request.fixturenames:
        yield request.getfixturevalue("nats_server").url
    elif "module_nats_url" in request.fixturenames:
        yield request.getfixturevalue("module_nats_url")
    else:
        url = new_memory_url()
        yield url
        drop_server(url)


@pytest.fixture(scope="module")
def module_nats_url() -> Iterator[str]:
    """The address of a server shared by the tests of a module."""
    url = new_memory_url()
    yield url
    drop_server(url)


class MemoryServer:
    """A server in memory with the interface of `NatsServer`, to be killed and restarted at will."""

    def __init__(self) -> None:
        self.url = new_memory_url()

    def kill(self) -> None:
        server_at(self.url).stop()

    def start(self) -> None:
        server_at(self.url).start()

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def memory_nats_server() -> Iterator[MemoryServer]:
    """A server of this test's own. Stop it in the thread of the event loop that uses it."""
    server = MemoryServer()
    yield server
    drop_server(server.url)
