"""The library's client with a fast path for receiving and sending thousands of messages a second.

The library parses each received message into an object with a dictionary of headers, queues it and passes it to a task;
it checks each sent header with a regular expression and writes every message immediately. Here a listener is called
with the raw message, and messages are sent in batches under load.

`_ps`, `_process_msg`, `_process_pong`, `_connect_to_server`, `_close`, `_send_command` and `_flush_pending` are private
to the library: its version is pinned, and `tests/ports/test_client.py` checks what we rely on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription as LibrarySubscription
from nats.aio.transport import TcpTransport

from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.parser import QuickParser

__all__ = ["QuickClient", "Raw", "Subscription", "header_block"]

log = get_logger(__name__)


class Raw(NamedTuple):
    """A raw message."""

    subject: str
    reply: str
    data: bytes
    #: As on the wire, or empty.
    head: bytes

    @property
    def status(self) -> str | None:
        """The status code of a control message: "100" heartbeat, "404" no messages, "503" no responders.

        None: an ordinary message.
        """
        return self.head[9:12].decode() if self.head[8:9] == b" " else None

    @property
    def description(self) -> str:
        """The text after the status; may be empty."""
        words = self.head[12:].split(b"\r\n", 1)[0] if self.status else b""
        return words.strip().decode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """The headers, parsed on access: few messages need them."""
        lines = (line.partition(":") for line in self.head.decode("utf-8", "replace").split("\r\n")[1:])
        return {name.strip(): value.strip() for name, colon, value in lines if colon}


class Subscription(Protocol):
    """The result of `listen`."""

    async def unsubscribe(self, limit: int = 0) -> None: ...


def header_block(headers: Mapping[str, str]) -> bytes:
    """Return headers in their wire format."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


#: Above this much unsent data, the library's flusher writes, which waits for the socket (backpressure).
_FULL_BYTES = 1 << 15


