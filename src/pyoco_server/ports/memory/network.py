"""A simulated network between an adapter and a store in memory, which can delay, lose or cut off a call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pyoco_server.errors import DependencyUnavailable

__all__ = ["Network"]

#: The timeout of the Redis adapters.
_SECONDS: Final = 2


async def _yield_to_loop(_: str) -> None:
    """Yield once, as a call to a real store does, so that other tasks run and this one can be cancelled."""
    await asyncio.sleep(0)


@dataclass
class Network:
    """Both hooks get the name of the call.

    They may sleep, and may raise: DependencyUnavailable for an outage, or a BaseException that ends the simulated
    process.
    """

    #: Called before the store acts. If it raises, nothing has happened.
    on_request: Callable[[str], Awaitable[None]] = _yield_to_loop
    #: Called after the store has acted. If it raises, the change is made, but the caller does not learn of it.
    on_reply: Callable[[str], Awaitable[None]] = _yield_to_loop

    @contextlib.asynccontextmanager
    async def call(self, name: str, seconds: int = _SECONDS) -> AsyncIterator[None]:
        """Wrap an operation of the store. Raises DependencyUnavailable if it takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.on_request(name)
                yield
                await self.on_reply(name)
        except TimeoutError as error:
            raise DependencyUnavailable(f"{name} did not answer within {seconds} s") from error
