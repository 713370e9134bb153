"""Both ends of each connection, and their timers, are in the test process: see `support/steady_loop.py`."""

from __future__ import annotations

from support.steady_loop import SteadyLoop

__all__ = ["pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories() -> dict[str, type[SteadyLoop]]:
    return {"steady": SteadyLoop}
