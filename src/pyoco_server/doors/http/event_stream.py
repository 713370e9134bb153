"""Server-sent events: an answer that goes on until one side has had enough."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

__all__ = ["TRANSPORT", "EventStream", "Source", "server_is_stopping", "transport_of"]

#: The extension of an ASGI scope by which our own server lends us the connection: to cut it, which ASGI cannot.
TRANSPORT = "pyoco.transport"

#: A client takes what is sent within this time, or is cut off.
_SEND_SECONDS = 30.0
#: What is left for a last word once the stream is over.
_LAST_SECONDS = 1.0
#: When to come back after the stream has ended; not all at the same moment.
_RETRY_MS = (1000, 3000)


class Source(Protocol):
    """Where the events of one stream come from."""

    #: When it ends at the latest, by the event loop's clock.
    ends_at: float

    async def next(self) -> bytes | None:
        """One event, ready to be sent, as soon as it is due. None: there will be no more."""

    def close(self) -> None:
        """Nobody listens any more. May be called twice, and while `next` waits: it then returns."""


class EventStream(Response):
    """Sends what the source gives, one event at a time: a slow client holds up nobody but itself.

    The source is closed when the stream ends, when the client leaves, and when it is not read: each send is bounded,
    for a server waits for ever to get rid of what nobody fetches.
    """

    media_type = "text/event-stream"

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.Timeout | None = None
        self._cut_at = source.ends_at + _LAST_SECONDS

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """FLOW-120. The last one tells a proxy to pass on each event as it comes."""
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
            leaving = asyncio.create_task(self._until_left(receive), name="EventStream")
            try:
                await self._pump(scope, send, leaving)
            finally:
                leaving.cancel()
        finally:
            self._source.close()

    def hurry(self) -> None:
        """The stream is over: whatever is being sent has a moment to get through."""
        self._cut_at = min(self._cut_at, self._loop.time() + _LAST_SECONDS)
        # An expired one has cut off the send already, though the sender does not know it yet.
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._cut_at)

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            """A body that nobody asked for."""
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
        """False: the client does not read, or has left."""
        try:
            cut_at = min(self._cut_at, self._loop.time() + _SEND_SECONDS)
            async with asyncio.timeout_at(cut_at) as self._patience:
                await send(message)
        except OSError:  # a TimeoutError among them
            return False
        finally:
            self._patience = None
        return True

    @staticmethod
    async def _cut(transport: asyncio.WriteTransport | None, leaving: asyncio.Task[None]) -> None:
        """Hang up, and drop what was not fetched. Closing alone would wait for the client to fetch it."""
        if transport is not None:
            transport.abort()
            await asyncio.wait({leaving}, timeout=_LAST_SECONDS)


def transport_of(scope: Scope) -> asyncio.WriteTransport | None:
    """The connection, as our own server lends it. None: another server runs us."""
    lent: Any = (scope.get("extensions") or {}).get(TRANSPORT)
    return lent["transport"] if lent is not None else None


def server_is_stopping() -> bool:
    """Whether uvicorn, when it runs this process, was told to stop.

    It waits for every open connection before it tells the application, and a stream is open for minutes. Its signal
    handler is where it can be seen from outside. Our own command tells us itself; under any other server the answer
    is no, and streams end by their own time.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
