"""Removes stored outputs together with their runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from pyoco_server.core.run import Run
from pyoco_server.core.values.kept import run_id_of_object
from pyoco_server.errors import RecordUnreadable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.outputs.port import StoredOutput
from pyoco_server.ports.runs.port import Stored

__all__ = ["OutputSweeper"]

log = get_logger(__name__)

_EVERY_SECONDS = 600.0
#: A worker stores the outputs shortly before the record that refers to them.
_GRACE_SECONDS = 3600.0
_AT_ONCE = 64


class OutputSweeper(Loop):
    """Removes objects whose run was removed, or was ended by another attempt: their worker died in between (RES-15).

    Objects younger than an hour stay. Several keepers may sweep concurrently: each removes what still exists. Costs a
    list of all objects, and one read of each run: when its objects are first seen, and when its retention is over.

    What it cannot do: see that an operator removed the record of a run earlier than that; those objects stay until the
    retention is over.
    """

    def __init__(
        self, backend: Backend, *, every_seconds: float = _EVERY_SECONDS, grace_seconds: float = _GRACE_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._grace_seconds = backend, grace_seconds
        #: Attempts that ended their run, and when to look again.
        self._again_at: dict[tuple[str, str], float] = {}
        self.removed = 0

    async def turn(self) -> None:
        now = self._backend.clock()
        objects: dict[tuple[str, str], list[StoredOutput]] = {}
        for each in await self._backend.outputs.all():
            if now - each.modified >= self._grace_seconds:
                objects.setdefault(run_id_of_object(each.name), []).append(each)
        self._again_at = {owner: at for owner, at in self._again_at.items() if owner in objects}
        due = [owner for owner in objects if self._again_at.get(owner, 0.0) <= now]
        for some in _batches(due):
            removals = await asyncio.gather(*(self._is_over(run_id, attempt_id) for run_id, attempt_id in some))
            for owner, is_over in zip(some, removals, strict=True):
                for each in objects[owner] if is_over else ():
                    self.removed += await self._backend.outputs.delete(each.name)

    async def _is_over(self, run_id: str, attempt_id: str) -> bool:
        """Return whether the objects of this attempt are unreachable."""
        try:
            found = await self._backend.runs.find(run_id)
        except RecordUnreadable:  # an operator may repair it
            return False
        if not isinstance(found, Stored) or not found.run.is_owned_by(attempt_id):
            return True
        if found.run.is_terminal:
            self._again_at[run_id, attempt_id] = self._end_of_retention(found.run)
        return False

    def _end_of_retention(self, run: Run) -> float:
        seconds = self._backend.config.runs_retention_sec
        return (run.end_time or run.updated_at) + seconds if seconds else math.inf


def _batches(owners: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    for at in range(0, len(owners), _AT_ONCE):
        yield owners[at : at + _AT_ONCE]
