"""The start/stop contract that every loop obeys."""

from __future__ import annotations

import abc
import asyncio
import contextlib

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage

__all__ = ["Loop"]


class Loop(abc.ABC):
    """A background task that takes a turn periodically until it is stopped.

    `start` returns once it runs, `stop` once it has stopped; both are idempotent and may be called concurrently. It is
    stopped by an event that it checks, not by cancellation alone: before Python 3.12 a library can swallow a
    cancellation.
    """

    def __init__(self, *, every_seconds: float, turn_seconds_max: float = 60.0) -> None:
        self._every_seconds = every_seconds
        self._turn_seconds_max = turn_seconds_max
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: For failures inside a turn that do not end it: `self.outage.failed(...)`.
        self.outage = Outage(get_logger(type(self).__module__))

    @abc.abstractmethod
    async def turn(self) -> None:
        """Do one pass. Must be safe to interrupt anywhere and to repeat."""

    async def start(self) -> None:
        async with self._gate:
            if self._task is None:
                self._stopping.clear()
                self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        async with self._gate:
            self._stopping.set()
            self._nudged.set()
            if self._task is not None:
                await self._task
                self._task = None
                self.outage.forget()

    def nudge(self) -> None:
        """Take the next turn now."""
        self._nudged.set()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._nudged.clear()
            try:
                async with asyncio.timeout(self._turn_seconds_max):
                    await self.turn()
            except Unavailable as error:  # an outage is not a defect in our code
                self.outage.failed("a store is not available; retrying", error, loop=type(self).__name__)
            except Exception as error:  # noqa: BLE001 - top level of the loop: one failed turn must not end it
                self.outage.crashed("turn failed", error, loop=type(self).__name__)
            self.outage.settle()
            if self._stopping.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_seconds):
                    await self._nudged.wait()
