"""An event loop with virtual time that chooses the next process to run with a seeded random generator.

The same seed gives the same history. Each process has its own FIFO queue of handles, because asyncio code relies on
that order; which process executes its next handle is random. Time jumps to the next timer when no handle is ready, and
each handle takes a few random microseconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import random
import sys
import threading
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from simulation.generators import Generators
from simulation.history import Entry
from simulation.process import CURRENT, Killed, Process
from simulation.stuck import SimulationStuck, describe_waiting
from simulation.tasks import SimFuture, SimHandle, SimTask, SimTimer
from simulation.timers import Timers
from simulation.unsupported import LoopWithoutIO

__all__ = ["Failure", "SimLoop"]

_T = TypeVar("_T")

#: Initial value of `time()`. Not 0, because code may use 0.0 for "never", which works on any machine with some uptime.
START_SECONDS = 100_000.0
#: Maximum virtual time before a function submitted to an executor is called.
_THREAD_SECONDS_MAX = 0.002
#: The cyclic garbage collector runs every this many steps only. It calls finalizers, and when it would run by itself
#: depends on everything the interpreter did before.
_COLLECT_STEPS = 250_000


class Failure(NamedTuple):
    """An unhandled exception, which a normal event loop would log."""

    #: Virtual seconds since the start of the simulation.
    time: float
    process: str
    message: str
    error: BaseException | None


class SimLoop(LoopWithoutIO):
    def __init__(
        self,
        seed: int | str,
        *,
        steps_max: int = 50_000_000,
        seconds_max: float = 30 * 86400.0,
        step_seconds: tuple[float, float] = (0.000_001, 0.000_050),
    ) -> None:
        """`step_seconds`: minimum and maximum virtual duration of one handle."""
        self.seed = seed
        self.history: list[Entry] = []
        self.failures: list[Failure] = []
        self.processes: list[Process] = []
        #: Number of handles executed.
        self.steps = 0
        self._steps_max, self._until = steps_max, START_SECONDS + seconds_max
        self._step_least, self._step_span = step_seconds[0], step_seconds[1] - step_seconds[0]
        self._now = START_SECONDS
        self._random = self.stream("schedule").random
        self._numbers = itertools.count()
        #: Processes with ready handles that are neither paused nor dead.
        self._runnable: list[Process] = []
        self._timers = Timers()
        self._executor_free_at: dict[Executor, float] = {}
        self._generators = Generators(self)
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self._is_running = self._is_closed = self._is_stopping = False
        self._thread = threading.get_ident()
        #: The process of the test itself. Owns every handle that no other process created.
        self.main = Process("main", loop=self)

    def __repr__(self) -> str:
        return f"<SimLoop seed={self.seed} at {self.elapsed():.6f} s, step {self.steps}>"

    # Time, randomness, history

    def time(self) -> float:
        return self._now

    def elapsed(self) -> float:
        """Virtual seconds since the start."""
        return self._now - START_SECONDS

    def advance(self, seconds: float) -> None:
        """Advance virtual time within the current handle. Implements `time.sleep`."""
        self._now += max(0.0, seconds)

    def stream(self, name: str) -> random.Random:
        """A new random generator seeded by `seed` and `name`, independent of all other streams."""
        return random.Random(f"{self.seed}/{name}")

    def current(self) -> Process:
        """The process whose code is running."""
        return CURRENT.get(self.main)

    def record(self, event: str, **facts: Any) -> None:
        """Append to the history, with the time and the process."""
        self.history.append(Entry(self._now - START_SECONDS, CURRENT.get(self.main).name, event, facts))

    # Callbacks

    def call_soon(  # type: ignore[override]  # argument types are not checked
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            self._check_open()
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, self, context)
        process = context.get(CURRENT) or self.main
        if process.is_listed:  # fast path
            process.ready.append(handle)
        else:
            self._put(handle, process)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise RuntimeError("call_soon_threadsafe from another thread: a simulation must not start threads")
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_open()
        if context is None:
            context = contextvars.copy_context()
        timer = SimTimer(when, callback, args, self, context)
        process = context.get(CURRENT) or self.main
        if process.is_alive:
            self._timers.push(next(self._numbers), timer, process)
        else:
            process.graveyard.append(timer)
        return timer

    def _timer_handle_cancelled(self, timer: SimTimer) -> None:
        """asyncio calls this when a timer is cancelled."""
        self._timers.note_cancelled(timer)

    def _put(self, handle: SimHandle | SimTimer, process: Process) -> None:
        if process.is_alive:
            process.ready.append(handle)
            if not process.is_listed:
                self.list_if_ready(process)
        else:
            process.graveyard.append(handle)  # freeing its arguments could run code of the process

    # Processes

    def list_if_ready(self, process: Process) -> None:
        """Make a process runnable if it has ready handles. Called by `Process`."""
        if process.ready and process.is_alive and not process.is_paused and not process.is_listed:
            process.is_listed = True
            self._runnable.append(process)

    def unlist(self, process: Process) -> None:
        """Make a process not runnable. Called by `Process`."""
        if process.is_listed:
            process.is_listed = False
            self._runnable.remove(process)

    def forget_process(self, process: Process) -> None:
        """Drop the handles and timers of a killed process. Called by `Process`."""
        self.unlist(process)
        process.graveyard += process.ready
        process.ready.clear()
        process.graveyard += self._timers.remove(process)

    # Tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[_T]:
        self._check_open()
        if context is None:
            context = contextvars.copy_context()
        process, number = context.get(CURRENT) or self.main, next(self._numbers)
        # The default name comes from a counter shared by all loops of the interpreter.
        name = f"{process.name}-{number}" if name is None else str(name)
        task: asyncio.Task[Any]
        if self._task_factory is None:
            task = SimTask(coro, number, process, loop=self, name=name, context=context, **options)
        else:
            task = self._task_factory(self, coro, context=context, **options)
            task.set_name(name)
        process.own(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # Executors

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Call the function inline, in a later step of the calling process.

        Calls in the default executor may be reordered, as with threads. Calls in an explicit executor keep their order,
        since it may have a single thread. Whether a cancelled call is still executed is random: a thread that has
        started cannot be stopped.
        """
        future: asyncio.Future[_T] = self.create_future()
        has_begun = self._random() < 0.5
        when = self._now + self._random() * _THREAD_SECONDS_MAX
        if executor is not None:
            when = self._executor_free_at[executor] = max(when, self._executor_free_at.get(executor, 0.0))
        self.call_at(when, self._run_inline, future, has_begun, func, args)
        return future

    def _run_inline(
        self, future: asyncio.Future[Any], has_begun: bool, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if future.cancelled() and not has_begun:
            return
        events._set_running_loop(None)  # a thread has no running loop
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  (delivered through the future)
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)
        finally:
            events._set_running_loop(self)

    def set_default_executor(self, executor: Executor) -> None:
        """No effect: executors are not used."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """No effect: executors are not used."""

    # Running

    def run_until_complete(self, future: Generator[Any, None, _T] | Awaitable[_T]) -> _T:
        """Raises SimulationStuck."""
        self._check_open()
        awaited: asyncio.Future[_T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self._run(awaited.done)
        return awaited.result()

    def run_forever(self) -> None:
        """Until `stop`. Raises SimulationStuck."""
        self._is_stopping = False
        self._run(lambda: self._is_stopping)

    def stop(self) -> None:
        self._is_stopping = True

    def _run(self, is_done: Callable[[], bool]) -> None:
        self._check_open()
        if self._is_running or events._get_running_loop() is not None:
            raise RuntimeError("another event loop is running in this thread")
        hooks, has_collector = sys.get_asyncgen_hooks(), gc.isenabled()
        self._is_running, self._thread = True, threading.get_ident()
        gc.disable()
        sys.set_asyncgen_hooks(self._generators.add, self._generators.finish)
        events._set_running_loop(self)
        try:
            self._execute(is_done)
        finally:
            self._is_running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if has_collector:
                gc.enable()

    def _execute(self, is_done: Callable[[], bool]) -> None:
        timers, runnable, chance = self._timers.heap, self._runnable, self._random
        least, span = self._step_least, self._step_span
        while not is_done():
            if timers and timers[0][0] <= self._now:
                for timer, process in self._timers.pop_due(self._now):
                    self._put(timer, process)
            if not runnable:
                self._advance_to_next_timer()
                continue
            index = int(chance() * len(runnable)) if len(runnable) > 1 else 0
            process = runnable[index]
            handle = process.ready.popleft()
            if not process.ready:
                process.is_listed = False
                runnable[index] = runnable[-1]
                runnable.pop()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  (as in asyncio, a failed callback does not stop the loop)
                message = f"exception in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error, "process": process})
            self._now += least + chance() * span
            self.steps += 1
            process.steps += 1
            if process.steps == process.kill_at_step:
                process.kill()
            if self.steps >= self._steps_max or self._now >= self._until:
                self._fail("limit reached")
            if self.steps % _COLLECT_STEPS == 0:
                gc.collect()

    def _advance_to_next_timer(self) -> None:
        when = self._timers.next_time()
        if when is None:
            self._fail("deadlock: nothing is ready and there is no timer")
        elif when > self._until:
            self._fail(f"limit reached: the next timer is due {when - START_SECONDS:.6f} s after the start")
        else:
            self._now = max(self._now, when)

    def _fail(self, reason: str) -> None:
        raise SimulationStuck(f"{reason}; {self!r}; waiting tasks:\n{describe_waiting(self.processes)}")

    def is_running(self) -> bool:
        return self._is_running

    # Shutdown

    async def cancel_all(self, seconds_max: float = 60.0) -> None:
        """Cancel and await all other tasks of running processes. A simulation should end with this: tasks that are
        pending when the loop is closed are never freed."""
        this = asyncio.current_task()
        tasks = [
            task
            for process in self.processes
            if process.is_alive and not process.is_paused
            for task in process.pending_tasks()
            if task is not this
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds_max)

    def close(self) -> None:
        """Dispose of all processes as if they were killed: none of their code runs again, and no warning is issued."""
        if self._is_running:
            raise RuntimeError("cannot close a running event loop")
        if self._is_closed:
            return
        for process in self.processes:
            process.pending_tasks()  # frees finished tasks, so unretrieved exceptions are added to `failures` now
        self._is_closed = True
        for process in self.processes:
            self.forget_process(process)
            process.dispose()
        self._generators.forget_all()
        self._executor_free_at.clear()

    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")

    async def shutdown_asyncgens(self) -> None:
        await self._generators.close_all()

    # Errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._is_closed or isinstance(context.get("exception"), Killed):
            return
        task = context.get("task") or context.get("future")
        process = context.get("process") or getattr(task, "process", None) or CURRENT.get(self.main)
        message = str(context.get("message"))
        self.failures.append(Failure(self.elapsed(), process.name, message, context.get("exception")))
        if self._exception_handler is not None:
            self._exception_handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """No effect: `call_exception_handler` adds to `failures`."""

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """No effect: debug mode would measure real time."""
