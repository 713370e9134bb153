"""Keeps the record of one worker in the registry up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend

__all__ = ["Registration"]

log = get_logger(__name__)

#: A change is written within this time, however many there are: busy workers change with every run.
_SOON_SECONDS = 1.0
#: How long a write that is under way may delay a stop.
_LAST_WRITE_SECONDS = 5.0


class Registration(Loop):
    """Writes the record soon after a change, and otherwise as a heartbeat.

    A write happens outside of the turns, and one at a time: a registry that does not answer delays nothing (FLOW-208).
    """

    def __init__(self, backend: Backend, describe: Callable[[], WorkerRecord]) -> None:
        self._heartbeat_seconds = backend.config.worker_heartbeat_interval_sec
        self._soon_seconds = min(_SOON_SECONDS, self._heartbeat_seconds)
        super().__init__(every_seconds=self._soon_seconds / 4)
        self._backend, self._describe = backend, describe
        self._is_known = False
        self._is_dirty = False
        self._written_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._gate_of_writes = asyncio.Lock()
        self._unwritten = Outage(log)

    def touch(self) -> None:
        """Mark the record as changed."""
        self._is_dirty = True

    async def register(self) -> None:
        """Write the first record, then keep it up to date. Raises Unavailable."""
        self._is_dirty, self._written_at = False, time.monotonic()
        await self._backend.registry.announce(self._describe())
        self._is_known = True
        await self.start()

    async def turn(self) -> None:
        every = self._soon_seconds if self._is_dirty else self._heartbeat_seconds
        # Early by at most half a turn, so that a heartbeat is not late by nearly a whole one.
        if time.monotonic() - self._written_at < every - self._soon_seconds / 8:
            return
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self.write())

    async def write(self) -> None:
        """Write the record now. Best effort: a failure never fails a run (FLOW-201)."""
        async with self._gate_of_writes:
            self._is_dirty, self._written_at = False, time.monotonic()
            try:
                await self._backend.registry.announce(self._describe())
                self._is_known = True
                self._unwritten.worked()
            except PyocoError as error:
                self._is_dirty = True
                self._unwritten.failed("could not write to the worker registry", error)

    async def stop(self) -> None:
        await super().stop()
        self._unwritten.forget()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_LAST_WRITE_SECONDS)
            self._writing.cancel()  # otherwise it would overwrite the record of the orderly stop

    async def retire(self, reason: str) -> None:
        """Stop, and record the orderly stop (FLOW-198), unless there never was a record."""
        await self.stop()
        if not self._is_known:
            return
        self._is_known = False
        try:
            await self._backend.registry.retire(stopped(self._describe(), reason, self._backend.clock()))
        except Unavailable as error:
            log.warning("could not record the orderly stop", error=error)
