"""Server-sent events: a response that lasts until the stream ends or the client disconnects."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

__all__ = ["TRANSPORT", "EventStream", "Source", "server_is_stopping", "transport_of"]

#: ASGI scope extension through which our own server exposes the connection: ASGI itself cannot abort one.
TRANSPORT = "pyoco.transport"

#: Time limit for the client to accept one message before the connection is cut.
_SEND_SECONDS = 30.0
#: Time limit for the last message once the stream has ended.
_LAST_SECONDS = 1.0
#: Reconnect delay after the stream has ended; random, to spread the reconnects.
_RETRY_MS = (1000, 3000)


class Source(Protocol):
    """The source of the events of one stream."""

    #: Latest end of the stream, by the event loop's clock.
    ends_at: float

    async def next(self) -> bytes | None:
        """Wait for the next event, ready to be sent. Returns None at the end of the stream."""

    def close(self) -> None:
        """The client is disconnected. May be called twice, and while `next` is waiting, which then returns."""


class EventStream(Response):
    """Sends the events of the source one at a time, so a slow client delays only itself.

    The source is closed when the stream ends, when the client disconnects, and when the client stops reading. Each send
    has a time limit, because a server waits forever for a client that does not read.
    """

    media_type = "text/event-stream"

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.Timeout | None = None
        self._cut_at = source.ends_at + _LAST_SECONDS

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """FLOW-120. The last header makes proxies forward each event immediately."""
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            leaving = asyncio.create_task(self._until_disconnected(receive), name="EventStream")
            try:
                await self._pump(scope, send, leaving)
            finally:
                leaving.cancel()
        finally:
            self._source.close()

    def hurry(self) -> None:
        """End the stream: a send in progress gets a short time limit."""
        self._cut_at = min(self._cut_at, self._loop.time() + _LAST_SECONDS)
        # An expired timeout has already cancelled the send, even if the sender has not resumed yet.
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._cut_at)

    async def _until_disconnected(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            """Ignore body messages."""
        self._source.close()

    async def _pump(self, scope: Scope, send: Send, leaving: asyncio.Task[None]) -> None:
        transport = transport_of(scope)
        frame: bytes | None = b"retry: %d\n\n" % random.randint(*_RETRY_MS)  # noqa: S311  (jitter, not a secret)
        while frame is not None and not leaving.done() and not (transport is not None and transport.is_closing()):
            if not await self._sent(send, {"type": "http.response.body", "body": frame, "more_body": True}):
                await self._cut(transport, leaving)
                return
            frame = await self._source.next()
        if not leaving.done() and not await self._sent(send, {"type": "http.response.body", "body": b""}):
            await self._cut(transport, leaving)

    async def _sent(self, send: Send, message: Message) -> bool:
        """Send a message. Returns False if the client stopped reading or disconnected."""
        try:
            cut_at = min(self._cut_at, self._loop.time() + _SEND_SECONDS)
            async with asyncio.timeout_at(cut_at) as self._patience:
                await send(message)
        except OSError:  # includes TimeoutError
            return False
        finally:
            self._patience = None
        return True

    @staticmethod
    async def _cut(transport: asyncio.WriteTransport | None, leaving: asyncio.Task[None]) -> None:
        """Abort the connection and drop unsent data. A plain close would wait until the client has read it."""
        if transport is not None:
            transport.abort()
            await asyncio.wait({leaving}, timeout=_LAST_SECONDS)


def transport_of(scope: Scope) -> asyncio.WriteTransport | None:
    """Return the connection if our own server exposes it, or None under any other server."""
    lent: Any = (scope.get("extensions") or {}).get(TRANSPORT)
    return lent["transport"] if lent is not None else None


def server_is_stopping() -> bool:
    """Return whether uvicorn, if it runs this process, is shutting down.

    Uvicorn waits for every open connection before it notifies the application, and a stream stays open for minutes. Its
    shutdown flag can be read from outside through its signal handler. Our own command sets the state directly; under
    any other server this returns False, and streams end at their time limit.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
