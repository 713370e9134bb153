"""Write dead letters."""

from __future__ import annotations

from pyoco_server.core.dead_letter import DeadLetter, dead_letter_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Run
from pyoco_server.errors import CATALOGUE, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["bury", "bury_run"]

log = get_logger(__name__)

#: Reasons that get a letter. A foreign record may contain another reason.
_REASONS = frozenset(DeadReason)


async def bury_run(backend: Backend, run: Run, *, num_delivered: int | None = None, subject: str | None = None) -> bool:
    """Write the dead letter of a run that has ended, if its reason calls for one. Returns as `bury` does.

    A run ends once, so its letter has one id, whether the worker writes it, a keeper, or another keeper after a crash.
    The stream deduplicates an id for two minutes. A letter that is written again later is stored twice: two letters are
    better than none.
    """
    if run.reason not in _REASONS:
        return True
    dead_letter = dead_letter_of(
        run, DeadReason(run.reason), backend.clock(), num_delivered=num_delivered, subject=subject
    )
    return await bury(backend, dead_letter, f"{run.run_id}.dlq.{run.attempt}")


async def bury(backend: Backend, dead_letter: DeadLetter, letter_id: str) -> bool:
    """Write a dead letter, best effort: a failure is logged and changes nothing else (FLOW-336).

    Returns False if the letter could not be written; a caller that still holds the job may keep it for another try.
    """
    if dead_letter.reason == DeadReason.EXECUTION_ERROR and not backend.config.dlq_publish_execution_error:
        return True  # FLOW-335
    try:
        await backend.queue.bury(dead_letter, letter_id)
    except Unavailable as error:
        text = CATALOGUE[11]
        log.error(
            text.en,
            run_id=dead_letter.run_id,
            reason=dead_letter.reason,
            err_id=text.err_id,
            msg_id=text.msg_id,
            cause=error,
        )
        return False
    return True
