"""Delete one dead letter."""

from __future__ import annotations

from pyoco_server.actions.show_dead_letter import find_dead_letter
from pyoco_server.core.run import Caller
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["delete_dead_letter", "forget_dead_letters"]

log = get_logger(__name__)


async def delete_dead_letter(backend: GatewayBackend, caller: Caller, letter_id: str) -> int:
    """Delete the letter, also from this gateway's lists, and return its id. Its run stays as it is.

    Two round trips. Concurrent deletions of the same letter all succeed. Raises DeadLetterNotFound. A crash after the
    deletion leaves the letter in this gateway's lists for a few seconds.
    """
    found = await find_dead_letter(backend, caller, letter_id)
    await backend.dead_letters.delete(found.letter_id)
    await forget_dead_letters(backend, {found.letter_id})
    return found.letter_id


async def forget_dead_letters(backend: GatewayBackend, letter_ids: set[int]) -> None:
    """Remove deleted letters from this gateway's lists. Best effort: the index feeder removes them within a few
    seconds anyway."""
    try:
        await backend.dead_letter_index.forget(letter_ids)
    except Unavailable as error:
        log.warning("deleted dead letters may stay listed for a moment", count=len(letter_ids), error=error)
