"""Set a job aside with its reason."""

from __future__ import annotations

from pyoco_server.core.dead_letter import DeadLetter, letter_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Run
from pyoco_server.errors import CATALOGUE, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["bury", "bury_run"]

log = get_logger(__name__)

#: A stranger's record may give another.
_REASONS = frozenset(DeadReason)


async def bury_run(backend: Backend, run: Run, *, num_delivered: int | None = None, subject: str | None = None) -> bool:
    """The letter of a run that has ended, if its reason is one for a letter. As `bury`.

    A run ends once, so its letter has one id, whoever writes it: worker, keeper, or the next of them after a crash. The
    stream stores an id once in two minutes. A letter that is written again later than that lies there twice: rather
    two letters than none.
    """
    if run.reason not in _REASONS:
        return True
    letter = letter_of(run, DeadReason(run.reason), backend.clock(), num_delivered=num_delivered, subject=subject)
    return await bury(backend, letter, f"{run.run_id}.dlq.{run.attempt}")


async def bury(backend: Backend, letter: DeadLetter, letter_id: str) -> bool:
    """Best effort: a letter that cannot be written is logged, and nothing else changes (FLOW-336). False: that was so;
    who still holds what the letter tells of may keep it for another try."""
    if letter.reason == DeadReason.EXECUTION_ERROR and not backend.config.dlq_publish_execution_error:
        return True  # FLOW-335
    try:
        await backend.queue.bury(letter, letter_id)
    except Unavailable as error:
        text = CATALOGUE[11]
        log.error(
            text.en, run_id=letter.run_id, reason=letter.reason, err_id=text.err_id, msg_id=text.msg_id, cause=error
        )
        return False
    return True
