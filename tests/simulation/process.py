"""Simulated operating-system processes: a share of the event loop that can be killed, paused and given a wrong clock.

A handle of the loop belongs to the process found in its context (`CURRENT`). Tasks inherit it from the task or process
that created them, so everything a process starts belongs to it too.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from simulation.loop import SimLoop
    from simulation.tasks import SimHandle, SimTimer

__all__ = ["CURRENT", "Process", "ProcessDead", "keep_forever"]

_T = TypeVar("_T")

#: The process whose code is running.
CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")

#: Finished tasks are dropped from the list of a process once it is this long, and again whenever it has doubled.
_PRUNE_TASKS = 64


class ProcessDead(RuntimeError):
    """The test tried to use a process that was killed."""


class Process:
    """One simulated process. A restart is a new `Process`, which may have the same name."""

    def __init__(self, name: str, *, loop: SimLoop | None = None, skew_seconds: float = 0.0) -> None:
        """Without `loop`: that of the caller, who runs on a SimLoop."""
        self.name = name
        self.loop: SimLoop = loop if loop is not None else _running_loop()
        #: By how much the wall clock of this process (`time.time`) is ahead. Monotonic clocks have no offset.
        self.skew_seconds = skew_seconds
        self.is_alive = True
        self.is_paused = False
        #: How many handles were executed.
        self.steps = 0
        #: Handles to execute, in order. Only the loop uses these four.
        self.ready: deque[SimHandle | SimTimer] = deque()
        self.is_listed = False
        self.kill_at_step = -1
        self.graveyard: list[object] = []
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _PRUNE_TASKS
        self._at_death: list[tuple[contextvars.Context, Callable[..., object], tuple[Any, ...]]] = []
        self.loop.processes.append(self)

    def __repr__(self) -> str:
        state = "dead" if not self.is_alive else "paused" if self.is_paused else "running"
        return f"<Process {self.name} {state}>"

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
        """Start a task in this process. Raises ProcessDead."""
        if not self.is_alive:
            coro.close()  # it has not begun, so none of its code runs
            raise ProcessDead(f"cannot start a task in {self.name}: it was killed")
        return self.loop.create_task(coro, name=name, context=self._context.copy())

    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function as this process, at once, for example to construct its objects. Raises ProcessDead."""
        if not self.is_alive:
            raise ProcessDead(f"cannot run code in {self.name}: it was killed")
        return self._context.copy().run(function, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Let this process execute a callback. Nothing happens if it is dead; a paused process does it when resumed."""
        return self.loop.call_soon(callback, *args, context=self._context.copy())

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Like `call_soon`, after `delay` virtual seconds: the way to deliver network traffic to a process."""
        return self.loop.call_later(delay, callback, *args, context=self._context.copy())

    def kill(self) -> None:
        """SIGKILL: none of its handles is executed any more, and no `finally` or `except` of its tasks.

        A process that kills itself ends when its current handle returns to the loop. Tasks of other processes that
        await one of its tasks wait for ever, as they would for a machine that is gone.
        """
        if not self.is_alive:
            return
        self.is_alive = False
        self.loop.forget_process(self)
        for context, callback, args in self._at_death:
            self.loop.call_soon(callback, *args, context=context)
        self._at_death.clear()

    def kill_after_steps(self, steps: int) -> None:
        """Kill this process after that many more of its handles: in effect, at any `await`."""
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        self.kill_at_step = self.steps + steps

    def on_death(self, callback: Callable[..., object], *args: Any) -> None:
        """Have a callback executed, in the process of the caller, once this one is killed: to close its connections,
        as the kernel does."""
        self._at_death.append((contextvars.copy_context(), callback, args))

    def pause(self) -> None:
        """SIGSTOP: handles and due timers are held while virtual time goes on. No effect on a dead process."""
        if self.is_alive:
            self.is_paused = True
            self.loop.unlist(self)

    def resume(self) -> None:
        """SIGCONT: whatever was held is executed, in order."""
        if self.is_alive and self.is_paused:
            self.is_paused = False
            self.loop.list_if_ready(self)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task of this process. For the loop."""
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._prune_at = max(_PRUNE_TASKS, 2 * len(self.pending_tasks()))

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended, oldest first."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def dispose(self) -> None:
        """Let go of everything without executing code of the tasks. For the loop, when it is closed.

        Freeing a suspended coroutine executes its `finally` blocks, so pending tasks are never freed: a simulation that
        kills processes leaks the memory they held.
        """
        self.is_alive = False
        for task in self.pending_tasks():
            asyncio.tasks._unregister_task(task)  # all_tasks() of later loops would look at each of them
            keep_forever(task)
        if self.graveyard or self.ready:
            keep_forever([*self.graveyard, *self.ready])
        self._tasks, self._at_death, self.graveyard = [], [], []
        self.ready.clear()


def keep_forever(kept: object) -> None:
    """Never free an object, not even when the interpreter exits."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _running_loop() -> SimLoop:
    from simulation.loop import SimLoop

    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
