"""List runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.actions.read import may_list
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import UNKNOWN
from pyoco_server.errors import RecordUnreadable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, Page, RunFilter, Summary
from pyoco_server.ports.runs.port import Stored

__all__ = ["FullPage", "RunCounts", "count_runs", "list_full_runs", "list_runs", "params_of"]


#: How far runs of one status are counted: about a millisecond. A search reads the row of each run it counts.
_COUNTED_MAX = 10_000
_COUNTED_MAX_SEARCH = 1_000


@dataclass(frozen=True)
class RunCounts:
    by_status: dict[str, int]
    #: A number this high means: at least so many. None: all numbers are exact.
    counted_max: int | None


@dataclass(frozen=True)
class FullPage:
    """A page with complete runs. A run whose record cannot be decoded appears as its list line, as UNKNOWN
    (SAFE-16)."""

    items: list[Run | Summary]
    next: ListPosition | None


async def list_runs(
    backend: GatewayBackend, caller: Caller, wanted: RunFilter, limit: int, after: ListPosition | None = None
) -> Page:
    """Return the newest runs that the caller may list, as lines: one index read, no round trip.

    For a caller without a key the page includes priced runs; pass those through `redacted` before showing them
    (SAFE-5).
    """
    own_runs = replace(wanted, tenant_id=caller.tenant_id or EVERYBODY)
    return await backend.index.page(own_runs, limit, after)


async def count_runs(backend: GatewayBackend, caller: Caller, wanted: RunFilter) -> RunCounts:
    """Count the runs that the caller may list, by status, whatever status is wanted."""
    every = replace(wanted, tenant_id=caller.tenant_id or EVERYBODY, status=None)
    limit = _COUNTED_MAX if wanted.search is None else _COUNTED_MAX_SEARCH
    by_status = await backend.index.count_by_status(every, limit)
    return RunCounts(by_status, None if every == RunFilter() else limit)


async def list_full_runs(
    backend: GatewayBackend, caller: Caller, wanted: RunFilter, limit: int, after: ListPosition | None = None
) -> FullPage:
    """List runs as `list_runs` does, but complete: `limit` concurrent reads. Deleted runs are left out (FLOW-112)."""
    page = await list_runs(backend, caller, wanted, limit, after)
    found = await asyncio.gather(*(_find(backend, line) for line in page.items))
    items = [item for item in found if isinstance(item, Summary) or (item is not None and may_list(caller, item))]
    return FullPage(items, page.next)


async def params_of(backend: GatewayBackend, caller: Caller, lines: Sequence[Summary]) -> dict[str, Mapping[str, Any]]:
    """Return the params of the runs of a page: one concurrent read for each. Deleted and unreadable ones have none."""
    found = await asyncio.gather(*(_find(backend, line) for line in lines))
    runs = (run for run in found if isinstance(run, Run) and may_list(caller, run))
    return {run.run_id: run.params for run in runs if run.params}


async def _find(backend: GatewayBackend, line: Summary) -> Run | Summary | None:
    """Return the complete run. Returns None if it was deleted; one undecodable record must not hide the others."""
    try:
        found = await backend.runs.find(line.run_id)
    except RecordUnreadable:  # logged when it was stored or first read
        return replace(line, status=UNKNOWN)
    return found.run if isinstance(found, Stored) else None
