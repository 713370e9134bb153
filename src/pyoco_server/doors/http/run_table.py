"""`GET /runs/table`: the runs of a list as CSV."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.list_runs import list_full_runs
from pyoco_server.core.priced.projection import is_withheld
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.run_table import param_names, table_text
from pyoco_server.doors.http.byte_stream import ByteStream
from pyoco_server.doors.http.list_query import RunsFilters, read_list_filters
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shown import shown_line, shown_listed
from pyoco_server.doors.http.state import State, caller_of, state_of
from pyoco_server.ports.index.port import ListPosition, RunFilter, Summary

__all__ = ["OPERATIONS"]

_ROWS_MAX = 10_000
_PAGE = 200
_HEADERS = {
    "Content-Type": "text/csv; charset=utf-8",
    "Content-Disposition": 'attachment; filename="runs.csv"',
    "Cache-Control": "private, no-store",
    "X-Content-Type-Options": "nosniff",
}


async def get_run_table(request: Request) -> Response:
    state, caller = state_of(request), caller_of(request)
    wanted = read_list_filters(request.query_params, caller.tenant_id)
    await state.settled()
    done = state.downloads.take(caller.tenant_id or "")
    try:
        chunks = _chunks(state, caller, wanted)
        first = await anext(chunks)  # an error before the first byte still gets an error response
    except BaseException:
        done()
        raise
    return ByteStream(first, chunks, _HEADERS, done)


async def _chunks(state: State, caller: Caller, wanted: RunFilter) -> AsyncGenerator[bytes, None]:
    """Page by page: memory does not grow with the table. The params of the first page have columns."""
    names: list[str] | None = None
    after: ListPosition | None = None
    for _ in range(_ROWS_MAX // _PAGE):
        page = await list_full_runs(state.backend, caller, wanted, _PAGE, after)
        rows = [_shown(item, caller) for item in page.items]
        with_head = names is None
        names = param_names(row for row in rows if isinstance(row, Run)) if names is None else names
        yield table_text(rows, names, with_head=with_head).encode("utf-8", "replace")
        after = page.next
        if after is None:
            return


def _shown(item: Run | Summary, caller: Caller) -> Run | dict[str, Any]:
    """Return the run itself, or what is left of a priced run of another tenant or an unreadable record (SAFE-5)."""
    if isinstance(item, Summary):
        return shown_line(item, caller)
    return shown_listed(item, caller) if is_withheld(caller, item.kind, item.tenant_id) else item


_DESCRIPTION = f"""\
The newest {_ROWS_MAX:,} runs that match, one row each: names, times, error, params and result. Cells are cut at 1,024
characters. The params of the first {_PAGE} rows have a column each, at most 50. A cell that a spreadsheet would take as
a formula begins with an apostrophe."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs/table",
        endpoint=get_run_table,
        summary="Download a list of runs as CSV",
        description=_DESCRIPTION,
        query=RunsFilters,
        answer={"description": "The table.", "content": {"text/csv": {"schema": {"type": "string"}}}},
        tags=("runs", "dashboard"),
    ),
)
