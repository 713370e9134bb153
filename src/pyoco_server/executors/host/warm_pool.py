"""Warm child processes of one kind: some are kept ready, and each serves many runs, one after another."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyoco_server.errors import UsageError
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.host.process import READY_SECONDS_MAX, ChildProcess
from pyoco_server.logs import get_logger

__all__ = ["Size", "WarmPool"]

log = get_logger(__name__)

P = TypeVar("P", bound=ChildProcess)
#: What a process is started with. Compared by identity: a process whose settings are not the pool's is outdated.
S = TypeVar("S")

#: After a process that did not start: the first pause, doubled each time up to the second.
_PAUSE_SECONDS = (0.2, 30.0)
#: A process that was idle for this long is ended, down to the number that is kept warm.
_IDLE_SECONDS = 300.0
#: How many processes with new settings start concurrently: starting all would starve running work of CPU.
_AT_ONCE = max(2, os.cpu_count() or 1)
#: How long a process may take to start with new settings, unless earlier starts took longer: others wait for it.
_RENEWAL_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many processes there are, and for how long each is used."""

    #: Always kept warm.
    least: int
    #: Upper limit; the additional ones are started while all others are busy.
    most: int
    #: Maximum duration of a start, which includes imports.
    ready_seconds: float = READY_SECONDS_MAX
    #: A process is replaced after this many runs, to bound memory leaks.
    runs_max: int = 1000

    def __post_init__(self) -> None:
        assert 1 <= self.least <= self.most


