"""A pool of warm hosts: one per slot plus a spare, so that losing one does not delay a run by a start-up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace

from pyoco_server.core.outcome import Cancelled, Died, Outcome, Progress, TimedOut
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import CATALOGUE, UsageError
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.host import READY_SECONDS_MAX, Host
from pyoco_server.executors.port import Work
from pyoco_server.executors.strays.marks import end_abandoned
from pyoco_server.logs import get_logger

__all__ = ["HostExecutor"]

log = get_logger(__name__)

_SPARES = 1
#: How long a claimed run waits for a host before it is released. A host takes about half a second to start.
_ROOM_SECONDS = 2.0
#: How many hosts of a new environment start concurrently: starting all would starve running jobs of CPU.
_AT_ONCE = max(2, os.cpu_count() or 1)
#: How long a host may take to start with other wheels, unless earlier starts took longer. A wheel that hangs must be
#: detected soon: others wait for it.
_RENEWAL_SECONDS = 30.0


class _HostExecution:
    """One run on one host. The host is free as soon as its answer has arrived, even before the outcome is read."""

    def __init__(self, host: Host, work: Work, timeout_seconds: float, when_free: Callable[[Host], None]) -> None:
        self._host, self._timeout, self._when_free = host, timeout_seconds, when_free
        #: The outcome that explains why we killed the host, if we did.
        self._verdict: Outcome | None = None
        #: The decoded answer; None if it is malformed.
        self._outcome: Outcome | None = None
        self._answer = host.run(work.data, Captured(work.job.run_id, work.attempt))
        self._answer.add_done_callback(self._on_answer)
        self._timer = None
        if timeout_seconds:
            self._timer = asyncio.get_running_loop().call_later(timeout_seconds, self._expire)

    def _on_answer(self, answer: asyncio.Future[bytes | None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        body = answer.result()
        if body is not None:  # decoded before the host is released: a host with a malformed answer gets no other run
            self._outcome = self._host.read_outcome(body)
        self._when_free(self._host)

    def _expire(self) -> None:
        self._verdict = self._verdict or TimedOut(seconds=self._timeout)
        self._host.kill("it ran for too long")

    async def outcome(self) -> Outcome:
        await asyncio.shield(self._answer)
        if self._outcome is not None:
            return self._outcome
        died = Died(how=await self._host.how_it_ended())
        return died if self._verdict is None else self._verdict

    # Once the answer has arrived the host serves another run: a late progress request or kill must have no effect.

    async def progress(self) -> Progress | None:
        return None if self._answer.done() else await self._host.progress()

    def ask_cancel(self) -> None:
        if not self._answer.done():
            self._host.ask_cancel()

    def kill(self) -> bool:
        if self._answer.done():
            return True
        text = CATALOGUE[21]
        self._verdict = self._verdict or Cancelled(note=f"{text.err_id}: {text.en} Its process was killed.")
        self._host.kill("it was cancelled")
        return True


class HostExecutor:
    """Runs flows in host processes. A host serves many runs, one after another, and is replaced when it dies.

    Every new run begins on a host with the current settings, `self._settings`; busy hosts may still have earlier ones.
    """

    def __init__(
        self,
        settings: wire.Settings,
        slots: int,
        runs_max: int,
        timeout_seconds: float,
        collector: Collector | None = None,
    ) -> None:
        """`collector` gets what the runs print; None: it is not captured."""
        self._collector = collector
        self._settings, self._slots, self._runs_max, self._timeout = settings, slots, runs_max, timeout_seconds
        #: Last in, first out: the host used last has warm caches, and the spare stays idle.
        self._idle: asyncio.LifoQueue[Host] = asyncio.LifoQueue()
        #: The spare is not a slot: it replaces a lost host.
        self._room = asyncio.Semaphore(slots)
        self._hosts: set[Host] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Serializes start and renewals.
        self._changing = asyncio.Lock()
        self._started = self._stopping = False
        #: How long the last host took to start.
        self._start_seconds = 0.0
        self.restarts = 0

    @property
    def is_able(self) -> bool:
        """Whether a warm host is alive. A host that is still starting does not count: it may never be ready."""
        return any(host.is_warm and host.is_alive for host in self._hosts)

    async def start(self) -> None:
        await asyncio.to_thread(end_abandoned)
        async with self._changing:
            if not self._has_live_host():  # unless a `renew` before the start has created one
                try:
                    self._idle.put_nowait(await self._warm(self._settings))
                except OSError as error:
                    raise UsageError(str(error)) from error
            self._started = True
            for _ in range(self._slots - 1 + _SPARES):
                self._spawn_in_background()

    async def stop(self) -> None:
        self._stopping = True
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=0.5)
        for host in list(self._hosts):
            await self._discard(host)
        while self._tasks:  # hosts that were taken back while their runs ended
            await asyncio.wait(set(self._tasks))

    async def begin(self, work: Work, when_free: Callable[[], None]) -> _HostExecution | None:
        if work.attempt > 1:  # the worker of an earlier attempt may have died on this machine, together with its guards
            await asyncio.to_thread(end_abandoned)
        if self._room.locked() or not self._has_live_host():
            try:
                async with asyncio.timeout(_ROOM_SECONDS):
                    host = await self._take()
            except TimeoutError:
                return None
        else:
            host = await self._take()  # the common case: nothing to wait for, so no timer

        def freed(host: Host) -> None:
            self._take_back(host)
            self._room.release()
            when_free()

        return _HostExecution(host, work, self._timeout, freed)

    async def renew(self, environment: Environment) -> None:
        """Warm up a full set of hosts next to the busy ones, then switch to it atomically.

        Costs the start of all hosts, and their memory twice until the runs on the old ones have ended.
        """
        renewing = self._in_background(self._renew(environment))
        try:
            await renewing
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._stopping and not (me is not None and me.cancelling()):  # the executor is stopping, not the caller
                raise UsageError("the worker stops") from None
            raise

    async def _renew(self, environment: Environment) -> None:
        async with self._changing:
            settings = replace(self._settings, paths=environment.paths, modules=environment.modules)
            if settings == self._settings:
                return
            if self._stopping:
                raise UsageError("the worker stops")
            fresh = await self._warm_all(settings, self._slots + _SPARES if self._started else 1)
            # No await from here to the end: the next `begin` finds new hosts, and none ever finds an empty pool.
            self._settings, idle = settings, self._idle
            for _ in range(idle.qsize()):
                self._take_back(idle.get_nowait())
            for host in fresh:
                self._take_back(host)
        log.info("switched to a new set of wheels", paths=len(environment.paths), hosts=len(fresh))

    async def _warm_all(self, settings: wire.Settings, count: int) -> list[Host]:
        """Return this many ready hosts, or fail with none. Raises UsageError, also if a plug-in in a new wheel does not
        work. A plug-in of an old wheel that stopped working, because another wheel was removed, only fails the runs
        that use it.
        """
        new = set(settings.paths).difference(self._settings.paths)
        some = asyncio.Semaphore(_AT_ONCE)
        seconds = min(max(_RENEWAL_SECONDS, 3 * self._start_seconds), READY_SECONDS_MAX)

        async def warm() -> Host:
            async with some:
                return await self._warm(settings, seconds)

        fresh: list[Host] = []
        try:
            fresh.append(await warm())  # one first: a broken environment is detected at the cost of a single start
            if faults := [fault for path, fault in fresh[0].faults.items() if path in new]:
                raise UsageError(faults[0])
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(warm()) for _ in range(count - 1)]
            fresh += [task.result() for task in others]
        except OSError as error:
            raise UsageError(str(error)) from error
        except ExceptionGroup as errors:
            raise UsageError(str(errors.exceptions[0])) from errors
        finally:
            if len(fresh) < count:
                for host in [each for each in self._hosts if each.settings is settings]:
                    await self._discard(host)
        return fresh

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset(self._settings.paths).union(*(host.settings.paths for host in self._hosts))

    def _has_live_host(self) -> bool:
        """Whether a live host is idle. Hosts that died while idle are replaced."""
        while not self._idle.empty():
            host = self._idle.get_nowait()
            if host.is_alive:
                self._idle.put_nowait(host)
                return True
            self._take_back(host)
        return False

    async def _take(self) -> Host:
        await self._room.acquire()
        try:
            while not (host := await self._idle.get()).is_alive:  # it died while idle
                self._take_back(host)
        except BaseException:
            self._room.release()
            raise
        return host

    def _take_back(self, host: Host) -> None:
        """Return a host to the pool. One that died, was killed or has served its maximum of runs is replaced. One of an
        earlier environment is only discarded: the hosts of the new environment have already taken its place."""
        is_current = host.settings is self._settings
        if is_current and host.is_alive and host.runs < self._runs_max:
            self._idle.put_nowait(host)
            return
        if not host.is_alive:
            self.restarts += 1
        self._in_background(self._discard(host))
        if is_current:
            self._spawn_in_background()

    def _spawn_in_background(self) -> None:
        if not self._stopping:
            self._in_background(self._spawn(self._settings))

    def _in_background(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _spawn(self, settings: wire.Settings) -> None:
        pause = 0.2
        while not self._stopping and settings is self._settings:
            try:
                host = await self._warm(settings)
            except Exception as error:  # noqa: BLE001 - whatever the error, the pool must not lose a slot
                log.error("a host process did not start; retrying", error=error, pause_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)
                continue
            if settings is self._settings:
                self._idle.put_nowait(host)
            else:  # the environment has changed meanwhile
                await self._discard(host)
            return

    async def _warm(self, settings: wire.Settings, seconds: float = READY_SECONDS_MAX) -> Host:
        """Start a host and wait until it is ready. Raises UsageError or OSError, after removing the process."""
        began = time.monotonic()
        host = await Host.spawn(settings, self._collector)
        self._hosts.add(host)
        try:
            await host.ready(seconds)
        except BaseException:
            await self._discard(host)
            raise
        self._start_seconds = time.monotonic() - began
        return host

    async def _discard(self, host: Host) -> None:
        host.kill_now()
        await host.wait()
        self._hosts.discard(host)
