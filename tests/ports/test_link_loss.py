"""What is asked in the moments after a connection was lost."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from pyoco_server.ports.nats.link import Link, NoConnection, Patience, open_link
from support.nats_clients import network_client


async def _lost(url: str) -> Link:
    """The library knows of the loss, and has not told us yet."""
    link = await open_link(url, "t", Patience(down_seconds=0.05))
    network_client(link)._status = Client.RECONNECTING
    return link


async def test_nothing_is_sent_before_the_library_has_told_of_the_loss(nats_url: str) -> None:
    """Else it would be kept by the library, and "perhaps stored" where nothing can have been."""
    link = await _lost(nats_url)
    with pytest.raises(NoConnection):
        await link.ask("anything", b"")
    assert not link.nc._pending
    network_client(link)._status = Client.CONNECTED
    await link.close()


async def test_who_waits_goes_on_with_the_next_connection(nats_url: str) -> None:
    link = await _lost(nats_url)
    waiting = asyncio.create_task(link.until_up(60))
    await asyncio.sleep(0)
    await link._on_reconnected()  # of the connection before, told late
    await asyncio.sleep(0.01)
    assert not waiting.done()
    network_client(link)._status = Client.CONNECTED
    await link._on_reconnected()
    await waiting
    await link.close()
