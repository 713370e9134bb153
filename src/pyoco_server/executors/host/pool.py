"""Runs flows in warm hosts: one per slot plus a spare, so that losing one does not delay a run by a start-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.execution import HostExecution
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.warm_pool import Size, WarmPool
from pyoco_server.executors.port import Work
from pyoco_server.executors.strays.marks import end_abandoned
from pyoco_server.logs import get_logger

__all__ = ["HostExecutor"]

log = get_logger(__name__)

_SPARES = 1
#: How long a claimed run waits for a host before it is released. A host takes about half a second to start.
_ROOM_SECONDS = 2.0


class HostExecutor:
    """Runs flows in host processes. A host serves many runs, one after another, and is replaced when it dies.

    Every new run begins on a host with the newest environment; busy hosts may still have earlier ones.
    """

    def __init__(
        self,
        settings: wire.Settings,
        slots: int,
        runs_max: int,
        timeout_seconds: float,
        collector: Collector | None = None,
    ) -> None:
        """`collector` gets what the runs print; None: it goes to the output of this process."""
        self._timeout = timeout_seconds
        size = Size(least=slots + _SPARES, most=slots + _SPARES, runs_max=runs_max)
        self._pool: WarmPool[wire.Settings, Host] = WarmPool(Host, settings, size, name="flows", collector=collector)
        #: The spare is not a slot: it replaces a lost host.
        self._room = asyncio.Semaphore(slots)

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    @property
    def is_able(self) -> bool:
        return self._pool.is_able

    @property
    def offered(self) -> tuple[OfferedFlow, ...] | None:
        return None

    async def start(self) -> None:
        await asyncio.to_thread(end_abandoned)
        try:
            await self._pool.start()
        except OSError as error:
            raise UsageError(str(error)) from error

    async def stop(self) -> None:
        await self._pool.stop()

    async def begin(self, work: Work, when_free: Callable[[], None]) -> HostExecution | None:
        if work.attempt > 1:  # the worker of an earlier attempt may have died on this machine, together with its guards
            await asyncio.to_thread(end_abandoned)
        if self._room.locked() or not self._pool.has_idle():
            try:
                async with asyncio.timeout(_ROOM_SECONDS):
                    host = await self._take()
            except TimeoutError:
                return None
        else:
            host = await self._take()  # the common case: nothing to wait for, so no timer

        def freed(host: Host) -> None:
            self._pool.take_back(host)
            self._room.release()
            when_free()

        return HostExecution(host, work, self._timeout, freed)

    async def _take(self) -> Host:
        await self._room.acquire()
        try:
            return await self._pool.take()
        except BaseException:
            self._room.release()
            raise

    async def renew(self, environment: Environment) -> None:
        """Switch to other wheels as `WarmPool.renew` does. Raises UsageError also if a plug-in in a new wheel does not
        work. A plug-in of an old wheel that stopped working, because another wheel was removed, only fails the runs
        that use it.
        """
        settings = replace(self._pool.settings, paths=environment.paths, modules=environment.modules)
        if settings == self._pool.settings:
            return
        new = set(settings.paths).difference(self._pool.settings.paths)

        def check(host: Host) -> None:
            if faults := [fault for path, fault in host.faults.items() if path in new]:
                raise UsageError(faults[0])

        await self._pool.renew(settings, check)
        log.info("switched to a new set of wheels", paths=len(environment.paths))

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset(path for settings in self._pool.settings_in_use for path in settings.paths)
