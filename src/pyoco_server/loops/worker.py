"""The worker: one process that drives lanes, and their one record in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.loops.lane import Lane
from pyoco_server.loops.registration import Registration
from pyoco_server.ports.backend import Backend

__all__ = ["Worker"]


class Worker:
    """Drives its lanes until it is stopped.

    The lanes start in order, each once the one before takes jobs. Then the worker is registered: a record promises that
    jobs are taken. All lanes stop at the same time, within one drain time.
    """

    def __init__(self, backend: Backend, description: WorkerDescription, lanes: Sequence[Lane]) -> None:
        self._backend, self._description = backend, description
        self._lanes: list[Lane] = []
        self.registration = Registration(backend, self.describe)
        for lane in lanes:
            self._add(lane)

    def _add(self, lane: Lane) -> None:
        self._lanes.append(lane)
        lane.when_changed = self.registration.touch

    def describe(self) -> WorkerRecord:
        """Return the registry record as of now."""
        return self._description.record([lane.report() for lane in self._lanes], self._backend.clock())

    async def start(self) -> None:
        """Return once all lanes take jobs, and the worker is registered. Raises UsageError or Unavailable if it cannot
        start; then no lane runs."""
        try:
            for lane in tuple(self._lanes):  # one that joins meanwhile is started by `join`
                await lane.start()
            await self.registration.register()
        except Exception:
            await self._stop_lanes(0.0)
            raise

    async def join(self, lane: Lane) -> None:
        """Drive one more lane, whose work could not begin at the start. Raises as `Lane.start` does."""
        self._add(lane)
        await lane.start()
        self.registration.touch()

    async def stop(self, reason: str, drain_seconds: float | None) -> None:
        """Take no more jobs, let running ones finish, record the stop.

        After `drain_seconds` (None: no limit but those of lanes) runs still in progress are given back. Idempotent; may
        be called without a start. Cancelling this call leaves everything to redelivery.
        """
        await self._stop_lanes(drain_seconds)
        await self.registration.retire(reason)

    async def _stop_lanes(self, drain_seconds: float | None) -> None:
        """Stop all lanes at the same time: each may have long runs. One that fails does not keep the others from it."""
        stops = [lane.stop(drain_seconds) for lane in self._lanes]
        results = await asyncio.gather(*stops, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
