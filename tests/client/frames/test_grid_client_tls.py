"""What a client is told of a door whose TLS is not what it should be."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.grid_client import GridClient, LinkSettings, Timers, client_context
from support.waiting import eventually


async def test_a_certificate_that_does_not_fit_is_told_while_one_waits(caplog: pytest.LogCaptureFixture) -> None:
    """GRID-166"""

    async def speak_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"this is no TLS\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(speak_no_tls, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = LinkSettings(timers=Timers.of(GridConfig()), tls=client_context())

    def told() -> list[int]:
        return [record.levelno for record in caplog.records if "tls_error" in record.getMessage()]

    with caplog.at_level(logging.WARNING):
        async with server:
            client = GridClient("127.0.0.1", port, "clientA", settings=settings)
            connecting = asyncio.create_task(client.connect())
            await eventually(lambda: told() != [])
            assert not connecting.done()
            connecting.cancel()
            await client.close()
    assert told()[0] == logging.WARNING
