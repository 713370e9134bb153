"""Dead letters for tests: runs that ended badly, with what they left behind."""

from __future__ import annotations

import time
from typing import Any

from pyoco_server.actions.submit_once import submit_once
from pyoco_server.core.dead_letter import DeadLetter, dead_letter_of
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.run import Caller, Run
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, a_submission
from support.waiting import eventually

__all__ = ["bury_letter", "bury_letters", "died", "letter_ids_of", "run_died"]


async def run_died(
    backend: GatewayBackend, caller: Caller | None = None, reason: DeadReason = DeadReason.TIMEOUT, **ask: Any
) -> Run:
    """A run that was accepted, executed, and has failed. Its letter is not written."""
    accepted = await submit_once(backend, caller or Caller(), a_submission(**ask))
    found = await backend.runs.find(accepted.stored.run.run_id)
    assert isinstance(found, Stored)
    run = claim(found.run, ANNA, "attempt-1", time.time())
    ended = await backend.runs.replace(
        conclude(run, Failed(message="it broke", why=reason), time.time()), found.revision
    )
    assert isinstance(ended, Stored)
    return ended.run


async def bury_letters(backend: GatewayBackend, *letters: DeadLetter) -> list[int]:
    """Returns their ids, oldest first, once lists show all of them. No other dead letters may be written meanwhile."""
    known = set(await letter_ids_of(backend))
    for letter in letters:
        await backend.queue.bury(letter, backend.new_id())
    new: set[int] = set()

    async def are_there() -> bool:
        new.update(set(await letter_ids_of(backend)) - known)
        return len(new) == len(letters)

    await eventually(are_there)
    return sorted(new)


async def bury_letter(backend: GatewayBackend, letter: DeadLetter) -> int:
    [letter_id] = await bury_letters(backend, letter)
    return letter_id


async def died(
    backend: GatewayBackend, caller: Caller | None = None, reason: DeadReason = DeadReason.TIMEOUT, **ask: Any
) -> tuple[int, Run]:
    """A failed run, and the id of its letter, which is in the lists."""
    run = await run_died(backend, caller, reason, **ask)
    return await bury_letter(backend, dead_letter_of(run, reason, time.time(), num_delivered=1)), run


async def letter_ids_of(backend: GatewayBackend, **wanted: Any) -> list[int]:
    page = await backend.dead_letter_index.page(DeadLetterFilter(**wanted), 10_000)
    return [item.letter_id for item in page.items]
