"""Throw many dead letters away."""

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
    """What became of a request."""

    #: Letters that were looked at. Those that were not deleted had just gone.
    matched: int = 0
    deleted: int = 0
    #: There may be more that fit: ask again.
    more: bool = False


async def delete_dead_letters(backend: GatewayBackend, caller: Caller, wanted: DeadLetterFilter, span: Span) -> Deleted:
    """Each as `delete_dead_letter` does it: two round trips a letter. Their runs stay as they are.

    A crash leaves some deleted and some not; the same request again deletes the others. Raises Unavailable when
    nothing was done at all.
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
