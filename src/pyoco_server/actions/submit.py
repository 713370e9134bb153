"""Accept a run."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import job_of
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.errors import CATALOGUE, Problem, Refused, SnapshotTooLargeError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Lost, Stored

__all__ = ["Accepted", "check_size", "record_and_queue", "submit", "too_large"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Accepted:
    """An accepted submission: its run is recorded and queued."""

    stored: Stored
    #: An earlier submission under the same idempotency key had created it.
    replayed: bool = False
    #: Why it may fail nevertheless: see `check_flow_name`.
    warning: str | None = None


async def submit(backend: Backend, caller: Caller, ask: Submission) -> Stored:
    """Record the run, then publish its job, then return, in that order; two round trips (FLOW-72).

    A delayed run is only recorded: keepers set its alarm from the record, and queue its job at its time (DELAY-4).

    A crash leaves behind:

    - before the record: nothing;
    - between record and job: a PENDING run without a job, never reported as accepted. The keeper ends it by its age;
    - after the job: an accepted run whose answer was lost. It runs.

    There is never a job without a run. Raises Refused if the run is too large to record (FLOW-71), Unavailable if
    either write failed or its outcome could not be determined. A record without a job is then withdrawn, and the job,
    should it exist after all, finds it withdrawn (FLOW-75); a record that cannot be withdrawn is left to the keeper,
    too.
    """
    run = accept(ask, caller, backend.new_id(), backend.clock())
    stored = await record_and_queue(backend, run, ask)
    if isinstance(stored, Lost):
        raise Unavailable(f"run id {run.run_id} is taken")
    return stored


async def record_and_queue(backend: Backend, run: Run, ask: Submission) -> Stored | Lost:
    """Do the two writes of a submission, and withdraw the record if the second write failed.

    Returns LOST if the run exists already; nothing has changed then. Raises as `submit` does.
    """
    try:
        stored = await backend.runs.create(run)
    except SnapshotTooLargeError as error:
        raise too_large(error) from error
    if isinstance(stored, Lost) or stored.run.waits_for_time:
        return stored
    try:
        await backend.queue.put(job_of(run, ask, stored.revision))
    except Unavailable as error:
        if await _take_back(backend, stored.run, stored.revision):
            raise
        if not await _was_claimed(backend, run.run_id):
            raise
        log.warning("unanswered publish had succeeded: a worker has the run", run_id=run.run_id, error=error)
    return stored


def check_size(backend: Backend, run: Run) -> None:
    """Check before any write that the run is small enough to be recorded. Raises Refused (FLOW-71)."""
    try:
        backend.runs.check_size(run)
    except SnapshotTooLargeError as error:
        raise too_large(error) from error


def too_large(error: SnapshotTooLargeError) -> Refused:
    return Refused(str(error), problems=(Problem(("body", "params"), str(error), "too_large"),))


async def _was_claimed(backend: Backend, run_id: str) -> bool:
    """Whether a worker has claimed the run, which proves that its job was published."""
    found = await backend.runs.find(run_id)
    return isinstance(found, Stored) and found.run.attempt > 0


async def _take_back(backend: Backend, run: Run, revision: int) -> bool:
    """Withdraw a record whose job was not published. Returns False if the record has been written again since."""
    try:
        return await backend.runs.withdraw(run.run_id, revision)
    except Unavailable as error:
        text = CATALOGUE[4]
        log.error(text.en, run_id=run.run_id, err_id=text.err_id, msg_id=text.msg_id, cause=error)
        return True
