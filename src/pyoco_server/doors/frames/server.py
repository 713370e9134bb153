"""The port of a door: accepts connections, within limits, up to the first frame (GRID-36, GRID-166)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.faults import error_frame
from pyoco_server.doors.frames.tls import ServerTls, common_name
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.frames.wire import Timers, Wire
from pyoco_server.logs import get_logger

__all__ = ["FrameServer"]

log = get_logger(__name__)

#: Connections accepted in one go before the event loop continues.
_TAKEN_AT_ONCE = 64
#: Pause when no file descriptors are left.
_PAUSE_SECONDS = 0.2
#: Refusals with an Error frame in progress; further connections are closed without one.
_REFUSALS_MAX = 32


class FrameServer:
    """Counts connections before reading anything, so that a stalled TLS handshake counts as well."""

    def __init__(
        self,
        listening: socket.socket,
        config: GridConfig,
        serve: Callable[[Wire, str | None], Awaitable[None]],
        tls: ServerTls | None = None,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._socket, self._config, self._serve, self._tls = listening, config, serve, tls
        self._on_refused = on_refused
        self._timers = Timers.of(config)
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self._refusing = 0
        self._tasks = TaskSet()
        self._pausing: asyncio.TimerHandle | None = None
        self._is_open = False

    @property
    def connections(self) -> int:
        return self._count

    def open(self) -> None:
        """Begin to accept connections."""
        self._socket.setblocking(False)
        self._is_open = True
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting; open connections stay. Idempotent."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            if self._pausing is not None:
                self._pausing.cancel()
        self._socket.close()

    async def stop(self) -> None:
        """Clean up, after the door has closed every connection."""
        self.close()
        await self._tasks.settle(1.0)

    def _accept(self) -> None:
        for _ in range(_TAKEN_AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections", why=error.strerror)
                self._pause()
                return
            self._take(connection, str(address[0]), int(address[1]))

    def _pause(self) -> None:
        """Stop accepting for a moment. The socket stays readable, so without a pause this would be a busy loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())

        def resume() -> None:
            if self._is_open:
                loop.add_reader(self._socket.fileno(), self._accept)

        self._pausing = loop.call_later(_PAUSE_SECONDS, resume)

    def _take(self, connection: socket.socket, host: str, port: int) -> None:
        connection.setblocking(False)
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        config = self._config
        if self._count >= config.exec_max_conns or self._by_address[host] >= config.exec_max_conns_per_ip:
            self._log_closed(peer, "too_many_connections")
            self._on_refused(Code.TOO_MANY_CONNECTIONS)
            if self._refusing < _REFUSALS_MAX:
                self._refusing += 1
                self._tasks.spawn(self._refuse(connection))
            else:
                connection.close()
            return
        self._count += 1
        self._by_address[host] += 1
        self._tasks.spawn(self._serve_connection(connection, host, peer))

    async def _serve_connection(self, connection: socket.socket, host: str, peer: str) -> None:
        try:
            wire, name = await self._open_wire(connection)
        except (OSError, ssl.SSLError) as error:
            connection.close()
            self._log_closed(peer, "tls_error", getattr(error, "reason", None))
        else:
            await self._serve(wire, name)
        finally:
            self._count -= 1
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]

    async def _refuse(self, connection: socket.socket) -> None:
        error = GridRefused(Code.TOO_MANY_CONNECTIONS, "this door has as many connections as it may")
        try:
            with contextlib.suppress(OSError, ssl.SSLError):
                wire, _ = await self._open_wire(connection)
                await wire.close("too_many_connections", error_frame(error))
        finally:
            connection.close()
            self._refusing -= 1

    async def _open_wire(self, connection: socket.socket) -> tuple[Wire, str | None]:
        """Create the wire, with TLS after the handshake. Raises OSError, ssl.SSLError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        context = self._tls.context if self._tls is not None else None
        # With TLS, uvloop returns a protocol of its own instead of this one.
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=context,
            ssl_handshake_timeout=self._timers.hello if context is not None else None,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return Wire(reader, writer, self._timers), common_name(transport.get_extra_info("peercert"))

    @staticmethod
    def _log_closed(peer: str, reason: str, why: str | None = None) -> None:
        log.info(
            "a connection ended", peer=peer, role="new", id=None, reason=reason, bytes_read=0, frames_read=0, why=why
        )
