"""Both ends of a connection: our client, and the library's own to compare with."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from pyoco_server.ports.nats.client import QuickClient, Raw
from pyoco_server.ports.nats.link import Link
from support.waiting import eventually

__all__ = ["Heard", "connected", "hear", "network_client", "receive", "reconnected", "settled"]


def network_client(link: Link) -> QuickClient:
    """The client of a link to a real server, with the library's own methods."""
    assert isinstance(link.nc, QuickClient)
    return link.nc


async def connected(url: str, **more: Any) -> QuickClient:
    async def quiet(_: Exception) -> None:
        """A lost connection is what some tests are about."""

    nc = QuickClient()
    await nc.connect(url, error_cb=quiet, max_reconnect_attempts=-1, reconnect_time_wait=0.05, **more)  # type: ignore[arg-type]  # fractions work
    return nc


async def settled(client: Client) -> None:
    """The server has dealt with everything this client has said."""
    await client._flush_pending(force_flush=True)  # the library's flush sends its PING before what is pending
    await client.flush()


async def reconnected(nc: QuickClient, times: int) -> None:
    await eventually(lambda: nc.is_connected and nc.stats["reconnects"] == times)
    await settled(nc)


class Heard(list[Raw]):
    """Everything a listener was given."""

    @property
    def texts(self) -> list[bytes]:
        return [message.data for message in self]

    async def has(self, count: int) -> None:
        """Returns once so many have come."""
        await eventually(lambda: len(self) >= count)


async def hear(nc: QuickClient, subject: str) -> Heard:
    heard = Heard()
    await nc.listen(subject, heard.append)
    await settled(nc)
    return heard


async def receive(plain: Client, subject: str) -> list[Msg]:
    """What a plain subscriber gets from now on."""
    received: list[Msg] = []

    async def keep(message: Msg) -> None:
        received.append(message)

    await plain.subscribe(subject, cb=keep)
    await settled(plain)
    return received
