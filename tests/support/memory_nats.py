"""`nats_url` of folders whose subject is not NATS: a server in this process (`ports/nats/memory`).

A `conftest.py` imports these fixtures; `link`, `config` and everything built on them then use the server in memory. A
test that needs nats-server (another process connects, the server is killed or frozen) requests `real_nats` as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyoco_server.ports.nats.memory.server import drop_server
from support.servers import unique

__all__ = ["module_nats_url", "nats_url", "new_memory_url", "real_nats"]


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
