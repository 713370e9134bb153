"""Show many runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from pyoco_server.actions.read import may_list
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import UNKNOWN
from pyoco_server.errors import RecordUnreadable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, Page, RunFilter, Summary
from pyoco_server.ports.runs.port import Stored

__all__ = ["WholePage", "list_runs", "list_whole_runs"]


@dataclass(frozen=True)
class WholePage:
    """As a page of lines, with whole runs. A run whose record cannot be decoded is its line, as UNKNOWN (SAFE-16)."""

    items: list[Run | Summary]
    next: ListPosition | None


async def list_runs(
    backend: GatewayBackend, caller: Caller, wanted: RunFilter, limit: int, after: ListPosition | None = None
) -> Page:
    """The newest runs that the caller may list, as lines: one look at the index, no round trip. Priced runs are among
    them for a caller without a key, too: show those by `redacted` (SAFE-5)."""
    mine = replace(wanted, tenant_id=caller.tenant_id or EVERYBODY)
    return await backend.index.page(mine, limit, after)


async def list_whole_runs(
    backend: GatewayBackend, caller: Caller, wanted: RunFilter, limit: int, after: ListPosition | None = None
) -> WholePage:
    """As `list_runs`, each whole: `limit` reads at once. A run that has gone is left out (FLOW-112)."""
    page = await list_runs(backend, caller, wanted, limit, after)
    found = await asyncio.gather(*(_find(backend, line) for line in page.items))
    items = [item for item in found if isinstance(item, Summary) or (item is not None and may_list(caller, item))]
    return WholePage(items, page.next)


async def _find(backend: GatewayBackend, line: Summary) -> Run | Summary | None:
    """None: the run has gone since. One record that cannot be decoded must not hide the others."""
    try:
        found = await backend.runs.find(line.run_id)
    except RecordUnreadable:  # reported when it was stored, or first read
        return replace(line, status=UNKNOWN)
    return found.run if isinstance(found, Stored) else None
