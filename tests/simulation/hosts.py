"""Work in a process of its own: it continues while its worker is suspended, ends with it, and can be killed alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from simulation.process import Process

__all__ = ["HostedWork"]

T = TypeVar("T")
#: Between a host and its worker, one way.
_PIPE_SECONDS = 0.000_5


class HostedWork(Generic[T]):
    """One piece of work. What happens in the host reaches the worker a moment later; the first outcome counts."""

    def __init__(self, host: Process, worker: Process, outcome_of_death: Callable[[], T]) -> None:
        self._host, self._worker = host, worker
        self._ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        #: Called in the worker when the work has ended.
        self.on_end: Callable[[], None] = lambda: None
        host.on_death(lambda: self.conclude(outcome_of_death))

    def end_after(self, seconds: float, outcome: Callable[[], T]) -> None:
        """The host ends the work after this time, unless it has ended before."""
        self._host.call_later(seconds, self._tell, outcome)

    def _tell(self, outcome: Callable[[], T]) -> None:
        if not self._ended.done():
            self._worker.call_later(_PIPE_SECONDS, self.conclude, outcome)

    def conclude(self, outcome: Callable[[], T]) -> None:
        """In the worker, at once."""
        if not self._ended.done():
            self._ended.set_result(outcome())
            self._host.kill()
            self.on_end()

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    async def outcome(self) -> T:
        return await asyncio.shield(self._ended)
