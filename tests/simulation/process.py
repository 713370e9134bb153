"""Simulated operating-system processes: groups of tasks that can be killed, paused and given a skewed clock.

A handle of the loop belongs to the process found in its context (`CURRENT`). Tasks inherit it from their
creator, so everything that a process starts belongs to it too.
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

__all__ = ["CURRENT", "Killed", "Process", "ProcessDead", "keep_forever"]

_T = TypeVar("_T")

#: The process whose code is running.
CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")

#: Minimum length at which finished tasks are removed from the task list of a process.
_PRUNE_TASKS = 64


class ProcessDead(RuntimeError):
    """The test tried to use a process that was killed."""


class Killed(BaseException):
    """Raised by a hook that has killed the process it is called in, so that the code around it does not go on. The task
    that ends with it is not a failure."""


class Process:
    """One simulated process. A restart is a new `Process`, which may have the same name."""

    def __init__(self, name: str, *, loop: SimLoop | None = None, skew_seconds: float = 0.0) -> None:
        """`loop`: by default the running loop, which must be a SimLoop."""
        self.name = name
        self.loop: SimLoop = loop if loop is not None else _running_loop()
        #: Offset of the wall clock (`time.time`) of this process. Monotonic clocks are not affected.
        self.skew_seconds = skew_seconds
        self.is_alive = True
        self.is_paused = False
        #: Number of handles executed.
        self.steps = 0
        # State that belongs to the loop: ready handles, whether the process is in the list of runnable processes, when
        # to kill it, and objects kept alive after its death.
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
            coro.close()  # it has not started, so this executes none of its code
            raise ProcessDead(f"cannot start a task in {self.name}: it was killed")
        return self.loop.create_task(coro, name=name, context=self._context.copy())

    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function immediately in the context of this process. Raises ProcessDead."""
        if not self.is_alive:
            raise ProcessDead(f"cannot run code in {self.name}: it was killed")
        return self._context.copy().run(function, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Schedule a callback in this process. Dropped if the process is dead, held while it is paused."""
        return self.loop.call_soon(callback, *args, context=self._context.copy())

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Like `call_soon`, after `delay` virtual seconds. Use it to deliver network traffic to a process."""
        return self.loop.call_later(delay, callback, *args, context=self._context.copy())

    def kill(self) -> None:
        """SIGKILL: none of its handles runs again, and no `finally` or `except` block of its tasks.

        A process that kills itself stops when its current handle returns to the loop. Its tasks stay pending, so do not
        await them without a timeout.
        """
        if not self.is_alive:
            return
        self.is_alive = False
        self.loop.forget_process(self)
        for context, callback, args in self._at_death:
            self.loop.call_soon(callback, *args, context=context)
        self._at_death.clear()

    def kill_after_steps(self, steps: int) -> None:
        """Kill this process after it has executed `steps` more handles, so that it can die at any `await`."""
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        self.kill_at_step = self.steps + steps

    def on_death(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in the calling process when this process is killed, for example to close its connections
        as the kernel would."""
        self._at_death.append((contextvars.copy_context(), callback, args))

    def pause(self) -> None:
        """SIGSTOP: hold handles and due timers while virtual time advances. No effect on a dead process."""
        if self.is_alive:
            self.is_paused = True
            self.loop.unlist(self)

    def resume(self) -> None:
        """SIGCONT: run the held handles, in order."""
        if self.is_alive and self.is_paused:
            self.is_paused = False
            self.loop.list_if_ready(self)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task of this process. Called by the loop."""
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._prune_at = max(_PRUNE_TASKS, 2 * len(self.pending_tasks()))

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks, oldest first."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def dispose(self) -> None:
        """Release all references without executing code of the tasks. Called when the loop is closed.

        Freeing a suspended coroutine executes its `finally` blocks, so pending tasks are never freed: a simulation that
        kills processes leaks the memory they held.
        """
        self.is_alive = False
        for task in self.pending_tasks():
            asyncio.tasks._unregister_task(task)  # keeps asyncio.all_tasks() fast for later loops
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
