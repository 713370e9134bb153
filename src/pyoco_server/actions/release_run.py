"""Start a delayed run: end its wait and queue its job."""

from __future__ import annotations

from pyoco_server.actions.bury import bury_run
from pyoco_server.actions.finish import write_terminal
from pyoco_server.actions.priced.release import release_due_pack, release_pack
from pyoco_server.actions.programs.release import enqueue_released
from pyoco_server.actions.queue_again import submission_of
from pyoco_server.actions.read import read_run
from pyoco_server.core.flow_moves import conclude, release
from pyoco_server.core.job import job_of
from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import KEEPER, Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotDelayed, NotRepeatable, WorkflowTooLarge
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Lost, Stored

__all__ = ["release_due", "start_now"]

log = get_logger(__name__)


async def start_now(backend: Backend, caller: Caller, run_id: str) -> Stored:
    """Start a run that waits for its time at once (DELAY-6).

    What a crash leaves behind: between record and job, a released run without a job; its alarm, which is still set,
    queues the job, and so does a repeat. Raises RunNotFound, NotDelayed, Unavailable.
    """
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await read_run(backend, caller, run_id)
        if not found.run.waits_for_time:
            raise NotDelayed(f"the run is {found.run.status} and does not wait for its time")
        if found.run.is_pack:
            return await _start_pack(backend, found)
        released = await _release(backend, found)
        if isinstance(released, Stored):
            return released


async def _start_pack(backend: Backend, found: Stored) -> Stored:
    """The projection follows in a moment; what it will show is returned."""
    if not await release_pack(backend, found):
        raise NotDelayed("the run does not wait for its time any more")
    return Stored(release(found.run, backend.clock()), found.revision)


async def release_due(backend: Backend, run_id: str) -> float:
    """Handle the alarm of a run. Returns for how many seconds the alarm has to be put off; 0: it is handled.

    Any process may call it at any time and any number of times: a run that is not due, has been started or has ended
    stays as it is. A run that was released and that no worker has claimed gets its job again: the process that released
    it may have crashed before it queued the job. One read, one write and one publish. Raises Unavailable, Corrupt.
    """
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await backend.runs.find(run_id)
        if not isinstance(found, Stored) or found.run.status is not RunState.PENDING:
            return 0.0
        if found.run.is_pack:
            return await release_due_pack(backend, run_id) / 1_000_000
        if found.run.waits_for_time:
            seconds = (found.run.due_at or 0.0) - backend.clock()
            if seconds > 0:
                return seconds
        if not isinstance(await _release(backend, found), Lost):
            return 0.0


async def _release(backend: Backend, found: Stored) -> Stored | Lost:
    """Write the record, then queue the job: a job that comes first would find a run that still waits, and be dropped.

    The job names the older revision, so that its first claim reads the record: a job does not carry all its members.
    """
    released: Stored | Lost = found
    if found.run.waits_for_time:
        released = await backend.runs.replace(release(found.run, backend.clock()), found.revision)
    if isinstance(released, Lost):
        return released
    if released.run.is_exec:
        await enqueue_released(backend, released)
    else:
        await _queue_flow(backend, released)
    return released


async def _queue_flow(backend: Backend, released: Stored) -> None:
    run = released.run
    try:
        ask = await submission_of(backend, run)
    except (NotRepeatable, WorkflowTooLarge) as error:
        log.error("cannot start a delayed run", run_id=run.run_id, error=error)
        ended = conclude(run, Failed(message=str(error), why=DeadReason.ABANDONED), backend.clock(), KEEPER)
        if isinstance(await write_terminal(backend, ended, released.revision), Stored):
            await bury_run(backend, ended)
        return
    # Another id than that of the run: the queue would drop the job of a second try as a repeat of the first.
    await backend.queue.put(job_of(run, ask, released.revision - 1), f"{run.run_id}.{run.attempt}.due")
