"""List dead letters."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.run import Caller
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, DeadLetterPage
from pyoco_server.ports.index.port import EVERYBODY

__all__ = ["list_dead_letters", "only_own"]


def only_own(caller: Caller, wanted: DeadLetterFilter) -> DeadLetterFilter:
    """Restrict the filter to letters of the caller's own runs if authentication is on (FLOW-274, FLOW-275)."""
    return replace(wanted, tenant_id=caller.tenant_id or EVERYBODY)


async def list_dead_letters(
    backend: GatewayBackend, caller: Caller, wanted: DeadLetterFilter, limit: int, before: int | None = None
) -> DeadLetterPage:
    """Return the newest letters that the caller may see: one index read, no round trip."""
    return await backend.dead_letter_index.page(only_own(caller, wanted), limit, before)
