"""Finds the runs that nobody will ever take, and has them ended.

Every state a run can be left in, and who brings it to its end. "Served": a worker asks for jobs of its tag. "Given up":
the job lies in the queue, was delivered as often as it may be, and will not come again.

| status                  | job      | worker | tag      | who ends it, and when                                       |
|-------------------------|----------|--------|----------|-------------------------------------------------------------|
| PENDING                 | waits    | none   | served   | the next free worker claims it                              |
| PENDING                 | waits    | none   | unserved | it waits, and says so; the first worker of the tag takes it |
| PENDING                 | given up | none   | served   | Advisories, FAILED `max_deliver`, at once                   |
| PENDING                 | given up | none   | unserved | the same, a few seconds after the last AckWait              |
| PENDING, older than the | none     | none   | any      | ResourceKeeper or Rescuer: the job is put again, because    |
|   stream of jobs        |          |        |          | the stream was deleted and created anew                     |
| PENDING                 | none     | none   | any      | Rescuer, FAILED `abandoned`, PYOCO_ABANDON_AFTER_SEC, but   |
|                         |          |        |          | not within 40 s of its record: its job may be on its way.   |
|                         |          |        |          | While more than 1,000 jobs of its tag wait, only when those |
|                         |          |        |          | that came before it have been delivered                     |
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

"Alive": the run's heartbeat is young, or its record was written a moment ago by the store's clock, or its worker's own
record in the registry is young and lists the run (`actions/rescue.py`).

Packs are not among them: whatever their record says is a picture of the ledger, whose own keepers end them. Nor are
programs: their queue delivers for ever, whoever claims one that was left decides, and what has fallen out of the queue
is put back by their sweeper (`loops/programs/sweeper.py`).

A job whose run has ended is dropped by the worker that takes it; one that is given up is removed by Advisories. On a
tag that nobody serves such a job stays in the queue, and nothing waits for it.
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
#: Runs looked at in one turn: a hundred thousand that merely wait are looked through in ten minutes.
_BATCH = 2_000
_AT_ONCE = 32
#: Jobs of one tag removed in one turn.
_LEFTOVERS_MAX = 200
#: Letters of runs that ended within this time are written once more after a start: a little less than the two minutes
#: for which the stream of letters knows an id.
_LETTERS_SECONDS = 110.0
_LETTERS_PAGE = 500
_LETTERS_PAGES_MAX = 20


class Rescuer(Loop):
    """Looks at the runs that have been quiet for longest. One look at the queue of each tag, one read of each run.

    A keeper that is killed between the end of a run and its letter leaves none: its successor writes those of the last
    two minutes again, under their own ids. What it cannot do: write one that is missing for longer; the run itself
    tells. And see a job that was given up before the queue has moved on past it: Advisories tell of those; the look for
    leftovers here is for what no advisory was kept of.
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
        self._looked_for_letters = False
        #: Where the next turn goes on: many runs that merely wait must not hide one that is lost.
        self._after = 0.0
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # half an index would be half a truth
        quiet_seconds = self._backend.config.abandon_after_sec
        now = self._backend.clock()
        if not self._looked_for_letters:
            await self._guarded(self._bury_again(now - _LETTERS_SECONDS))
        quiet = await self._index.unfinished(self._after, now - quiet_seconds, _BATCH)
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
            self.outage.failed("a quiet run could not be looked at", error, **where)

    async def _clear(self, tag: str) -> None:
        """End the runs of jobs that were delivered too often, and take the jobs out."""
        after = 0
        for _ in range(_LEFTOVERS_MAX):
            leftover = await self._backend.queue.leftover(tag, after)
            if leftover is None:
                return
            try:
                await give_up(self._backend, leftover)
            except Corrupt as error:  # somebody has to mend it; those behind it need not wait for that
                self.outage.failed("a job that was given up could not be dealt with; trying again", error, tag=tag)
            after = leftover.sequence

    async def _look_through(self, tag: str, run_ids: list[str], quiet_seconds: float) -> None:
        look = await snapshot_queue(self._backend, tag)

        async def one(run_id: str) -> None:
            async with self._room:
                await self._guarded(self._rescue(run_id, quiet_seconds, look), run_id=run_id)

        await asyncio.gather(*map(one, run_ids))

    async def _rescue(self, run_id: str, quiet_seconds: float, look: QueueSnapshot) -> None:
        ended = await rescue(self._backend, run_id, quiet_seconds, look, submit_seconds=self._submit_seconds)
        if ended is not None:
            await bury_run(self._backend, ended)

    async def _bury_again(self, since: float) -> None:
        """The letters of runs that were ended here, or by another keeper, since then: who ended them may have died
        before. One look at the index per 500 failed runs, one read and one write for each of ours among them."""
        wanted, place = RunFilter(status=RunState.FAILED, updated_after=since), None
        for _ in range(_LETTERS_PAGES_MAX):
            page = await self._index.page(wanted, _LETTERS_PAGE, place)
            for line in page.items:
                if line.error == NO_JOB:
                    await self._guarded(self._bury_one(line.run_id), run_id=line.run_id)
            place = page.next
            if place is None:
                break
        self._looked_for_letters = True

    async def _bury_one(self, run_id: str) -> None:
        found = await self._backend.runs.find(run_id)
        if isinstance(found, Stored) and found.run.reason == DeadReason.ABANDONED:
            await bury_run(self._backend, found.run)
