"""Finds the runs that nobody will ever take, and has them ended."""

from __future__ import annotations

from pyoco_server.actions.bury import bury
from pyoco_server.actions.rescue import may_wait, rescue
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index

__all__ = ["Rescuer"]

log = get_logger(__name__)

_EVERY_SECONDS = 10.0
_BATCH = 200


class Rescuer(Loop):
    """Looks at the runs that have been quiet for longest.

    What it cannot do: tell an abandoned run from a waiting one while an older job of the same tag is stuck in the
    queue. Then it leaves both alone.
    """

    def __init__(
        self, backend: Backend, index: Index, feeder: IndexFeeder, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder = backend, index, feeder

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # half an index would be half a truth
        quiet_seconds = self._backend.config.abandon_after_sec
        quiet = await self._index.unfinished(self._backend.clock() - quiet_seconds, _BATCH)
        oldest = {tag: await self._backend.queue.oldest(tag) for tag in {line.tag for line in quiet}}
        for line in quiet:
            if may_wait(line.submitted_at, oldest[line.tag]):
                continue
            ended = await rescue(self._backend, line.run_id, quiet_seconds)
            if ended is not None and ended.status is RunState.FAILED:
                await bury(self._backend, _letter(ended, self._backend.clock()), f"{ended.run_id}.dlq.abandoned")


def _letter(run: Run, now: float) -> DeadLetter:
    return DeadLetter(
        timestamp=now,
        reason=DeadReason.ABANDONED,
        error=run.error,
        tag=run.tag,
        run_id=run.run_id,
        flow_name=run.flow_name,
        tags=run.tags,
        worker_id=run.worker_id,
    )
