"""Count the dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.run import Caller
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY
from pyoco_server.ports.letters.port import LetterCount

__all__ = ["LetterCounts", "count_letters"]


@dataclass(frozen=True)
class LetterCounts:
    total: int
    #: The largest first, at most 1,000.
    groups: list[LetterCount]


async def count_letters(backend: GatewayBackend, caller: Caller) -> LetterCounts:
    """What the caller may see, by reason and flow. Two looks at the index, no round trip. O(groups), never O(letters).

    Between the looks a letter may come or go.
    """
    tenant_id = caller.tenant_id or EVERYBODY
    groups = await backend.letter_index.counts(tenant_id)
    return LetterCounts(await backend.letter_index.total(tenant_id), groups)
