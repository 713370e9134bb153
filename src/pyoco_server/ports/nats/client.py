"""The library's client, with a short way in and out for what we do thousands of times a second.

Of the library's own way in, a message is parsed into an object with a dictionary of headers, put on a queue and given
to a task; of its way out, each header is checked with a regular expression, and everything is sent at once. Here a
message reaches its listener as it came, and messages leave in bunches while there are many.

`_ps`, `_process_msg`, `_process_pong`, `_connect_to_server`, `_close`, `_send_command` and `_flush_pending` are private
to the library: its version is pinned, and `tests/ports/test_client.py` watches over what we rely on.
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
    """A message as it came."""

    subject: str
    reply: str
    data: bytes
    #: As on the wire, or empty.
    head: bytes

    @property
    def status(self) -> str | None:
        """What the server says instead of a message: "100" heartbeat, "404" nothing there, "503" nobody listens."""
        return self.head[9:12].decode() if self.head[8:9] == b" " else None

    @property
    def description(self) -> str:
        """The words behind the status, if there are any."""
        words = self.head[12:].split(b"\r\n", 1)[0] if self.status else b""
        return words.strip().decode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """Parsed when asked for: few messages need it."""
        lines = (line.partition(":") for line in self.head.decode("utf-8", "replace").split("\r\n")[1:])
        return {name.strip(): value.strip() for name, colon, value in lines if colon}


class Subscription(Protocol):
    """What `listen` returns."""

    async def unsubscribe(self, limit: int = 0) -> None: ...


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they are on the wire."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


#: A connection that has more than this to send is left to the library, which waits until there is less.
_FULL_BYTES = 1 << 15


class _Wire(TcpTransport):
    """The library waits until a connection is closed before it makes another. TLS is closed by both sides, so a peer
    that is frozen, or has turned us away, would keep us for half a minute or for ever; this one does not wait long."""

    CLOSE_SECONDS = 0.5

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # here and below: the library has no types
        self._left: asyncio.StreamWriter | None = None

    def __bool__(self) -> bool:
        """Also before it is connected: the library would put one of its own in its place."""
        return True

    async def wait_closed(self) -> None:
        writer = self._io_writer
        if writer is None or writer is self._left:
            return
        # Not by a timeout around it: that would cancel what the next one who waits would wait for.
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
        """Drop the connection, if there is one, without waiting for the peer."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class QuickClient(Client):
    #: Between two sends while many questions are in flight. A single question never waits.
    PAUSE_SECONDS = 0.001
    CROWD = 4

    def __init__(self) -> None:
        super().__init__()
        #: How many questions wait for an answer; whoever asks keeps it true.
        self.in_flight = 0
        #: Whether a server without TLS is refused, whatever the address says.
        self.demands_tls = False
        #: What to trust and to show, asked for at each handshake. None: what `connect` was given.
        self.certificates: Callable[[], ssl.SSLContext] | None = None
        self._is_ended = False
        self._listeners: dict[int, Callable[[Raw], None]] = {}
        self._ps = QuickParser(self, self._listeners, self._hear)
        self._sent_at = 0.0
        self._due: asyncio.Handle | None = None

    async def listen(self, subject: str, listener: Callable[[Raw], None]) -> LibrarySubscription:
        """As `subscribe`, but each message goes straight to `listener`, which must not block."""
        subscription = await self.subscribe(subject, cb=_nobody)
        self._listeners[subscription._id] = listener
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """The listener hears nothing more. To be called after the subscription has ended."""
        self._listeners.pop(_own(subscription)._id, None)

    async def leave(self, subscription: Subscription) -> asyncio.Future[bool]:
        """Unsubscribe; the listener stays until it is forgotten. The answer is there once the server has confirmed."""
        number = _own(subscription)._id
        await self._send_unsubscribe(number)
        await self._flush_pending(force_flush=True)  # a ping goes out at once, and would overtake it
        self._remove_sub(number)  # a reconnect does not subscribe to it again
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._send_ping(confirmed)
        return confirmed

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a subscription that the server has been told to end."""
        ended = _own(subscription)
        ended._stop_processing()
        self._remove_sub(ended._id)

    async def _process_pong(self) -> None:
        """A late answer to a ping that nobody waits for any more, after a `flush` that was given up, is no surprise.

        The library's own way ends the read loop there: the connection stays up, and hears nothing until its pings have
        gone unanswered.
        """
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        listener = self._listeners.get(sid)
        if listener is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            self._hear(listener, subject, reply, data, headers or b"")

    @staticmethod
    def _hear(listener: Callable[[Raw], None], subject: bytes, reply: bytes, data: bytes, head: bytes) -> None:
        try:
            # The server takes any bytes for a subject. One that is no text must not stop those that follow it.
            listener(Raw(subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"), data, head))
        except Exception:  # this is the connection's read loop: a defect of a listener must not end it
            log.exception("a message was not dealt with", subject=subject.decode("utf-8", "replace"))

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return super().ssl_context if self.certificates is None else self.certificates()

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect once. The library leaves open what an attempt with a failed handshake opened, and it goes on after
        `close` when `asyncio.wait_for` swallows its cancel, which happens before Python 3.12."""
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
            raise asyncio.CancelledError  # the one exception that ends the library's retries

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._is_ended = self._is_ended or status == Client.CLOSED
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The server's first words. Whoever asked for TLS gets it or no connection: our credentials come next, and the
        library would send them in plain text to a server that has none."""
        server = self._current_server
        wants_tls = server is not None and (
            server.uri.scheme == "tls" or (self.demands_tls and server.uri.scheme == "nats")
        )
        if initial_connection and wants_tls and not info.get("tls_required"):
            asks = "the address asks" if server and server.uri.scheme == "tls" else "the settings ask"
            raise nats.errors.Error(f"nats: {asks} for tls, and the server does not offer it")
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """The library hangs up for good on most errors, an expired password or a full server among them."""
        if "permissions violation" in err_msg.lower() or self.is_connecting:
            await super()._process_err(err_msg)
            return
        log.error("NATS reported an error; connecting again", reason=err_msg.strip("'"))
        await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """As `publish`, for subjects and headers that are ours: they are not checked again."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        head = header_block(headers) if headers else b""
        size = len(head) + len(data)
        if size > self._max_payload:  # the server counts the headers, too, and would hang up
            raise nats.errors.MaxPayloadError
        if not self.is_connected and self._pending_data_size + size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        start = f"HPUB {subject} {reply} {len(head)} {size}\r\n" if head else f"PUB {subject} {reply} {size}\r\n"
        await self._send_command(b"".join((start.encode(), head, data, b"\r\n")))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    @property
    def server_info(self) -> Mapping[str, Any]:
        """What the server says of itself; the library shows little of it."""
        return self._server_info

    async def send_pending(self) -> None:
        """Write everything now. The library's flush asks the server before what is pending is sent."""
        await self._flush_pending(force_flush=True)

    def drop_pending(self) -> None:
        """Forget what was kept for the next connection."""
        self._pending, self._pending_data_size = [], 0

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush:
            self._sent_at = asyncio.get_running_loop().time()
            return await super()._flush_pending(force_flush)
        if self._due is None:
            loop = asyncio.get_running_loop()
            left = self._sent_at + self.PAUSE_SECONDS - loop.time()
            # Soon, and not now: what others say in this turn of the event loop goes with it.
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
        """What is pending, without waking the library's flusher. False: that one has to, for a connection that takes no
        more at the moment, or is about to end."""
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


async def _nobody(message: object) -> None:
    """Never called: `_process_msg` gives the messages of a listener to it."""