class _Wire(TcpTransport):
    """A transport that waits only briefly for a connection to close.

    The library waits for that before it reconnects. TLS needs both sides to close, so a frozen peer, or one that has
    refused us, would block it for half a minute or without end.
    """

    CLOSE_SECONDS = 0.5

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # here and below: the library has no types
        self._left: asyncio.StreamWriter | None = None

    def __bool__(self) -> bool:
        """True even before it is connected: otherwise the library would replace it by its own transport."""
        return True

    async def wait_closed(self) -> None:
        writer = self._io_writer
        if writer is None or writer is self._left:
            return
        # No timeout around the call: it would cancel the shared future that later callers wait for.
        closed = asyncio.ensure_future(super().wait_closed())  # type: ignore[no-untyped-call]
        await asyncio.wait({closed}, timeout=self.CLOSE_SECONDS)
        if not closed.done():
            writer.transport.abort()
            await asyncio.wait({closed}, timeout=self.CLOSE_SECONDS)
        if closed.done():
            closed.result()
        else:
            self._left = writer
            closed.cancel()

    def abort(self) -> None:
        """Abort the connection, if any, without waiting for the peer."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class QuickClient(Client):
    #: The pause between two writes while at least CROWD requests are in flight. A single request never waits.
    PAUSE_SECONDS = 0.001
    CROWD = 4

    def __init__(self) -> None:
        super().__init__()
        #: The number of requests that wait for a response; maintained by the caller.
        self.in_flight = 0
        #: Whether to refuse a server without TLS even if its address does not demand TLS.
        self.demands_tls = False
        #: Returns the TLS context for each handshake. None: use the one passed to `connect`.
        self.certificates: Callable[[], ssl.SSLContext] | None = None
        self._is_ended = False
        self._listeners: dict[int, Callable[[Raw], None]] = {}
        self._ps = QuickParser(self, self._listeners, self._pass_to_listener)
        self._sent_at = 0.0
        self._due: asyncio.Handle | None = None

    async def listen(self, subject: str, listener: Callable[[Raw], None]) -> LibrarySubscription:
        """Subscribe with a `listener` that is called directly with each message and must not block."""
        subscription = await self.subscribe(subject, cb=_never_called)
        self._listeners[subscription._id] = listener
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Remove the listener. Call it after the subscription has ended."""
        self._listeners.pop(_own(subscription)._id, None)

    async def leave(self, subscription: Subscription) -> asyncio.Future[bool]:
        """Unsubscribe; the listener stays until `forget`. The future completes once the server has confirmed."""
        number = _own(subscription)._id
        await self._send_unsubscribe(number)
        await self._flush_pending(force_flush=True)  # a ping is written immediately and would overtake it
        self._remove_sub(number)  # a reconnect must not subscribe again
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._send_ping(confirmed)
        return confirmed

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription that has been ended on the server."""
        ended = _own(subscription)
        ended._stop_processing()
        self._remove_sub(ended._id)

    async def _process_pong(self) -> None:
        """Accept a late pong whose `flush` has timed out.

        The library's own handler would fail and end the read loop: the connection would stay open but receive nothing
        until its own pings time out.
        """
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        listener = self._listeners.get(sid)
        if listener is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            self._pass_to_listener(listener, subject, reply, data, headers or b"")

    @staticmethod
    def _pass_to_listener(
        listener: Callable[[Raw], None], subject: bytes, reply: bytes, data: bytes, head: bytes
    ) -> None:
        try:
            # The server accepts any bytes as a subject. An invalid one must not block the following messages.
            listener(Raw(subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"), data, head))
        except Exception:  # this is the connection's read loop: a defect of a listener must not end it
            log.exception("message listener failed", subject=subject.decode("utf-8", "replace"))

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return super().ssl_context if self.certificates is None else self.certificates()

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect once, and work around two defects of the library.

        It leaks the connection of a failed handshake, and before Python 3.12 it continues after `close` if
        `asyncio.wait_for` swallows its cancellation.
        """
        self._stop_if_ended()
        if isinstance(self._transport, _Wire):
            self._transport.abort()
        elif not self._transport and s.uri.scheme in ("nats", "tls"):
            self._transport = _Wire()
        await super()._connect_to_server(s)
        self._stop_if_ended()

    def _stop_if_ended(self) -> None:
        if self._is_ended:
            self._status = Client.CLOSED  # the library's retry has overwritten it
            if isinstance(self._transport, _Wire):
                self._transport.abort()
            raise asyncio.CancelledError  # the only exception that ends the library's retries

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._is_ended = self._is_ended or status == Client.CLOSED
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Handle the server's INFO. If TLS was requested, refuse a server that does not offer it.

        Otherwise the library would send our credentials in plain text next.
        """
        server = self._current_server
        wants_tls = server is not None and (
            server.uri.scheme == "tls" or (self.demands_tls and server.uri.scheme == "nats")
        )
        if initial_connection and wants_tls and not info.get("tls_required"):
            asks = "the address asks" if server and server.uri.scheme == "tls" else "the settings ask"
            raise nats.errors.Error(f"nats: {asks} for tls, and the server does not offer it")
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error. The library closes permanently, even for an expired password or a full server."""
        if "permissions violation" in err_msg.lower() or self.is_connecting:
            await super()._process_err(err_msg)
            return
        log.error("NATS reported an error; reconnecting", reason=err_msg.strip("'"))
        await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Publish without checking subject and headers, which must be valid."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        head = header_block(headers) if headers else b""
        size = len(head) + len(data)
        if size > self._max_payload:  # the server also counts the headers, and would close the connection
            raise nats.errors.MaxPayloadError
        if not self.is_connected and self._pending_data_size + size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        start = f"HPUB {subject} {reply} {len(head)} {size}\r\n" if head else f"PUB {subject} {reply} {size}\r\n"
        await self._send_command(b"".join((start.encode(), head, data, b"\r\n")))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The server's INFO; the library exposes only a part of it."""
        return self._server_info

    async def send_pending(self) -> None:
        """Write all pending data now. The library's flush sends its ping before the pending data."""
        await self._flush_pending(force_flush=True)

    def drop_pending(self) -> None:
        """Drop the data that was kept for the next connection."""
        self._pending, self._pending_data_size = [], 0

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush:
            self._sent_at = asyncio.get_running_loop().time()
            return await super()._flush_pending(force_flush)
        if self._due is None:
            loop = asyncio.get_running_loop()
            left = self._sent_at + self.PAUSE_SECONDS - loop.time()
            # Not immediately: messages sent in the same iteration of the event loop join the batch.
            is_late = left <= 0 or self.in_flight < self.CROWD
            self._due = loop.call_soon(self._send_now) if is_late else loop.call_later(left, self._send_now)
        return None

    def _send_now(self) -> None:
        self._due = None
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        if self.is_connected and not self._wrote() and self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(loop.create_future())

    def _wrote(self) -> bool:
        """Write the pending data without waking the library's flusher.

        False: the flusher has to do it, because the connection is congested or closing.
        """
        writer = self._transport._io_writer if isinstance(self._transport, _Wire) else None
        if writer is None or self._flush_queue is None or not self._flush_queue.empty():
            return False
        if writer.transport.is_closing() or writer.transport.get_write_buffer_size() > _FULL_BYTES:
            return False
        pending, self._pending, self._pending_data_size = self._pending, [], 0
        if pending and self._transport is not None:
            self._transport.writelines(pending)
        return True


def _own(subscription: Subscription) -> LibrarySubscription:
    assert isinstance(subscription, LibrarySubscription)
    return subscription


async def _never_called(message: object) -> None:
    """Never called: `_process_msg` passes the messages directly to the listener."""
