"""Finds the runs that nobody will ever take, and has them ended."""

from __future__ import annotations

from collections.abc import Awaitable

from pyoco_server.actions.bury import bury
from pyoco_server.actions.finish import end_unclaimed
from pyoco_server.actions.rescue import rescue
from pyoco_server.core.dead_letter import letter_of
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.states import RunState
from pyoco_server.errors import InvalidJob, PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Stored

__all__ = ["Rescuer"]

log = get_logger(__name__)

_EVERY_SECONDS = 10.0
_BATCH = 200


class Rescuer(Loop):
    """Looks at the runs that have been quiet for longest.

    What it cannot do: see a job that was delivered too often before the queue has moved on past it. Until then that
    job, and every run of its tag that is younger, count as waiting.
    """

    def __init__(
        self, backend: Backend, index: Index, feeder: IndexFeeder, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder = backend, index, feeder
        #: Where the next turn goes on: many runs that merely wait must not hide one that is lost.
        self._after = 0.0

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # half an index would be half a truth
        quiet_seconds = self._backend.config.abandon_after_sec
        quiet = await self._index.unfinished(self._after, self._backend.clock() - quiet_seconds, _BATCH)
        self._after = quiet[-1].updated_at if len(quiet) == _BATCH else 0.0
        for tag in {line.tag for line in quiet}:
            await self._guarded(self._clear(tag, quiet_seconds), tag=tag)
        for line in quiet:
            await self._guarded(self._look_at(line.run_id, quiet_seconds), run_id=line.run_id)

    @staticmethod
    async def _guarded(look: Awaitable[None], **where: str) -> None:
        """An odd record must not hide the others."""
        try:
            await look
        except (PyocoError, TypeError, ValueError) as error:
            log.warning("a quiet run could not be looked at", error=error, **where)

    async def _clear(self, tag: str, quiet_seconds: float) -> None:
        """End the runs of jobs that were delivered too often, and take the jobs out: they would hide younger ones."""
        for _ in range(_BATCH):
            leftover = await self._backend.queue.leftover(tag)
            if leftover is None or not await self._end_leftover(leftover, quiet_seconds):
                return
            await self._backend.queue.remove(leftover)

    async def _end_leftover(self, leftover: Leftover, quiet_seconds: float) -> bool:
        """False: somebody still works on the run, and will end it and answer for its job."""
        try:
            run_id = decode_job(leftover.data).run_id
        except InvalidJob as error:
            run_id = error.run_id or ""
        found = await self._backend.runs.find(run_id) if run_id else None
        if isinstance(found, Stored) and not found.run.is_terminal:
            if self._backend.clock() - found.run.heartbeat_at < quiet_seconds:
                return False
            message = "the job was delivered as often as it may be and no worker could end its run"
            ended = await end_unclaimed(self._backend, run_id, message, DeadReason.MAX_DELIVER)
            if ended is not None:
                letter = letter_of(ended, DeadReason.MAX_DELIVER, self._backend.clock())
                await bury(self._backend, letter, f"{run_id}.dlq.max_deliver")
        log.warning("removed a job that would never have been delivered again", run_id=run_id, tag=leftover.tag)
        return True

    async def _look_at(self, run_id: str, quiet_seconds: float) -> None:
        ended = await rescue(self._backend, run_id, quiet_seconds)
        if ended is not None and ended.status is RunState.FAILED:
            await bury(
                self._backend,
                letter_of(ended, DeadReason.ABANDONED, self._backend.clock()),
                f"{ended.run_id}.dlq.abandoned",
            )
