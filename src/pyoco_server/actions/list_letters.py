"""Show many dead letters."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.run import Caller
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY
from pyoco_server.ports.letters.port import LetterFilter, LetterPage

__all__ = ["list_letters", "only_own"]


def only_own(caller: Caller, wanted: LetterFilter) -> LetterFilter:
    """Without authentication everything, with it only letters of one's own runs (FLOW-274, FLOW-275)."""
    return replace(wanted, tenant_id=caller.tenant_id or EVERYBODY)


async def list_letters(
    backend: GatewayBackend, caller: Caller, wanted: LetterFilter, limit: int, before: int | None = None
) -> LetterPage:
    """The newest letters the caller may see: one look at the index, no round trip."""
    return await backend.letter_index.page(only_own(caller, wanted), limit, before)
