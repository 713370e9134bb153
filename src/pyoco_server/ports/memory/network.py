"""The network between an adapter and a store in memory: where a simulation delays a call, loses it or cuts it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pyoco_server.errors import DependencyUnavailable

__all__ = ["Network"]

#: As long as the adapters for Redis wait.
_SECONDS: Final = 2


async def _yield_to_loop(_: str) -> None:
    """A call to a real store suspends its task, so that others run meanwhile and it can be cancelled. So does this."""
    await asyncio.sleep(0)


@dataclass
class Network:
    """Both functions get the name of the call. They may sleep, and may raise: DependencyUnavailable for an outage, or a
    BaseException that ends the simulated process."""

    #: Called before the store does anything. If it raises, nothing has happened.
    on_request: Callable[[str], Awaitable[None]] = _yield_to_loop
    #: Called after the store has done it. If it raises, the change is made and the caller does not know.
    on_reply: Callable[[str], Awaitable[None]] = _yield_to_loop

    @contextlib.asynccontextmanager
    async def call(self, name: str, seconds: int = _SECONDS) -> AsyncIterator[None]:
        """Around what the store does. Raises DependencyUnavailable if it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self.on_request(name)
                yield
                await self.on_reply(name)
        except TimeoutError as error:
            raise DependencyUnavailable(f"{name} did not answer within {seconds} s") from error
