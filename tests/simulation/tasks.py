"""Tasks, futures and handles of a simulated event loop.

asyncio and the code under test iterate over sets of tasks. Their default hash is the memory address, so tasks and
futures of a SimLoop hash by a counter instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from simulation.process import Process

__all__ = ["SimFuture", "SimHandle", "SimTask", "SimTimer"]


class SimFuture(asyncio.Future[Any]):
    __slots__ = ("number",)
    #: Set by the loop after construction, because a Python `__init__` would double the cost.
    number: int

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[Any]):
    __slots__ = ("number", "process")

    def __init__(self, coro: Any, number: int, process: Process, **options: Any) -> None:
        self.number = number  # before super().__init__, which puts the task into a set
        self.process = process
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimHandle(asyncio.Handle):
    """Like asyncio.Handle without its debug mode checks, which dominate the cost of creating one."""

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop, context: Context
    ) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class SimTimer(asyncio.TimerHandle):
    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context
    #: Whether it is in the heap.
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._when, self._scheduled = when, True
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._repr, self._source_traceback = False, None, None
