"""Both HTTP clients with a scripted gateway, without sockets and with a clock that only their waits advance.

For tests of clients whose time runs out: a turn of `support.scripted_gateway` that hangs costs exactly the read timeout
of the request, a pause costs exactly its length, and nothing else costs any time.

    async with clocked(stream(event(3, "RUNNING"), then="hang"), retries=0) as (server, client):
        with pytest.raises(TimeoutError):
            await client.wait_run("r", 0.4)
        assert server.now == pytest.approx(0.4)
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import h11
import httpx
import pytest

from pyoco_server.client import aio, aio_priced, aio_wire, sync, sync_priced, sync_wire
from pyoco_server.client.resuming import Clocks
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
from support.scripted_gateway import Asked, Turn, answer

__all__ = ["ClockedGateway", "MakeClocked", "make_clocked", "refuse"]

_URL = "http://gateway.test"
#: Takes the turns, and the settings of the client. Gives the gateway and the client.
MakeClocked = Callable[..., contextlib.AbstractAsyncContextManager[tuple["ClockedGateway", Any]]]


async def refuse(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """A turn: nobody listens."""
    raise ConnectionRefusedError("connection refused")


@dataclass
class ClockedGateway(httpx.BaseTransport, httpx.AsyncBaseTransport):
    turns: list[Turn]
    asked: list[Asked] = field(default_factory=list)
    #: When each request came, by the clock of this gateway.
    at: list[float] = field(default_factory=list)
    #: Seconds that the client has waited since the beginning.
    now: float = 0.0
    #: Answers that the client has not closed.
    open_count: int = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.method, request.url.raw_path.decode(), headers, request.content)
        self.asked.append(asked)
        self.at.append(self.now)
        turn = self.turns.pop(0) if self.turns else answer({"detail": "not in the script"}, 418)
        return self._answer(request, *_play(turn, asked))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def _answer(self, request: httpx.Request, data: bytes, hangs: bool) -> httpx.Response:
        events = self._events(request, data, hangs)
        head = cast(h11.Response, next(events))
        self.open_count += 1
        stream = _Body(events, self)
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=stream, request=request)

    def _events(self, request: httpx.Request, data: bytes, hangs: bool) -> Iterator[h11.Event]:
        """The head of the answer, then its body."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=request.method, target="/", headers=[("host", "gateway.test")]))
        connection.send(h11.EndOfMessage())
        if data:
            connection.receive_data(data)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                raise httpx.RemoteProtocolError(str(error), request=request) from error
            if isinstance(event, h11.EndOfMessage):
                return
            if isinstance(event, h11.ConnectionClosed):
                raise httpx.RemoteProtocolError("disconnected without an answer", request=request)
            if event is not h11.NEED_DATA:
                yield cast(h11.Event, event)
            elif hangs:
                self.now += request.extensions["timeout"]["read"]
                raise httpx.ReadTimeout("the gateway said nothing", request=request)
            else:
                connection.receive_data(b"")

    def wait(self, seconds: float) -> None:
        self.now += seconds

    async def wait_async(self, seconds: float) -> None:
        self.now += seconds


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, events: Iterator[h11.Event], gateway: ClockedGateway) -> None:
        self._events, self._gateway, self._is_open = events, gateway, True

    def __iter__(self) -> Iterator[bytes]:
        for event in self._events:
            yield bytes(cast(h11.Data, event).data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for data in self:
            yield data

    def close(self) -> None:
        self._gateway.open_count -= self._is_open
        self._is_open = False

    async def aclose(self) -> None:
        self.close()


class _Writer:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Nothing is buffered."""


def _play(turn: Turn, asked: Asked) -> tuple[bytes, bool]:
    """The bytes that a turn sends, and whether it hangs afterwards."""
    writer = _Writer()
    playing = cast(Any, turn(asked, cast(Any, writer)))
    try:
        playing.send(None)
    except StopIteration:
        return writer.data, False
    except ConnectionRefusedError as error:
        raise httpx.ConnectError(str(error)) from error
    playing.close()
    return writer.data, True


class _Awaitable:
    """The synchronous client under the names of the other: its methods are awaited, and run at once."""

    def __init__(self, client: PyocoHttpClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)

        async def call(*args: Any, **named: Any) -> Any:
            return member(*args, **named)

        async def steps(*args: Any, **named: Any) -> AsyncIterator[Any]:
            for each in member(*args, **named):
                yield each

        return steps if inspect.isgeneratorfunction(member) else call


def make_clocked(kind: str, patch: pytest.MonkeyPatch) -> MakeClocked:
    """`kind`: `sync` or `async`."""

    @contextlib.asynccontextmanager
    async def clocked(*turns: Turn, **settings: Any) -> AsyncIterator[tuple[ClockedGateway, Any]]:
        gateway = ClockedGateway(list(turns))
        clocks = Clocks(steady=lambda: gateway.now, wall=lambda: gateway.now, chance=lambda: 1.0)
        for module in (aio, aio_priced, aio_wire):
            patch.setattr(module, "sleep", gateway.wait_async)
        for other in (sync, sync_priced, sync_wire):
            patch.setattr(other, "sleep", gateway.wait)
        if kind == "sync":
            with PyocoHttpClient(_URL, transport=gateway, **settings) as client:
                client._wire.clocks = clocks
                yield gateway, _Awaitable(client)
        else:
            async with AsyncPyocoHttpClient(_URL, transport=gateway, **settings) as other_client:
                other_client._wire.clocks = clocks
                yield gateway, other_client

    return clocked
