"""For tests with times so short that a machine which stands still for a moment makes them meaningless."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

__all__ = ["once_heard", "unless_it_stalls"]

_TICK_SECONDS = 0.01
_TRIES = 20
#: How a client says that its time was up before a server had said anything.
_SILENCE = ("no event of run ", "nothing was heard of run ")


def once_heard(ask: Callable[[], str]) -> str:
    """What a command with little time says, once it has heard of its run: a busy machine may be silent until time is
    up, now and then but not each time."""
    for _ in range(_TRIES):
        said = ask()
        if not any(words in said for words in _SILENCE):
            break
    return said


async def unless_it_stalls(check: Callable[[], Awaitable[None]], seconds: float = 0.05) -> None:
    """Do it, and again when it failed while this process stood still for `seconds` or more: then it proved nothing.
    A failure without such a pause is one, and so is the twentieth."""
    for tries_left in reversed(range(_TRIES)):
        async with _ticking() as gaps:
            try:
                await check()
            except (AssertionError, pytest.fail.Exception, TimeoutError, httpx.HTTPError):
                await asyncio.sleep(2 * _TICK_SECONDS)  # so that a pause at the very end is seen, too
                if not tries_left or max(gaps) < seconds:
                    raise
            else:
                return


@contextlib.asynccontextmanager
async def _ticking() -> AsyncIterator[list[float]]:
    """By how much each tick of the loop came too late."""
    loop, gaps = asyncio.get_running_loop(), [0.0]

    async def tick() -> None:
        while True:
            began = loop.time()
            await asyncio.sleep(_TICK_SECONDS)
            gaps.append(loop.time() - began - _TICK_SECONDS)

    ticking = asyncio.create_task(tick())
    try:
        yield gaps
    finally:
        ticking.cancel()
