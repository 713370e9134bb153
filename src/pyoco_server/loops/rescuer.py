"""Finds runs that no worker will ever take, and ends them.

Every state in which a run can be left, and what ends it. "Served": a worker requests jobs of its tag. "Given up": the
job is in the queue, reached the maximum number of deliveries, and will not be redelivered.

| status                  | job      | worker | tag      | what ends it, and when                                      |
|-------------------------|----------|--------|----------|-------------------------------------------------------------|
| PENDING                 | waits    | none   | served   | the next free worker claims it                              |
| PENDING                 | waits    | none   | unserved | waits, and is shown as such, for a worker of the tag        |
| PENDING                 | given up | none   | served   | Advisories, FAILED `max_deliver`, immediately               |
| PENDING                 | given up | none   | unserved | the same, a few seconds after the last AckWait              |
| PENDING, older than the | none     | none   | any      | ResourceKeeper or Rescuer queues the job again, because     |
|   stream of jobs        |          |        |          | the stream was deleted and recreated                        |
| PENDING                 | none     | none   | any      | Rescuer, FAILED `abandoned`, abandon_after_sec, but         |
|                         |          |        |          | not within 40 s of its record: its job may be in transit.   |
|                         |          |        |          | While more than 1,000 jobs of its tag wait, only when the   |
|                         |          |        |          | jobs queued before it have been delivered                   |
| RUNNING                 | held     | alive  | any      | its worker                                                  |
| RUNNING                 | held     | dead   | served   | redelivered after AckWait; the next attempt                 |
| RUNNING                 | held     | dead   | unserved | waits, with a stale heartbeat, for a worker of the tag      |
| RUNNING                 | given up | alive  | any      | its worker; Advisories wait for it, then remove the job     |
| RUNNING                 | given up | dead   | any      | Advisories, FAILED `max_deliver`, as for PENDING            |
| RUNNING                 | none     | alive  | any      | its worker                                                  |
| RUNNING                 | none     | dead   | any      | Rescuer, FAILED `abandoned`, abandon_after_sec              |
| RUNNING, claimed ahead  | held     | dead   | served   | as RUNNING: only its worker may acknowledge a delivery      |
| RUNNING, released       | waits    | none   | any      | as PENDING                                                  |
| CANCELLING, never begun | any      | none   | any      | a worker that takes the job, or Canceller after about 4 s   |
| CANCELLING              | any      | alive  | any      | its worker: grace period, then a kill                       |
| CANCELLING              | any      | dead   | any      | Canceller, PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC without      |
|                         |          |        |          | heartbeats; or earlier, a worker that receives the job      |

"Alive": the run's heartbeat is recent, or its record was written a moment ago by the store's clock, or its worker's
registry record is recent and lists the run (`actions/rescue.py`).

Packs are not covered: their record is a projection of the ledger, whose own keepers end them. Neither are programs:
their queue redelivers without limit, the worker that claims an abandoned one decides, and their sweeper
(`loops/programs/sweeper.py`) queues lost jobs again.

The worker that receives a job whose run has ended drops it; Advisories remove one that was given up. On an unserved tag
such a job stays in the queue, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pyoco_server.actions.bury import bury_run
from pyoco_server.actions.give_up import give_up
from pyoco_server.actions.rescue import NO_JOB, SUBMIT_SECONDS_MAX, QueueSnapshot, rescue, snapshot_queue
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index, RunFilter
from pyoco_server.ports.runs.port import Stored

__all__ = ["Rescuer"]

log = get_logger(__name__)

_EVERY_SECONDS = 10.0
#: Runs checked in one turn: a hundred thousand waiting runs take ten minutes.
_BATCH = 2_000
_AT_ONCE = 32
#: Jobs of one tag removed in one turn.
_LEFTOVERS_MAX = 200
#: After a start, the dead letters of runs that ended within this time are written again: a little less than the two
#: minutes for which the dead letter stream deduplicates ids.
_DEAD_LETTERS_SECONDS = 110.0
_DEAD_LETTERS_PAGE = 500
_DEAD_LETTERS_PAGES_MAX = 20


class Rescuer(Loop):
    """Checks the runs that have gone longest without an update. Costs one scan of each tag's queue and one read of each
    run.

    A keeper that is killed after ending a run but before writing its dead letter leaves none: the next keeper writes
    those of the last two minutes again, with the same ids.

    What it cannot do: write a dead letter that has been missing for longer; the run record itself shows the failure. It
    also cannot see a job that was given up before the queue has moved past it: Advisories report those. The scan for
    leftovers here covers jobs whose advisory was lost.
    """

    def __init__(
        self,
        backend: Backend,
        index: Index,
        feeder: IndexFeeder,
        every_seconds: float = _EVERY_SECONDS,
        *,
        submit_seconds: float = SUBMIT_SECONDS_MAX,
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder = backend, index, feeder
        self._submit_seconds = submit_seconds
        self._looked_for_dead_letters = False
        #: Where the next turn continues: many waiting runs must not hide a lost one.
        self._after = 0.0
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # a partial index would give wrong results
        quiet_seconds = self._backend.config.abandon_after_sec
        now = self._backend.clock()
        if not self._looked_for_dead_letters:
            await self._guarded(self._bury_again(now - _DEAD_LETTERS_SECONDS))
        stale = await self._index.unfinished(self._after, now - quiet_seconds, _BATCH)
        self._after = stale[-1].updated_at if len(stale) == _BATCH else 0.0
        by_tag: dict[str, list[str]] = {}
        for line in stale:
            by_tag.setdefault(line.tag, []).append(line.run_id)
        for tag, run_ids in by_tag.items():
            await self._guarded(self._clear(tag), tag=tag)
            await self._guarded(self._check_runs(tag, run_ids, quiet_seconds), tag=tag)

    async def _guarded(self, check: Awaitable[None], **where: str) -> None:
        """Log an error instead of raising it: one malformed record must not block the others."""
        try:
            await check
        except (PyocoError, TypeError, ValueError) as error:
            self.outage.failed("could not check a run without heartbeats", error, **where)

    async def _clear(self, tag: str) -> None:
        """End the runs of jobs that reached max deliveries, and remove the jobs."""
        after = 0
        for _ in range(_LEFTOVERS_MAX):
            leftover = await self._backend.queue.leftover(tag, after)
            if leftover is None:
                return
            try:
                await give_up(self._backend, leftover)
            except Corrupt as error:  # an operator has to repair it; the jobs after it need not wait for that
                self.outage.failed("could not process a job that reached max deliveries; retrying", error, tag=tag)
            after = leftover.sequence

    async def _check_runs(self, tag: str, run_ids: list[str], quiet_seconds: float) -> None:
        snapshot = await snapshot_queue(self._backend, tag)

        async def one(run_id: str) -> None:
            async with self._room:
                await self._guarded(self._rescue(run_id, quiet_seconds, snapshot), run_id=run_id)

        await asyncio.gather(*map(one, run_ids))

    async def _rescue(self, run_id: str, quiet_seconds: float, snapshot: QueueSnapshot) -> None:
        ended = await rescue(self._backend, run_id, quiet_seconds, snapshot, submit_seconds=self._submit_seconds)
        if ended is not None:
            await bury_run(self._backend, ended)

    async def _bury_again(self, since: float) -> None:
        """Write again the dead letters of runs that keepers ended since then: a keeper may have crashed before writing
        one. Costs one index read per 500 failed runs, plus one read and one write for each run that a keeper ended."""
        wanted, place = RunFilter(status=RunState.FAILED, updated_after=since), None
        for _ in range(_DEAD_LETTERS_PAGES_MAX):
            page = await self._index.page(wanted, _DEAD_LETTERS_PAGE, place)
            for line in page.items:
                if line.error == NO_JOB:
                    await self._guarded(self._bury_one(line.run_id), run_id=line.run_id)
            place = page.next
            if place is None:
                break
        self._looked_for_dead_letters = True

    async def _bury_one(self, run_id: str) -> None:
        found = await self._backend.runs.find(run_id)
        if isinstance(found, Stored) and found.run.reason == DeadReason.ABANDONED:
            await bury_run(self._backend, found.run)
