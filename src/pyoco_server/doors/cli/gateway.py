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
from pyoco_server.doors.http.pace import BodyPace
from pyoco_server.http_api import create_app
from pyoco_server.logs import get_logger

__all__ = ["serve"]

log = get_logger(__name__)


#: For the responses to requests that are cancelled when the gateway stops.
_LAST_WORD_SECONDS = 1.0


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with limits on the request head, which uvicorn would buffer without limit in size and time.

    The time limit of the first head starts with the connection, that of a later head with its first byte. One timer per
    connection enforces it, so a request costs one clock reading. A body has its own limit where it is read. Data that
    arrives after a response and is not a request, such as the rest of a body, is limited like a body, here (SAFE-11).
    """

    HEAD_BYTES_MAX = 65_536
    HEAD_SECONDS_MAX = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = True, 0
        self._head_ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: The pace of data that no request reads. None: there was none since the last head.
        self._unread: BodyPace | None = None
        self._unread_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head_ends_at = self.loop.time() + self.HEAD_SECONDS_MAX
        self._timer = self.loop.call_later(self.HEAD_SECONDS_MAX, self._check_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _check_deadlines(self) -> None:
        """Close the connection if its head is overdue; else reschedule for the earliest possible deadline."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        is_idle = self._is_idle
        if self._unread is not None:
            self._count_unread(0)
            if self._unread.seconds_left == 0.0:
                log.info("closed connection: unread data after a response arrives too slowly", client=self._client_host)
                self.transport.close()
                return
        if not self._in_head or not is_idle:
            # While a response is in progress, the next head may have to wait for it, unread.
            self._head_ends_at = now + self.HEAD_SECONDS_MAX
            if is_idle and self.timeout_keep_alive_task is None:
                # What arrived after the response was not a request (the rest of a body, a blank line), and it stopped
                # uvicorn's timer for idle connections.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif now >= self._head_ends_at:
            log.info("closed connection: request head timed out", bytes=self._head_bytes, client=self._client_host)
            self.transport.write(_HEAD_TOO_SLOW)
            self.transport.close()
            return
        self._timer = self.loop.call_later(self._head_ends_at - now, self._check_deadlines)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.HEAD_BYTES_MAX and not self.transport.is_closing():
                log.info("rejected request: head too large", bytes=self._head_bytes)
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()
        elif self._is_idle:
            self._count_unread(len(data))

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request, or the last one has been answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _client_host(self) -> str | None:
        return self.client[0] if self.client else None

    def _count_unread(self, size: int) -> None:
        now = self.loop.time()
        if self._unread is None:
            self._unread, self._unread_at = BodyPace(), now
        self._unread.arrived(size, now - self._unread_at)
        self._unread_at = now

    def on_message_begin(self) -> None:
        if not self._in_head:
            self._head_ends_at = self.loop.time() + self.HEAD_SECONDS_MAX
        self._in_head, self._head_bytes = True, 0
        self._unread = None
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore the trailer fields of a chunked body: the parser reports them too, and uvicorn would add them to the
        headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


_HEAD_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would raise the signals again before the connection to NATS is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def settle_garbage() -> None:
    """Exclude the objects created at startup from garbage collection: they are never freed, so scanning them is a
    waste."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def serve(config: NatsBackendConfig, listening: socket.socket) -> int:
    """Serve until a stop signal; return the exit code. Raises Unavailable if NATS cannot be used."""
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
        # HTTP clients keep pooled connections for 5 to 60 s; the client must close first, so this is longer.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    server = _Server(settings)
    # The application is started here: uvicorn would print a traceback and exit with a code of its own.
    async with app.router.lifespan_context(app):
        host, port = listening.getsockname()[:2]
        log.info("serving HTTP", host=host, port=port)
        settle_garbage()
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stop.at_once = lambda: setattr(server, "force_exit", True)
        app.state.stopping = True
        # Close the event streams first: they end immediately, and uvicorn need not wait for them.
        app.state.gateway.hub.close()
        server.should_exit = True
        await serving
        if server.server_state.tasks and not server.force_exit:
            # Cancelled by uvicorn, which does not wait for their responses.
            await asyncio.wait(set(server.server_state.tasks), timeout=_LAST_WORD_SECONDS)
        stopping.cancel()
    return stop.exit_code