class WarmPool(Generic[S, P]):
    """Starts processes, hands them out, and replaces those that die, were killed, or have served their runs.

    It cannot limit how many callers wait: they are served in order.
    """

    def __init__(
        self,
        kind: type[P],
        settings: S,
        size: Size,
        *,
        name: str,
        collector: Collector | None = None,
        when_warm: Callable[[P], None] = lambda _: None,
    ) -> None:
        """`name` is for the log; `collector` gets what the runs print; `when_warm` gets each process that is ready."""
        self._when_warm = when_warm
        self._collector = collector
        self._kind, self._settings, self._size, self._name = kind, settings, size, name
        #: Last in, first out: the process used last has warm caches, and spare ones stay idle.
        self._idle: list[P] = []
        self._freed = asyncio.Event()
        self._processes: set[P] = set()
        #: Processes with the current settings, including those being started.
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        #: Serializes start and renewals.
        self._changing = asyncio.Lock()
        self._is_running = self._is_stopped = False
        #: How long the last process took to start.
        self._start_seconds = 0.0
        #: Processes that were replaced because they crashed or were killed.
        self.restarts = 0

    @property
    def settings(self) -> S:
        """What new processes are started with."""
        return self._settings

    @property
    def settings_in_use(self) -> list[S]:
        """The settings of all processes, busy ones included, and of those to come."""
        return [self._settings, *(process.settings for process in self._processes)]

    @property
    def is_able(self) -> bool:
        """Whether a warm process is alive. One that is still starting does not count: it may never be ready."""
        return any(process.is_warm and process.is_alive for process in self._processes)

    async def start(self) -> None:
        """Return once one process is warm. Raises UsageError, OSError or an unexpected error; then none is left.

        May be called again after `stop`.
        """
        assert not self._is_running
        self._is_stopped = False
        async with self._changing:
            if not self.has_idle():  # unless a renewal before the start has left one
                self._count = 0
                first = await self._warm(self._settings)
                if self._is_stopped:
                    await self._discard(first)
                    raise UsageError("the worker stops")
                self._count = 1
                self._free(first)
            self._is_running = True
            while self._count < self._size.least:
                self._grow()

    async def stop(self) -> None:
        """End all running work immediately. Idempotent; may be called before `start`."""
        self._is_running, self._is_stopped = False, True
        # By a flag and by cancellation: before Python 3.12 a library can swallow a cancellation.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=0.5)
        for process in list(self._processes):
            await self._discard(process)
        self._idle.clear()
        self._count = 0

    def has_idle(self) -> bool:
        """Whether a live process is idle. Those that died while idle are replaced."""
        process = self._next()
        if process is not None:
            self._idle.append(process)
        return process is not None

    async def take(self) -> P:
        """Return the next warm and idle process; the caller owns it until `take_back`. Starts another one if there may
        be more."""
        while (process := self._next()) is None:
            if self._is_running and self._count < self._size.most:
                self._grow()
            self._freed.clear()
            await self._freed.wait()
        return process

    def take_back(self, process: P) -> None:
        """Return a process to the pool. One with outdated settings is only ended: others have taken its place."""
        if self._is_stopped or process not in self._processes:
            return
        is_current = process.settings is self._settings
        if is_current and process.is_alive and process.runs < self._size.runs_max:
            self._free(process)
            return
        self.restarts += not process.is_alive
        if is_current:
            self._end(process)
            if self._is_running and self._count < self._size.least:
                self._grow()
        else:
            self._in_background(self._discard(process))
        self._freed.set()  # a waiting caller may start another

    async def renew(self, settings: S, check: Callable[[P], None] = lambda _: None) -> None:
        """Warm up a full set of processes with other settings next to the busy ones, then switch to it atomically.

        `check` raises UsageError if the first of them cannot be used. Raises UsageError if not all get ready; then
        nothing has changed. May be called before `start`. Costs the start of all processes, and their memory twice
        until the runs on the old ones have ended.
        """
        renewing = self._in_background(self._renew(settings, check))
        try:
            await renewing
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._is_stopped and not (me is not None and me.cancelling()):  # the pool is stopping, not the caller
                raise UsageError("the worker stops") from None
            raise

    async def _renew(self, settings: S, check: Callable[[P], None]) -> None:
        async with self._changing:
            if settings == self._settings:
                return
            if self._is_stopped:
                raise UsageError("the worker stops")
            fresh = await self._warm_all(settings, self._size.least if self._is_running else 1, check)
            # No await from here to the end: the next `take` finds new processes, and none ever finds an empty pool.
            self._settings, idle, self._idle = settings, self._idle, []
            self._count = len(fresh)
            for process in (*idle, *fresh):
                self.take_back(process)

    async def _warm_all(self, settings: S, count: int, check: Callable[[P], None]) -> list[P]:
        """Return this many ready processes, or fail with none."""
        some = asyncio.Semaphore(_AT_ONCE)
        seconds = min(max(_RENEWAL_SECONDS, 3 * self._start_seconds), self._size.ready_seconds)

        async def warm() -> P:
            async with some:
                return await self._warm(settings, seconds)

        fresh: list[P] = []
        try:
            fresh.append(await warm())  # one first: broken settings are detected at the cost of a single start
            check(fresh[0])
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(warm()) for _ in range(count - 1)]
            fresh += [task.result() for task in others]
        except OSError as error:
            raise UsageError(str(error)) from error
        except ExceptionGroup as errors:
            raise UsageError(str(errors.exceptions[0])) from errors
        finally:
            if len(fresh) < count:
                for process in [each for each in self._processes if each.settings is settings]:
                    await self._discard(process)
        return fresh

    def _next(self) -> P | None:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            self.take_back(process)  # it died while idle
        return None

    def _free(self, process: P) -> None:
        self._idle.append(process)
        self._freed.set()
        if self._count > self._size.least:
            asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._retire, process, process.runs)

    def _retire(self, process: P, runs: int) -> None:
        if self._count > self._size.least and process in self._idle and process.runs == runs:
            self._idle.remove(process)
            self._end(process)

    def _end(self, process: P) -> None:
        self._count -= 1
        self._in_background(self._discard(process))

    def _grow(self) -> None:
        self._count += 1
        self._in_background(self._add(self._settings))

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _add(self, settings: S) -> None:
        """Add one process, which is counted already. A start that fails is retried: giving up would lose a slot."""
        pause, pause_max = _PAUSE_SECONDS
        while self._is_running and settings is self._settings:
            try:
                process = await self._warm(settings)
            except Exception as error:  # noqa: BLE001 - top level of a task; third-party imports may raise anything
                log.error(
                    "a warm process did not start; retrying", error=error, processes=self._name, pause_seconds=pause
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, pause_max)
                continue
            if settings is self._settings:
                self._free(process)
            else:  # they have changed meanwhile
                await self._discard(process)
            return

    async def _warm(self, settings: S, seconds: float | None = None) -> P:
        """Start a process and wait until it is ready. After any exception nothing of it is left."""
        began = time.monotonic()
        process = await self._kind.spawn(settings, self._collector)
        self._processes.add(process)
        try:
            await process.ready(self._size.ready_seconds if seconds is None else seconds)
        except BaseException:
            await self._discard(process)
            raise
        process.is_warm = True
        self._when_warm(process)
        self._start_seconds = time.monotonic() - began
        return process

    async def _discard(self, process: P) -> None:
        process.kill_now()
        await process.wait()
        self._processes.discard(process)
