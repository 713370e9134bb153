"""The clients that tests of the short way in and out talk with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from nats_clients import connected
from pyoco_server.ports.nats.client import QuickClient


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
