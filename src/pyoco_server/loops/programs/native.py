"""A worker that runs only programs: its lane, and its record in the registry (GRID-119)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyoco_server.core.run import Owner
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.loops.worker import WorkerDescription
from pyoco_server.ports.backend import Backend

__all__ = ["KIND", "NativeWorker"]

log = get_logger(__name__)

KIND = "exec-native"
#: A change is announced within this time; without one, the record is renewed as often as that of any worker.
_SOON_SECONDS = 1.0


class NativeWorker:
    """Runs programs until it is stopped, and announces itself in the registry."""

    def __init__(self, backend: Backend, lane: ProgramLane, slots: int, versions: Mapping[str, str]) -> None:
        self._backend, self._lane = backend, lane
        self._description = WorkerDescription(backend, Owner(lane.worker_id, backend.new_id()), (), slots, versions)
        self._announcer = _Announcer(backend, self._describe)
        self._is_known = False
        lane.when_changed = self._announcer.touch

    async def start(self) -> None:
        """Start, and return once the worker takes jobs. Raises UsageError, Unavailable."""
        await self._lane.start()
        await self._backend.registry.announce(self._describe())
        self._is_known = True
        await self._announcer.start()

    async def stop(self, reason: str, drain_seconds: float | None = None) -> None:
        """Stop the lane (`ProgramLane.stop`), then record the orderly stop in the registry."""
        await self._lane.stop(drain_seconds)
        await self._announcer.stop()
        if not self._is_known:
            return
        try:
            await self._backend.registry.retire(stopped(self._describe(), reason, self._backend.clock()))
        except Unavailable as error:
            log.warning("could not record the orderly stop", error=error)

    def _describe(self) -> WorkerRecord:
        self._description.running = self._lane.running
        self._description.last_status = self._lane.last_status
        self._description.facts = {"packs": (), "kind": KIND, **self._lane.facts}
        return self._description.describe()


class _Announcer(Loop):
    """Writes the record after a change, and periodically. Best effort: a failed write never fails a run."""

    def __init__(self, backend: Backend, describe: Callable[[], WorkerRecord]) -> None:
        super().__init__(every_seconds=min(_SOON_SECONDS, backend.config.worker_heartbeat_interval_sec))
        self._backend, self._describe = backend, describe
        self._is_dirty = False
        self._announced_at = 0.0
        self._unannounced = Outage(log)  # most turns write nothing

    def touch(self) -> None:
        self._is_dirty = True

    async def turn(self) -> None:
        now = time.monotonic()
        if not self._is_dirty and now - self._announced_at < self._backend.config.worker_heartbeat_interval_sec:
            return
        self._is_dirty, self._announced_at = False, now
        try:
            await self._backend.registry.announce(self._describe())
            self._unannounced.worked()
        except PyocoError as error:
            self._is_dirty = True
            self._unannounced.failed("could not write the worker registry", error)
