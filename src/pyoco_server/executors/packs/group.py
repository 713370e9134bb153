"""Processes that execute the same packs: some are kept warm, more are started when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pyoco_server.executors.packs.host import PackHost
from pyoco_server.executors.packs.wire import Greeting
from pyoco_server.logs import get_logger

__all__ = ["HostGroup", "Size"]

log = get_logger(__name__)

#: A host is replaced after so many calls, whatever they have left in its memory.
_CALLS_MAX = 1000
_PAUSE_SECONDS = (0.2, 30.0)
#: Whoever is not needed for so long is ended, down to those that are kept warm.
_IDLE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many processes there are of a group."""

    #: Are always kept warm.
    least: int
    #: Are started when all others are busy.
    most: int
    #: How long an import may take.
    ready_seconds: float

    def __post_init__(self) -> None:
        assert 1 <= self.least <= self.most


class HostGroup:
    """One host serves many calls, one after another, and is replaced when it dies."""

    def __init__(self, greeting: Greeting, size: Size) -> None:
        self.greeting, self._size = greeting, size
        #: The one that was busy last comes first: its memory is still at hand, and a spare stays out of the way.
        self._idle: list[PackHost] = []
        self._freed = asyncio.Event()
        self._hosts: set[PackHost] = set()
        #: Those that serve and those that are being started.
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = False
        self.restarts = 0

    async def start(self) -> None:
        """Returns once one host is warm. Raises UsageError, OSError, or what was not foreseen; then nothing of it is
        left."""
        assert not self._is_running
        self._is_running, self._count = True, 1
        try:
            first = await self._warm()
        except BaseException:
            self._is_running = False
            raise
        self._free(first)
        while self._count < self._size.least:
            self._grow()

    async def stop(self) -> None:
        """Ends whatever still runs, at once. May be called twice, and before `start`."""
        self._is_running = False
        # By a look and by a cancel: before Python 3.12 a cancel can be swallowed.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=0.5)
        for host in set(self._hosts):
            await self._discard(host)
        self._idle.clear()

    async def take(self) -> PackHost:
        """The next that is warm and free: it is whoever's who asked. Another one is started when there is room."""
        while (host := self._next()) is None:
            if self._count < self._size.most:
                self._grow()
            self._freed.clear()
            await self._freed.wait()
        return host

    def take_back(self, host: PackHost) -> None:
        """One that answered goes on; one that died, was killed or has served long enough is replaced."""
        if not self._is_running or host not in self._hosts:
            return
        if host.is_alive and host.runs < _CALLS_MAX:
            self._free(host)
            return
        self.restarts += not host.is_alive
        self._end(host)
        if self._count < self._size.least:
            self._grow()
        self._freed.set()  # who waits may start another

    def _next(self) -> PackHost | None:
        while self._idle:
            host = self._idle.pop()
            if host.is_alive:
                return host
            self.take_back(host)  # it died while it had nothing to do
        return None

    def _free(self, host: PackHost) -> None:
        self._idle.append(host)
        self._freed.set()
        if self._count > self._size.least:
            asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._retire, host, host.runs)

    def _retire(self, host: PackHost, runs: int) -> None:
        if self._count > self._size.least and host in self._idle and host.runs == runs:
            self._idle.remove(host)
            self._end(host)

    def _end(self, host: PackHost) -> None:
        self._count -= 1
        self._in_background(self._discard(host))

    def _grow(self) -> None:
        self._count += 1
        self._in_background(self._add())

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self) -> None:
        pause, pause_max = _PAUSE_SECONDS
        while self._is_running:
            try:
                host = await self._warm()
            # No room for another process, or one that fails, or what nobody has foreseen: the place is counted.
            except Exception as error:  # noqa: BLE001  (the top of a task; who gives up here has lost a place for ever)
                log.error(
                    "a pack process did not start; trying again",
                    error=error,
                    packs=sorted(self.greeting.packs),
                    pause_seconds=pause,
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, pause_max)
            else:
                self._free(host)
                return

    async def _warm(self) -> PackHost:
        """Whatever it raises, nothing of it is left then."""
        host = await PackHost.spawn(self.greeting)
        self._hosts.add(host)
        try:
            await host.ready(self._size.ready_seconds)
        except BaseException:
            await self._discard(host)
            raise
        return host

    async def _discard(self, host: PackHost) -> None:
        host.kill_now()
        await host.wait()
        self._hosts.discard(host)
