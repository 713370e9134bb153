"""`pyoco-server gateway`: the HTTP door in this process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.doors.http.event_stream import TRANSPORT
from pyoco_server.http_api import create_app
from pyoco_server.logs import get_logger

__all__ = ["serve"]

log = get_logger(__name__)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with a bound on what comes before a body: it would collect a header of any size."""

    HEAD_BYTES_MAX = 65_536

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = True, 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.HEAD_BYTES_MAX and not self.transport.is_closing():
                log.info("refused a request with too large a head", bytes=self._head_bytes)
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to us: it would raise them again before the connection to NATS is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def settle_garbage() -> None:
    """What was made at start stays for ever: the collector need not look at it again with every thousand requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def serve(config: NatsBackendConfig, listening: socket.socket) -> int:
    """Serves until it is told to stop; returns the exit code. Raises Unavailable when NATS cannot be used."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, listening))


async def _serve(config: NatsBackendConfig, listening: socket.socket) -> int:
    stop = StopSignal()
    app = create_app(config)
    settings = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Pools of common clients keep a connection for 5 to 60 s: who closes first must be the client.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )
    server = _Server(settings)
    # The application's start is ours to await: uvicorn would print a traceback and exit with a code of its own.
    async with app.router.lifespan_context(app):
        host, port = listening.getsockname()[:2]
        log.info("serving HTTP", host=host, port=port)
        settle_garbage()
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stop.at_once = lambda: setattr(server, "force_exit", True)
        # First the event streams: they end at once, and uvicorn need not wait for them.
        app.state.gateway.hub.close()
        server.should_exit = True
        await serving
        stopping.cancel()
    return stop.exit_code
