"""Processes that execute the same packs: some are kept warm, more are started on demand."""

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

#: A host is replaced after this many calls, to bound memory leaks.
_CALLS_MAX = 1000
_PAUSE_SECONDS = (0.2, 30.0)
#: A host that was idle for this long is ended, down to the number that is kept warm.
_IDLE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Number of processes in a group."""

    #: Always kept warm.
    least: int
    #: Upper limit; the additional ones are started while all others are busy.
    most: int
    #: Maximum duration of a start, which includes imports.
    ready_seconds: float

    def __post_init__(self) -> None:
        assert 1 <= self.least <= self.most


class HostGroup:
    """A group of hosts. A host serves many calls, one after another, and is replaced when it dies."""

    def __init__(self, greeting: Greeting, size: Size) -> None:
        self.greeting, self._size = greeting, size
        #: Last in, first out: the host used last has warm caches, and spare hosts stay idle.
        self._idle: list[PackHost] = []
        self._freed = asyncio.Event()
        self._hosts: set[PackHost] = set()
        #: Number of hosts, including those being started.
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = False
        self.restarts = 0

    async def start(self) -> None:
        """Return once one host is warm. Raises UsageError, OSError or an unexpected error; then no process is left."""
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
        """End all running work immediately. Idempotent; may be called before `start`."""
        self._is_running = False
        # By a flag and by cancellation: before Python 3.12 a library can swallow a cancellation.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=0.5)
        for host in set(self._hosts):
            await self._discard(host)
        self._idle.clear()

    async def take(self) -> PackHost:
        """Return the next warm and idle host; the caller owns it until `take_back`. Starts another host if the group
        may grow."""
        while (host := self._next()) is None:
            if self._count < self._size.most:
                self._grow()
            self._freed.clear()
            await self._freed.wait()
        return host

    def take_back(self, host: PackHost) -> None:
        """Return a host to the group. One that died, was killed or has served its maximum of calls is replaced."""
        if not self._is_running or host not in self._hosts:
            return
        if host.is_alive and host.runs < _CALLS_MAX:
            self._free(host)
            return
        self.restarts += not host.is_alive
        self._end(host)
        if self._count < self._size.least:
            self._grow()
        self._freed.set()  # a waiting caller may start another

    def _next(self) -> PackHost | None:
        while self._idle:
            host = self._idle.pop()
            if host.is_alive:
                return host
            self.take_back(host)  # it died while idle
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
            # Process limit reached, a failed start, or an unexpected error: retry, because the slot is already counted.
            except Exception as error:  # noqa: BLE001  (top level of a task; giving up here would lose a slot forever)
                log.error(
                    "a pack process did not start; retrying",
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
        """Start a host and wait until it is ready. After any exception no process is left."""
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
