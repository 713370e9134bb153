"""Removes workers that stopped long ago from the registry."""

from __future__ import annotations

from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend

__all__ = ["RegistrySweeper"]

log = get_logger(__name__)

_EVERY_SECONDS = 600.0


class RegistrySweeper(Loop):
    """Removes the records of workers that stopped or last sent a heartbeat more than `PYOCO_WORKERS_RETENTION_SEC` ago.

    A record is removed only if it has not changed since it was read: a worker that reconnects at that moment keeps its
    record, and of several keepers only one removes it. Unreadable records are logged when they are found and are not
    removed; a worker with that name overwrites them.

    What it cannot do: distinguish a worker that was cut off from NATS for all that time from one that exited. When such
    a worker reconnects, its next heartbeat recreates the record.
    """

    def __init__(self, backend: Backend, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend = backend
        self.removed = 0

    async def turn(self) -> None:
        config = self._backend.config
        if config.workers_retention_sec:
            await self._sweep(config.worker_disconnect_timeout_sec, config.workers_retention_sec)

    async def _sweep(self, disconnect_seconds: float, retention_seconds: float) -> None:
        registry = self._backend.registry
        await registry.start()
        now = self._backend.clock()
        for record in await registry.all():
            if not record.is_forgettable(now, disconnect_seconds, retention_seconds):
                continue
            if await registry.remove(record):
                self.removed += 1
                log.info("removed a stopped worker from the registry", worker_id=record.worker_id, state=record.state)

    async def stop(self) -> None:
        await super().stop()
        await self._backend.registry.stop()
