"""Removes the bytes that interrupted uploads left in the object stores."""

from __future__ import annotations

from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import Objects, Stray
from pyoco_server.ports.outputs.port import Outputs

__all__ = ["ObjectSweeper"]

log = get_logger(__name__)

#: Longer than a put may go without adding bytes (five minutes) plus the half minute that its last write may take.
_EVERY_SECONDS = 600.0
#: By the clock of NATS.
_OLDER_THAN_SECONDS = 3600.0


class ObjectSweeper(Loop):
    """Sweeps the strays of wheels, submitted flow.yaml files, outputs and program files: bytes that no object
    references and to which nothing was added for an hour.

    A put in progress is never swept. The hour is measured by the clock of NATS, which may jump; so a stray is removed
    only if the previous turn found exactly the same one. Two turns are ten minutes apart, and a put that has added
    nothing for five minutes fails by itself: if its object is not visible at the second scan, it never will be.

    Several keepers may sweep concurrently: each removes what still exists. After a crash the next turn removes the
    rest; a keeper that was just started needs two turns.

    What it cannot do: sweep a store in which the description of an object cannot be read, since it cannot tell which
    bytes belong to that object. It logs this at each turn.
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
        self._stores: dict[str, Objects | Outputs] = {
            config.wheel_object_store_bucket: backend.wheels,
            config.workflow_object_store_bucket: backend.workflows,
            config.outputs_bucket: backend.outputs,
        }
        if backend.programs is not None:
            self._stores[backend.programs.config.exec_artifacts_bucket] = backend.programs.artifacts
        self._older_than_seconds = older_than_seconds
        #: What the previous turn found in each store.
        self._found: dict[str, frozenset[Stray]] = {}
        self.removed_bytes = 0

    async def turn(self) -> None:
        for bucket, store in self._stores.items():
            try:
                await self._sweep(bucket, store)
            except (Unavailable, Corrupt) as error:
                self.outage.failed("could not sweep an object store; retrying later", error, bucket=bucket)

    async def _sweep(self, bucket: str, store: Objects | Outputs) -> None:
        known = self._found.get(bucket, frozenset())
        found = await store.strays(self._older_than_seconds)
        self._found[bucket] = frozenset(found)
        for stray in found:
            if stray in known and await store.sweep(stray):
                self.removed_bytes += stray.size_bytes
                log.info(
                    "removed bytes of interrupted upload",
                    bucket=bucket,
                    object_id=stray.object_id,
                    size_bytes=stray.size_bytes,
                )
