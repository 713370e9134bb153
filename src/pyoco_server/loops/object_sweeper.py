"""Removes the bytes that broken uploads left in the object stores."""

from __future__ import annotations

from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import Objects, Stray

__all__ = ["ObjectSweeper"]

log = get_logger(__name__)

#: More than the time for which a put may add nothing, five minutes, and the half minute that its last write may take.
_EVERY_SECONDS = 600.0
#: By the clock of NATS.
_OLDER_THAN_SECONDS = 3600.0


class ObjectSweeper(Loop):
    """Sweeps the strays of wheels, submitted flow.yaml files and files of programs: bytes that no object names, and to
    which nobody has added for an hour.

    No put that is under way is ever swept. The hour goes by the clock of NATS, which may jump; so a stray is removed
    only when the turn before found the very same. Between two turns lie ten minutes, and a put that has added
    nothing for five fails by itself: whoever has not shown his object by the second look will not show it.

    Several keepers may sweep at once: each removes what is still there. A crash leaves some for the next turn, and one
    that was just started needs two turns.

    What it cannot do: sweep a store in which the description of an object cannot be read, since nobody knows which
    bytes are its. It says so in the log at each turn.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        every_seconds: float = _EVERY_SECONDS,
        older_than_seconds: float = _OLDER_THAN_SECONDS,
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        config = backend.config
        self._stores = {
            config.wheel_object_store_bucket: backend.wheels,
            config.workflow_object_store_bucket: backend.workflows,
        }
        if backend.programs is not None:
            self._stores[backend.programs.config.exec_artifacts_bucket] = backend.programs.artifacts
        self._older_than_seconds = older_than_seconds
        #: What the last turn found in each store.
        self._found: dict[str, frozenset[Stray]] = {}
        self.removed_bytes = 0

    async def turn(self) -> None:
        for bucket, store in self._stores.items():
            try:
                await self._sweep(bucket, store)
            except (Unavailable, Corrupt) as error:
                self.outage.failed("an object store cannot be swept; it is tried again later", error, bucket=bucket)

    async def _sweep(self, bucket: str, store: Objects) -> None:
        known = self._found.get(bucket, frozenset())
        found = await store.strays(self._older_than_seconds)
        self._found[bucket] = frozenset(found)
        for stray in found:
            if stray in known and await store.sweep(stray):
                self.removed_bytes += stray.size_bytes
                log.info(
                    "what a broken upload left was removed",
                    bucket=bucket,
                    object_id=stray.object_id,
                    size_bytes=stray.size_bytes,
                )
