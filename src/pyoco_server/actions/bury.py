"""Set a job aside with its reason."""

from __future__ import annotations

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.errors import CATALOGUE, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["bury"]

log = get_logger(__name__)


async def bury(backend: Backend, letter: DeadLetter, letter_id: str) -> None:
    """Best effort: a letter that cannot be written is logged, and nothing else changes (FLOW-336)."""
    if letter.reason == DeadReason.EXECUTION_ERROR and not backend.config.dlq_publish_execution_error:
        return  # FLOW-335
    try:
        await backend.queue.bury(letter, letter_id)
    except Unavailable as error:
        text = CATALOGUE[11]
        log.error(
            text.en, run_id=letter.run_id, reason=letter.reason, err_id=text.err_id, msg_id=text.msg_id, cause=error
        )
