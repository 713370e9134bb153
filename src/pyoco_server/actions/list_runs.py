"""Show many runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from pyoco_server.actions.read import may_list
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, Page, RunFilter
from pyoco_server.ports.runs.port import ABSENT, Absent, Stored, Withdrawn

__all__ = ["WholePage", "list_runs", "list_whole_runs"]

log = get_logger(__name__)


@dataclass(frozen=True)
class WholePage:
    """As a page of lines, with whole runs."""

    items: list[Run]
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
    found = await asyncio.gather(*(_find(backend, line.run_id) for line in page.items))
    runs = [item.run for item in found if isinstance(item, Stored) and may_list(caller, item.run)]
    return WholePage(runs, page.next)


async def _find(backend: GatewayBackend, run_id: str) -> Stored | Withdrawn | Absent:
    """One record that cannot be read must not hide the others."""
    try:
        return await backend.runs.find(run_id)
    except Corrupt as error:
        log.error("a stored run cannot be read; the list passes it over", run_id=run_id, error=error)
        return ABSENT
