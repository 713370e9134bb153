"""As many warm pack processes as there are slots, and a spare, so that a lost one costs nobody a start-up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pyoco_server.errors import UsageError
from pyoco_server.executors.packs.host import HostExecution, PackHost
from pyoco_server.executors.packs.port import Call
from pyoco_server.executors.packs.wire import Greeting
from pyoco_server.logs import get_logger

__all__ = ["EXECUTORS", "PackHosts"]

log = get_logger(__name__)

#: The packs of the product. Only wiring and tests choose others; no setting does.
EXECUTORS = "pyoco_server.executors.packs.registry:EXECUTORS"

_SPARES = 1
#: A host is replaced after so many calls, whatever they have left in its memory.
_CALLS_MAX = 1000
_PAUSE_SECONDS = (0.2, 30.0)


class _HostSeat:
    def __init__(self, hosts: PackHosts, host: PackHost) -> None:
        self._hosts, self._host = hosts, host
        self._execution: HostExecution | None = None
        self._is_left = self._is_over = False

    async def begin(self, call: Call) -> HostExecution:
        assert self._execution is None
        assert not self._is_left
        while not self._host.is_alive:
            lost, self._host = self._host, await self._hosts.take()
            self._hosts.take_back(lost)
        self._execution = HostExecution(self._host, call, self._over)
        return self._execution

    def _over(self) -> None:
        self._is_over = True
        if self._is_left:
            self._hosts.take_back(self._host)

    def leave(self) -> None:
        if self._is_left:
            return
        self._is_left = True
        if self._execution is None or self._is_over:
            self._hosts.take_back(self._host)
        else:
            self._execution.kill()


class PackHosts:
    """Executes packs in child processes. One serves many calls, one after another, and is replaced when it dies."""

    def __init__(self, slots: int, memory_bytes_max: int, registry: str = EXECUTORS) -> None:
        self._slots, self._greeting = slots, Greeting(registry, memory_bytes_max)
        #: The one that was busy last comes first: its memory is still at hand, and the spare stays out of the way.
        self._idle: asyncio.LifoQueue[PackHost] = asyncio.LifoQueue()
        self._hosts: set[PackHost] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._gate = asyncio.Lock()
        self._is_running = False
        self._packs: frozenset[str] = frozenset()
        self.restarts = 0

    @property
    def packs(self) -> frozenset[str]:
        return self._packs

    async def start(self) -> None:
        async with self._gate:
            if self._is_running:
                return
            self._is_running = True
            try:
                first = await self._warm()
            except OSError as error:
                self._is_running = False
                raise UsageError(str(error)) from error
            except BaseException:
                self._is_running = False
                raise
            self._packs = first.packs
            self._idle.put_nowait(first)
            for _ in range(self._slots + _SPARES - 1):
                self._in_background(self._replace())

    async def stop(self) -> None:
        async with self._gate:
            self._is_running = False
            # By a look and by a cancel: before Python 3.12 a cancel can be swallowed.
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(set(self._tasks), timeout=0.5)
            for host in set(self._hosts):
                await self._discard(host)
            self._idle = asyncio.LifoQueue()

    async def seat(self) -> _HostSeat:
        return _HostSeat(self, await self.take())

    async def take(self) -> PackHost:
        """The next that lives: it is whoever's who asked."""
        while not (host := await self._idle.get()).is_alive:  # it died while it had nothing to do
            self.take_back(host)
        return host

    def take_back(self, host: PackHost) -> None:
        """One that answered goes on; one that died, was killed or has served long enough is replaced."""
        if not self._is_running or host not in self._hosts:
            return
        if host.is_alive and host.runs < _CALLS_MAX:
            self._idle.put_nowait(host)
            return
        self.restarts += not host.is_alive
        self._in_background(self._discard(host))
        self._in_background(self._replace())

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self) -> None:
        pause, pause_max = _PAUSE_SECONDS
        while self._is_running:
            try:
                self._idle.put_nowait(await self._warm())
            except (UsageError, OSError) as error:  # no room for another process, or one that fails
                log.error("a pack process did not start; trying again", error=error, pause_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, pause_max)
            else:
                return

    async def _warm(self) -> PackHost:
        """Raises UsageError or OSError; then nothing of it is left."""
        host = await PackHost.spawn(self._greeting)
        self._hosts.add(host)
        try:
            await host.ready()
        except BaseException:
            await self._discard(host)
            raise
        return host

    async def _discard(self, host: PackHost) -> None:
        host.kill_now()
        await host.wait()
        self._hosts.discard(host)
