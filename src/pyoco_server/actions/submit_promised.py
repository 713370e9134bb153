"""Accept a run whose id is known before it is submitted: that of a tick of a schedule."""

from __future__ import annotations

from pyoco_server.actions.submit import too_large
from pyoco_server.core.flow_moves import beat
from pyoco_server.core.job import job_of
from pyoco_server.core.outcome import NOTHING_YET
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import SnapshotTooLargeError
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Absent, Lost, Stored

__all__ = ["find_promised", "queue_once_more", "submit_promised"]


async def submit_promised(backend: Backend, run: Run, ask: Submission) -> None:
    """Record the run under its id, then publish its job. Repeat it until it succeeds: it leads to one run.

    A record without a job, which a crash or an outage leaves behind, is not withdrawn: the repeat publishes the job.
    Raises Refused if the run is too large, Unavailable.
    """
    rounds = Rounds(f"run {run.run_id}")
    while True:
        rounds.begin()
        try:
            stored = await backend.runs.create(run)
        except SnapshotTooLargeError as error:
            raise too_large(error) from error
        if isinstance(stored, Stored):
            if not stored.run.waits_for_time:  # otherwise a keeper queues it at its time
                await backend.queue.put(job_of(run, ask, stored.revision))
            return
        if await find_promised(backend, run.run_id, ask):
            return


async def find_promised(backend: Backend, run_id: str, ask: Submission) -> bool:
    """Return whether there is such a run, or was. Publishes its job again if no worker has claimed it."""
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await backend.runs.find(run_id)
        if isinstance(found, Absent):
            return False
        is_open = isinstance(found, Stored) and found.run.status is RunState.PENDING and found.run.attempt == 0
        if not isinstance(found, Stored) or not is_open or found.run.waits_for_time:
            return True
        if isinstance(await queue_once_more(backend, found, ask), Stored):
            return True


async def queue_once_more(backend: Backend, found: Stored, ask: Submission) -> Stored | Lost:
    """Publish the job of a run that no worker has claimed: the process that recorded it may have crashed before it
    published the job.

    Returns LOST if the run has changed; read it again.

    The record is written first, over exactly the revision that was found, with a new time and nothing else. From then
    on it cannot be withdrawn: the process that recorded it withdraws only over the first revision, possibly at this
    very moment, because its own publish failed. Without that write it could withdraw a run that we have just reported
    as accepted. And the keeper, which ends runs that have no recent update and no job, sees a recent update. For the
    same reason this function never withdraws the record: another process may have reported it as accepted.

    The job is published once more under the run's id. If its first job is still in the queue, the queue drops the
    second one within two minutes; later it stores both, and the claim drops the one that comes second. It cannot happen
    that the first job was already processed and the second is dropped as a duplicate: a job leaves the queue only after
    its run was claimed, has ended or was withdrawn, and none of these is true of this run. (That is also why a
    withdrawn run is never recreated under its old id: its first job may be dropped at any moment, and for two minutes
    no other would be stored.) A job that names the older revision loses its first, blind claim; the worker then reads
    the record and claims that.
    """
    touched = await backend.runs.replace(beat(found.run, NOTHING_YET, backend.clock()), found.revision)
    if isinstance(touched, Stored):
        await backend.queue.put(job_of(touched.run, ask, touched.revision))
    return touched
