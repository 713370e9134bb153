"""Takes workers out of the registry that have been gone for long."""

from __future__ import annotations

from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend

__all__ = ["RegistrySweeper"]

log = get_logger(__name__)

_EVERY_SECONDS = 600.0


class RegistrySweeper(Loop):
    """Removes the records of workers that stopped or fell silent more than `PYOCO_WORKERS_RETENTION_SEC` ago.

    A record is removed only while it is exactly what was looked at: a worker that comes back at that moment keeps it,
    and of several keepers one removes it. Records that nobody can read are told of in the log when they are met, and
    stay: a worker of that name writes over them.

    What it cannot do: tell a worker that has been cut off from NATS for all that time from one that is gone. When it
    comes back, its next heartbeat makes the record anew.
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
                log.info("a worker that is long gone left the registry", worker_id=record.worker_id, state=record.state)

    async def stop(self) -> None:
        await super().stop()
        await self._backend.registry.stop()
