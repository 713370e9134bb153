"""Who starts again what has ended, as an init system would."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from storm.site import StormProcess

__all__ = ["Supervisor"]

_LOOK_SECONDS = 0.2
#: Between an end and the next life.
_REST_SECONDS = 0.5


class Supervisor:
    """Looks five times a second. Ignores processes that a fault has stopped: the fault restarts them."""

    def __init__(self, processes: Sequence[StormProcess]) -> None:
        self._processes = processes
        self._struck: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.restarts = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look_after(), name="supervisor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """From here on whatever ends has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def leave_alone(self, names: Collection[str]) -> None:
        self._struck += names

    def look_after(self, names: Collection[str]) -> None:
        for name in names:
            self._struck.remove(name)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for process in self._processes:
                if process.name not in self._struck and not process.is_alive:
                    await self._bring_back(process)

    async def _bring_back(self, process: StormProcess) -> None:
        await asyncio.sleep(_REST_SECONDS)
        if process.is_alive or process.name in self._struck:
            return
        process.start()
        self.restarts += 1
