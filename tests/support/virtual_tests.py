"""`@pytest.mark.virtual_time`: an async test and its function-scoped fixtures run in virtual time.

Timers of minutes pass at once, and the same test takes the same course each time. Only what runs in this process
without sockets, threads and other processes can be tested so: stores in memory (`support.memory_nats`), gateways
through `httpx.ASGITransport`. Tests that need sockets or processes have `@pytest.mark.steady_time`, real time that does
not count stalls of this process (`support/steady_loop.py`). A `conftest.py` enables the markers
by importing `pytest_asyncio_loop_factories`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import pytest

from simulation.loop import SimLoop
from simulation.virtual_time import virtual_world
from support.steady_loop import SteadyLoop

__all__ = ["pytest_asyncio_loop_factories"]

_SEED = 1


class _VirtualLoop(SimLoop):
    """Clocks follow this loop from its creation until it is closed."""

    def __init__(self) -> None:
        super().__init__(_SEED)
        self._world = contextlib.ExitStack()
        self._world.enter_context(virtual_world(self, _SEED))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._world.close()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A hook of pytest-asyncio."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": _VirtualLoop}
    if item.get_closest_marker("steady_time") is not None:
        return {"steady": SteadyLoop}
    return {"real": asyncio.new_event_loop}
