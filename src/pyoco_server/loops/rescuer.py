"""Finds the runs that nobody will ever take, and has them ended.

Every state a run can be left in, and who brings it to its end. "Served": a worker asks for jobs of its tag. "Given up":
the job lies in the queue, was delivered as often as it may be, and will not come again.

| status                  | job      | worker | tag      | who ends it, and when                                       |
|-------------------------|----------|--------|----------|-------------------------------------------------------------|
| PENDING                 | waits    | none   | served   | the next free worker claims it                              |
| PENDING                 | waits    | none   | unserved | it waits, and says so; the first worker of the tag takes it |
| PENDING                 | given up | none   | served   | Advisories, FAILED `max_deliver`, at once                   |
| PENDING                 | given up | none   | unserved | the same, a few seconds after the last AckWait              |
| PENDING                 | none     | none   | any      | Rescuer, FAILED `abandoned`, PYOCO_ABANDON_AFTER_SEC        |
| RUNNING                 | in hand  | alive  | any      | its worker                                                  |
| RUNNING                 | in hand  | dead   | served   | delivered again after AckWait; the next attempt             |
| RUNNING                 | in hand  | dead   | unserved | it waits, with a stale heartbeat; the tag's next worker     |
| RUNNING                 | given up | alive  | any      | its worker; Advisories wait for it, then remove the job     |
| RUNNING                 | given up | dead   | any      | Advisories, FAILED `max_deliver`, as for PENDING            |
| RUNNING                 | none     | alive  | any      | its worker                                                  |
| RUNNING                 | none     | dead   | any      | Rescuer, FAILED `abandoned`, PYOCO_ABANDON_AFTER_SEC        |
| RUNNING, claimed ahead  | in hand  | dead   | served   | as RUNNING: nobody but its worker may answer for a delivery |
| RUNNING, handed back    | waits    | none   | any      | as PENDING                                                  |
| CANCELLING, never begun | any      | none   | any      | a worker that takes the job, or Canceller after some 4 s    |
| CANCELLING              | any      | alive  | any      | its worker: grace period, then a kill                       |
| CANCELLING              | any      | dead   | any      | Canceller, PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC of silence;  |
|                         |          |        |          | or a worker the job is delivered to before                  |

A job whose run has ended is dropped by the worker that takes it; one that is given up is removed by Advisories. On a
tag that nobody serves such a job stays in the queue, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pyoco_server.actions.bury import bury
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.rescue import rescue
from pyoco_server.core.dead_letter import letter_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.queue.port import Stock

__all__ = ["Rescuer"]

log = get_logger(__name__)

_EVERY_SECONDS = 10.0
#: Runs looked at in one turn: a hundred thousand that merely wait are looked through in ten minutes.
_BATCH = 2_000
_AT_ONCE = 32
#: Jobs of one tag removed in one turn.
_LEFTOVERS_MAX = 200


class Rescuer(Loop):
    """Looks at the runs that have been quiet for longest. One look at the queue of each tag, one read of each run.

    What it cannot do: see a job that was given up before the queue has moved on past it. Advisories tell of those; the
    look for leftovers here is for what no advisory was kept of.
    """

    def __init__(
        self, backend: Backend, index: Index, feeder: IndexFeeder, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder = backend, index, feeder
        #: Where the next turn goes on: many runs that merely wait must not hide one that is lost.
        self._after = 0.0
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # half an index would be half a truth
        quiet_seconds = self._backend.config.abandon_after_sec
        quiet = await self._index.unfinished(self._after, self._backend.clock() - quiet_seconds, _BATCH)
        self._after = quiet[-1].updated_at if len(quiet) == _BATCH else 0.0
        by_tag: dict[str, list[str]] = {}
        for line in quiet:
            by_tag.setdefault(line.tag, []).append(line.run_id)
        for tag, run_ids in by_tag.items():
            await self._guarded(self._clear(tag), tag=tag)
            await self._guarded(self._look_through(tag, run_ids, quiet_seconds), tag=tag)

    async def _guarded(self, look: Awaitable[None], **where: str) -> None:
        """An odd record must not hide the others."""
        try:
            await look
        except (PyocoError, TypeError, ValueError) as error:
            log.warning("a quiet run could not be looked at", error=error, **where)

    async def _clear(self, tag: str) -> None:
        """End the runs of jobs that were delivered too often, and take the jobs out."""
        for _ in range(_LEFTOVERS_MAX):
            leftover = await self._backend.queue.leftover(tag)
            if leftover is None or await give_up(self._backend, leftover) is not None:
                return

    async def _look_through(self, tag: str, run_ids: list[str], quiet_seconds: float) -> None:
        stock = await self._backend.queue.stock(tag)

        async def look(run_id: str) -> None:
            async with self._room:
                await self._guarded(self._look_at(run_id, quiet_seconds, stock), run_id=run_id)

        await asyncio.gather(*map(look, run_ids))

    async def _look_at(self, run_id: str, quiet_seconds: float, stock: Stock) -> None:
        ended = await rescue(self._backend, run_id, quiet_seconds, stock)
        if ended is not None and ended.status is RunState.FAILED:
            await bury(
                self._backend,
                letter_of(ended, DeadReason.ABANDONED, self._backend.clock()),
                f"{ended.run_id}.dlq.abandoned",
            )
