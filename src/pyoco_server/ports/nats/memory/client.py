"""A client of the in-process server, with the methods of `QuickClient` that the link and the adapters use."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import nats.errors
from nats.nuid import NUID

from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.client import Raw, Subscription, header_block
from pyoco_server.ports.nats.memory.server import MAX_PAYLOAD_BYTES, MemoryNats, server_at

__all__ = ["MemoryClient", "MemorySubscription"]

log = get_logger(__name__)

_RECONNECT_SECONDS = 0.05
_PENDING_BYTES_MAX = 2 * 1024 * 1024
_VERSION = "2.12.0"

_Callback = Callable[[], Awaitable[None]]


class MemorySubscription:
    """A subscription of a client."""

    def __init__(self, client: MemoryClient, number: int, subject: str) -> None:
        self._client, self.number, self.subject = client, number, subject

    async def unsubscribe(self, limit: int = 0) -> None:
        self._client.unsubscribe(self)


class MemoryClient:
    """One connection to an in-process server. It always reconnects, as the real client is configured to do."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.demands_tls = False
        self.certificates: Callable[[], Any] | None = None
        self.last_error: Exception | None = None
        self.max_payload = MAX_PAYLOAD_BYTES
        self.is_connected = False
        self.is_closed = False
        #: The number of connections so far. Messages in flight on an earlier connection are lost.
        self.connections = 0
        self.server_info: Mapping[str, Any] = {"version": _VERSION, "max_payload": MAX_PAYLOAD_BYTES, "jetstream": True}
        self._server: MemoryNats | None = None
        self._prefix = "_INBOX"
        self._nuid = NUID()
        self._numbers = count(1)
        self._subjects: dict[int, str] = {}
        self._listeners: dict[int, Callable[[Raw], None]] = {}
        #: The messages sent while disconnected, and their size.
        self._pending: list[tuple[str, str, bytes, bytes]] = []
        self._pending_bytes = 0
        self._callbacks: dict[str, _Callback] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, servers: list[str], inbox_prefix: str = "_INBOX", **options: Any) -> None:
        """Connect to the first of `servers`. Raises NoServersError if it accepts no connections."""
        self._loop, self.context = asyncio.get_running_loop(), contextvars.copy_context()
        self._prefix = inbox_prefix
        self._callbacks = {name: options[name] for name in ("disconnected_cb", "reconnected_cb") if name in options}
        self._server = server_at(servers[0])
        if not self._server.accepts(self):
            raise nats.errors.NoServersError
        self._server.connect(self)
        self.connections += 1
        self.is_connected = True

    async def close(self) -> None:
        self.is_closed, self.is_connected = True, False
        if self._server is not None:
            self._server.disconnect(self)
        self._listeners.clear()
        for task in list(self._tasks):
            task.cancel()

    def call_soon(self, act: Callable[[], None]) -> None:
        """Schedule a call in the event loop and context of this connection, unless the loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon(act, context=self.context)

    # Receiving.

    def new_inbox(self) -> str:
        return f"{self._prefix}.{self._nuid.next().decode()}"

    async def listen(self, subject: str, listener: Callable[[Raw], None]) -> MemorySubscription:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        number = next(self._numbers)
        self._subjects[number] = subject
        self._listeners[number] = listener
        server = self._server
        if self.is_connected and server is not None:
            server.wire.up(self, lambda: server.subscribe(self, number, subject))
        return MemorySubscription(self, number, subject)

    def forget(self, subscription: Subscription) -> None:
        """Remove the listener."""
        self._listeners.pop(_number(subscription), None)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Messages in flight still reach the listener until `forget`."""
        number = _number(subscription)
        self._subjects.pop(number, None)
        server = self._server
        if self.is_connected and server is not None:
            server.wire.up(self, lambda: server.unsubscribe(self, number))

    async def leave(self, subscription: Subscription) -> asyncio.Future[bool]:
        """Unsubscribe; the listener stays. The future completes once the server has confirmed."""
        self.unsubscribe(subscription)
        return self._ping()

    def hear(self, number: int, message: Raw) -> None:
        listener = self._listeners.get(number)
        if listener is not None and not self.is_closed:
            try:
                listener(message)
            except Exception:  # as in `QuickClient`: a failing listener must not affect the others
                log.exception("message listener failed", subject=message.subject)

    # Sending.

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        head = header_block(headers) if headers else b""
        if len(head) + len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        if self.is_connected:
            self._publish(subject, reply, data, head)
            return
        size = len(head) + len(data)
        if self._pending_bytes + size > _PENDING_BYTES_MAX:
            raise nats.errors.OutboundBufferLimitError
        self._pending.append((subject, reply, data, head))
        self._pending_bytes += size

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send(subject, payload, reply, headers)

    def _publish(self, subject: str, reply: str, data: bytes, head: bytes) -> None:
        server = self._server
        assert server is not None
        server.wire.up(self, lambda: server.publish(self, subject, reply, data, head), subject)

    async def flush(self, timeout: float = 10.0) -> None:
        """Return once the server has received everything sent before."""
        if not self.is_connected:
            raise nats.errors.ConnectionReconnectingError
        async with asyncio.timeout(timeout):
            await self._ping()

    def _ping(self) -> asyncio.Future[bool]:
        answered: asyncio.Future[bool] = self._loop.create_future()
        server = self._server
        assert server is not None

        def pong() -> None:
            if not answered.done():
                answered.set_result(True)

        server.wire.up(self, lambda: server.wire.down(self, pong))
        return answered

    async def send_pending(self) -> None:
        """Do nothing: messages are never buffered while connected."""

    def drop_pending(self) -> None:
        """Drop the messages that were kept for the next connection."""
        self._pending, self._pending_bytes = [], 0

    # Connection loss.

    async def force_reconnect(self) -> None:
        if self._server is not None and self.is_connected:
            self._server.cut(self)

    def lose(self) -> None:
        """Handle the loss of the connection: notify the callbacks and reconnect."""
        if self.is_closed or not self.is_connected:
            return
        self.is_connected = False
        task = self._loop.create_task(self._reconnect(), context=self.context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reconnect(self) -> None:
        await self._call_back("disconnected_cb")
        assert self._server is not None
        while not self.is_closed:
            await asyncio.sleep(_RECONNECT_SECONDS)
            if self._server.accepts(self) and not self.is_closed:
                break
        else:
            return
        self._server.connect(self)
        self.connections += 1
        for number, subject in self._subjects.items():
            self._server.subscribe(self, number, subject)
        self.is_connected = True
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for message_parts in pending:
            self._publish(*message_parts)
        await self._call_back("reconnected_cb")

    async def _call_back(self, name: str) -> None:
        callback = self._callbacks.get(name)
        if callback is not None:
            await callback()


def _number(subscription: Subscription) -> int:
    assert isinstance(subscription, MemorySubscription)
    return subscription.number
