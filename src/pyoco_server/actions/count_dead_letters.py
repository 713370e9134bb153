"""Count the dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.run import Caller
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterCount
from pyoco_server.ports.index.port import EVERYBODY

__all__ = ["DeadLetterCounts", "count_dead_letters"]


@dataclass(frozen=True)
class DeadLetterCounts:
    total: int
    #: Largest first, at most 1,000.
    groups: list[DeadLetterCount]


async def count_dead_letters(backend: GatewayBackend, caller: Caller) -> DeadLetterCounts:
    """Count the letters that the caller may see, by reason and flow.

    Two index reads, no round trip. O(groups), never O(letters). A letter may be added or deleted between the two reads.
    """
    tenant_id = caller.tenant_id or EVERYBODY
    groups = await backend.dead_letter_index.counts(tenant_id)
    return DeadLetterCounts(await backend.dead_letter_index.total(tenant_id), groups)
