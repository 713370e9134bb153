"""Connections that a reconnecting client leaves behind: none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from pyoco_server.ports.nats.client import QuickClient
from support.nats_clients import connected
from support.waiting import eventually

_INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"proto":1}\r\n'


class SilentServer:
    """Serves the first connection until it is told to drop it; accepts all later ones and says nothing."""

    def __init__(self) -> None:
        self.accepted, self.open = 0, 0
        self.drop = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError):
                if self.accepted == 1:
                    await self._greet(reader, writer)
                    await self.drop.wait()
                else:
                    await reader.read()
        finally:
            self.open -= 1
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO)
        while await reader.readline() != b"PING\r\n":
            pass
        writer.write(b"PONG\r\n")


@pytest.fixture
async def silent() -> AsyncIterator[tuple[SilentServer, QuickClient]]:
    server = SilentServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    nc = await connected(f"nats://127.0.0.1:{address[1]}", connect_timeout=0.1)
    yield server, nc
    await nc.close()
    await eventually(lambda: server.open == 0)
    listening.close()
    await listening.wait_closed()


async def test_a_try_closes_the_connection_of_the_try_before(silent: tuple[SilentServer, QuickClient]) -> None:
    server, _ = silent
    server.drop.set()
    await eventually(lambda: server.accepted >= 6)
    await eventually(lambda: server.open <= 1)


async def test_a_client_that_is_closed_while_it_reconnects_does_not_connect_again(
    silent: tuple[SilentServer, QuickClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 `asyncio.wait_for` may swallow the cancel that ends the reconnect."""
    server, nc = silent
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            swallowed.set()
            raise OSError("the connection was lost") from None

    monkeypatch.setattr(nc, "_process_connect_init", stubborn)
    server.drop.set()
    await eventually(lambda: server.accepted == 2)
    await nc.close()
    assert swallowed.is_set()
    reconnecting = nc._reconnection_task
    assert reconnecting is not None
    async with asyncio.timeout(120):
        await reconnecting
    assert server.accepted == 2
