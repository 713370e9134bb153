"""Give up a job that the queue will never deliver again."""

from __future__ import annotations

from pyoco_server.actions.bury import bury
from pyoco_server.actions.claim import Busy
from pyoco_server.actions.finish import write_terminal
from pyoco_server.actions.rescue import worked_on_seconds
from pyoco_server.core.dead_letter import DeadLetter, letter_of
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Cancelled, DeadReason, Failed
from pyoco_server.core.run import Run, conclude
from pyoco_server.core.states import RunState
from pyoco_server.errors import InvalidJob, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Stored

__all__ = ["give_up"]

log = get_logger(__name__)

_ROUNDS_MAX = 20
_WHY = "the job was delivered as often as it may be and no worker could end its run"


async def give_up(backend: Backend, leftover: Leftover, deliveries: int | None = None) -> Busy | None:
    """End its run as failed (a cancelled one as cancelled), write the dead letter, take the job out. In that order.

    Busy: somebody still works on the run, and will end it; nothing was done, ask again later. Raises Unavailable, and
    Corrupt when the record cannot be read.

    What a crash leaves behind:
      after the end       a job whose run has ended as `max_deliver`: the next try writes the letter, if it is missing;
      after the letter    a job whose run has ended: the next try takes it out. The letter has the same id, so the
                          stream keeps one of them while it remembers ids, two minutes by default.
    Several keepers may try at once: one of them ends the run.
    """
    try:
        run_id = decode_job(leftover.data).run_id
    except InvalidJob as error:
        if error.run_id is None:
            await bury(backend, _letter_of_nobody(backend, leftover, error, deliveries), f"{leftover.sequence}.dlq")
        run_id = error.run_id or ""
    run = await _end(backend, run_id) if run_id else None
    if isinstance(run, Busy):
        return run
    if run is not None and run.reason == DeadReason.MAX_DELIVER:
        letter = letter_of(
            run, DeadReason.MAX_DELIVER, backend.clock(), num_delivered=deliveries, subject=leftover.subject or None
        )
        await bury(backend, letter, f"{run_id}.dlq.{run.attempt}")  # as a worker that gave it up has called its own
    await backend.queue.remove(leftover)
    log.warning("removed a job that would never have been delivered again", run_id=run_id, tag=leftover.tag)
    return None


async def _end(backend: Backend, run_id: str) -> Run | Busy | None:
    """The run as it ended, here or before. None: there is no such run (any more)."""
    for _ in range(_ROUNDS_MAX):
        found = await backend.runs.find(run_id)
        if not isinstance(found, Stored):
            return None
        if found.run.is_terminal:
            return found.run
        now = backend.clock()
        seconds = worked_on_seconds(found.run, now, backend.config)
        if seconds > 0:
            return Busy(seconds)
        is_cancelled = found.run.status is RunState.CANCELLING
        outcome = Cancelled() if is_cancelled else Failed(message=_WHY, why=DeadReason.MAX_DELIVER)
        written = await write_terminal(backend, conclude(found.run, outcome, now), found.revision)
        if isinstance(written, Stored):
            return written.run
    raise Unavailable(f"run {run_id} changes too fast to be ended")


def _letter_of_nobody(backend: Backend, leftover: Leftover, error: InvalidJob, deliveries: int | None) -> DeadLetter:
    return DeadLetter(
        timestamp=backend.clock(),
        reason=DeadReason.INVALID_JOB,
        error=str(error),
        tag=leftover.tag,
        num_delivered=deliveries,
        subject=leftover.subject or None,
    )
