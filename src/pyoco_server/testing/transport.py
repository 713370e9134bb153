"""Transports of the HTTP clients that call the gateway in this process."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

import httpx
from starlette.types import ASGIApp

__all__ = ["ADDRESS", "AsyncTransport", "Host", "Transport"]

#: Of requests; nothing listens there.
ADDRESS = "http://testing.localhost"

Message = dict[str, Any]


class Host(Protocol):
    """What runs the gateway."""

    @property
    def gateway(self) -> ASGIApp: ...

    def begin(self, work: Any) -> Future[Any]:
        """Start a coroutine in the loop of the gateway. Raises httpx.ConnectError if that has ended."""


class _Exchange:
    """One request. `emit` gets the messages of the response, and None at its end, in the thread of the gateway."""

    def __init__(self, host: Host, request: httpx.Request, body: bytes, emit: Callable[[Message | None], None]) -> None:
        self._host, self._request, self._emit = host, request, emit
        self._parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self.future = host.begin(self._run())

    async def _run(self) -> None:
        try:
            await self._host.gateway(_scope(self._request), self._receive, self._send)
        finally:
            self._emit(None)

    async def _receive(self) -> Message:
        if self._parts:
            return self._parts.pop()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # until it is cancelled

    async def _send(self, message: Any) -> None:
        self._emit(message)


def _scope(request: httpx.Request) -> Message:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (request.url.host, 80),
        "state": {},
    }


def _failed(exchange: _Exchange) -> httpx.RemoteProtocolError:
    error = exchange.future.exception()
    return httpx.RemoteProtocolError(f"the gateway has not answered: {error!r}")


class _Body(httpx.SyncByteStream):
    def __init__(self, exchange: _Exchange, messages: queue.SimpleQueue[Message | None]) -> None:
        self._exchange, self._messages = exchange, messages

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    def close(self) -> None:
        self._exchange.future.cancel()


class Transport(httpx.BaseTransport):
    def __init__(self, host: Host) -> None:
        self._host = host

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        exchange = _Exchange(self._host, request, request.read(), messages.put)
        start = messages.get()
        if start is None:
            raise _failed(exchange)
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(exchange, messages))


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange, messages: asyncio.Queue[Message | None]) -> None:
        self._exchange, self._messages = exchange, messages

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._exchange.future.cancel()


class AsyncTransport(httpx.AsyncBaseTransport):
    def __init__(self, host: Host) -> None:
        self._host = host

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop, messages = asyncio.get_running_loop(), asyncio.Queue[Message | None]()

        def emit(message: Message | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(messages.put_nowait, message)

        exchange = _Exchange(self._host, request, await request.aread(), emit)
        start = await messages.get()
        if start is None:
            raise _failed(exchange)
        return httpx.Response(start["status"], headers=start["headers"], stream=_AsyncBody(exchange, messages))
