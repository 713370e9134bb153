"""Delete many dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.delete_dead_letter import delete_dead_letter
from pyoco_server.actions.walk_dead_letters import Span, walk_dead_letters
from pyoco_server.core.run import Caller
from pyoco_server.errors import DeadLetterNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, StoredDeadLetter

__all__ = ["Deleted", "delete_dead_letters"]

log = get_logger(__name__)


@dataclass
class Deleted:
    """The outcome of a request."""

    #: Letters that were processed. Those that were not deleted had been deleted by another caller just before.
    matched: int = 0
    deleted: int = 0
    #: There may be more matching letters: repeat the request.
    more: bool = False


async def delete_dead_letters(backend: GatewayBackend, caller: Caller, wanted: DeadLetterFilter, span: Span) -> Deleted:
    """Delete each matching letter as `delete_dead_letter` does: two round trips per letter. Their runs stay as they
    are.

    A crash leaves some deleted and others not; repeating the request deletes the others. Raises Unavailable only if
    nothing was done.
    """
    done = Deleted()

    async def each(item: StoredDeadLetter) -> None:
        try:
            await delete_dead_letter(backend, caller, str(item.letter_id))
        except DeadLetterNotFound:
            return
        done.deleted += 1

    walked = await walk_dead_letters(backend, caller, wanted, span, each)
    done.matched, done.more = walked.matched, walked.next_before is not None
    log.info("deleted dead letters", matched=done.matched, deleted=done.deleted)
    return done
