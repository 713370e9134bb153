"""Both HTTP clients under one name: a test is written once, with `await`, and run with each of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from pyoco_server.client.resuming import Clocks
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient

__all__ = ["MakeClient", "hasty", "make_async", "make_sync"]

#: Takes what the constructors take.
MakeClient = Callable[..., Any]


def make_async(base_url: str, **settings: Any) -> Any:
    return hasty(AsyncPyocoHttpClient(base_url, **settings))


def make_sync(base_url: str, **settings: Any) -> Any:
    """The synchronous client, in threads of its own: its methods are awaited like the other's."""
    return InThreads(hasty(PyocoHttpClient(base_url, **settings)))


def hasty(client: Any) -> Any:
    """Chance is on our side: every pause between two tries is as short as it can be."""
    clocks = client._wire.clocks
    client._wire.clocks = Clocks(steady=clocks.steady, wall=clocks.wall, chance=lambda: 1.0)
    return client


class InThreads:
    def __init__(self, client: PyocoHttpClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.client, name)
        if inspect.isgeneratorfunction(member):
            return lambda *args, **named: _Stepwise(member(*args, **named))
        if inspect.ismethod(member):
            return lambda *args, **named: asyncio.to_thread(member, *args, **named)
        return member

    def __repr__(self) -> str:
        return repr(self.client)

    async def __aenter__(self) -> InThreads:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.client.close)


class _Stepwise(AsyncIterator[Any]):
    """A generator whose steps are taken in threads."""

    def __init__(self, steps: Iterator[Any]) -> None:
        self._steps = steps

    async def __anext__(self) -> Any:
        found = await asyncio.to_thread(next, self._steps, self)
        if found is self:
            raise StopAsyncIteration
        return found

    def aclose(self) -> Awaitable[None]:
        return asyncio.to_thread(self._steps.close)  # type: ignore[attr-defined]
