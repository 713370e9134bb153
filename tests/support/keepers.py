"""Keepers in this process: all their duties, as often as a test wants them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from pyoco_server.loops.advisories import Advisories
from pyoco_server.loops.canceller import Canceller
from pyoco_server.loops.clock.duties import clock_duties
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.rescuer import Rescuer
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.index.sqlite import SqliteIndex

__all__ = ["Duties", "keeping"]

#: Makes the loops of a keeper.
Duties = Callable[[Backend, Index, IndexFeeder], list[Loop]]


@contextlib.asynccontextmanager
async def keeping(
    backend: Backend, folder: Path, *, count: int = 1, quiet_seconds: float = 0.2, duties: Duties | None = None
) -> AsyncIterator[None]:
    """So many keepers, each with an index of its own; they look more often than real ones. `duties`: these alone."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(count):
            made = duties or partial(_all_duties, quiet_seconds)
            await stack.enter_async_context(_keeper(backend, folder / f"keeper{number}.sqlite", made))
        yield


def _all_duties(quiet_seconds: float, backend: Backend, index: Index, feeder: IndexFeeder) -> list[Loop]:
    return [
        Advisories(backend, wait_seconds=0.3),
        Canceller(backend, index, feeder, every_seconds=0.1, quiet_seconds=quiet_seconds),
        Rescuer(backend, index, feeder, every_seconds=0.1, submit_seconds=0.0),
        *clock_duties(backend, index, feeder),
    ]


@contextlib.asynccontextmanager
async def _keeper(backend: Backend, path: Path, make: Duties) -> AsyncIterator[None]:
    index = SqliteIndex(path)
    feeder = IndexFeeder(backend.runs, index)
    duties = make(backend, index, feeder)
    await feeder.start()
    for duty in duties:
        await duty.start()
    try:
        yield
    finally:
        await asyncio.gather(*(duty.stop() for duty in duties))
        await feeder.stop()
