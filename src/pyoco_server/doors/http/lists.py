"""`GET /runs`: lists of runs, as an array or an object."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.list_runs import RunCounts, count_runs, list_full_runs, list_runs, params_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.cursors import write_cursor
from pyoco_server.doors.http.list_query import ListQuery, RunsQuery, read_list_query
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import has_already
from pyoco_server.doors.http.shown import shown_line, shown_listed, shown_params
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.ports.index.port import ListPosition, Summary

__all__ = ["OPERATIONS", "SCHEMAS"]


#: The list depends on the key, which may come in any of several headers: no shared cache may store it.
_PRIVATE = {"Cache-Control": "private, no-cache"}


async def get_runs(request: Request) -> Response:
    state, caller = state_of(request), caller_of(request)
    asked = read_list_query(request.query_params, caller.tenant_id)
    await state.settled()
    # Read before the list: a change in between makes the list newer than its tag, never older.
    etag = _etag(await state.backend.index.version(asked.wanted.tenant_id), caller)
    if not asked.is_full and has_already(request, etag):
        return Response(status_code=304, headers={"ETag": etag, **_PRIVATE})
    counts = await count_runs(state.backend, caller, asked.wanted) if asked.counts else None
    if asked.is_full:
        full_page = await list_full_runs(state.backend, caller, asked.wanted, asked.limit, asked.after)
        return _answer(asked, [_shown(item, caller) for item in full_page.items], full_page.next, counts, _PRIVATE)
    page = await list_runs(state.backend, caller, asked.wanted, asked.limit, asked.after)
    items = [shown_line(line, caller) for line in page.items]
    if asked.params:
        params = await params_of(state.backend, caller, page.items)
        for item in items:
            if item["run_id"] in params:
                item["params_preview"] = shown_params(params[item["run_id"]])
    return _answer(asked, items, page.next, counts, {"ETag": etag, **_PRIVATE})


def _shown(item: Run | Summary, caller: Caller) -> dict[str, Any]:
    return shown_listed(item, caller) if isinstance(item, Run) else shown_line(item, caller)


def _etag(version: str, caller: Caller) -> str:
    """Return the weak ETag of a list (SAFE-5, SAFE-11).

    The version covers the runs that this caller may see. A caller without a key has separate tags, so a list without
    the details of priced runs never validates one with them. Weak: it is not a digest of the list.
    """
    who = "redacted" if caller.tenant_id is None else f"tenant:{caller.tenant_id}"
    return f'W/"{hashlib.sha256(f"{version}:{who}".encode()).hexdigest()[:32]}"'


def _answer(
    asked: ListQuery,
    items: list[dict[str, Any]],
    following: ListPosition | None,
    counts: RunCounts | None,
    headers: dict[str, str],
) -> Response:
    """FLOW-107, FLOW-108"""
    if not asked.envelope:
        return json_answer(items, headers=headers)
    token = None if following is None else write_cursor(following, asked.wanted)
    counted = {} if counts is None else {"counts": counts}
    return json_answer({"items": items, "next_cursor": token, **counted}, headers=headers)


_ITEMS = schemas.array_of({"anyOf": [schemas.ref("RunSummary"), schemas.ref("RunSnapshot")]})

SCHEMAS: dict[str, Any] = {
    "RunCounts": schemas.object_of(
        {
            "by_status": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
            "counted_max": schemas.or_null({"type": "integer"}),
        },
        ["by_status", "counted_max"],
        "The matching runs of each status, whatever `status` asks for. A number as high as `counted_max` means: at "
        "least so many; null: all numbers are exact.",
    ),
    "RunListResponse": schemas.object_of(
        {"items": _ITEMS, "next_cursor": schemas.or_null(schemas.TEXT), "counts": schemas.ref("RunCounts")},
        ["items", "next_cursor"],
        "A page of runs. Send `next_cursor` as `cursor` with the same filters for the next page; null: the last one.",
    ),
}

_DESCRIPTION = """\
An array of runs; with `cursor`, `updated_after` or `envelope=true` an object with `items` and `next_cursor`.

`include=counts` adds the number of matching runs in each status. Each is counted in an index up to 10,000 (a search:
1,000), which takes a few milliseconds; without a filter and key all are known exactly and cost nothing.

The pages of one list keep the order of the first one: a run that changes meanwhile is neither skipped nor repeated, and
appears in its current state. Runs submitted meanwhile are not included; `updated_after` finds them.

`q` searches what a caller may see of a run: the first kilobyte each of its names and labels, its params and its error.

Priced runs are shown completely with a key of their tenant. With authentication off, a caller without a key sees only
their `run_id`, `kind`, `status`, `pack_type` and times, and `redacted: true`.

A list of summaries has an `ETag` that stays the same as long as no run changes that the caller may see: sent as
`If-None-Match`, it avoids an unchanged list. Send it with the same URL."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs",
        endpoint=get_runs,
        summary="List runs, newest update first",
        description=_DESCRIPTION,
        query=RunsQuery,
        parameters=(schemas.IF_NONE_MATCH,),
        answer=schemas.json_response({"anyOf": [_ITEMS, schemas.ref("RunListResponse")]}, "The newest runs."),
        more_answers={304: "`If-None-Match` matches: no run has changed since."},
        errors=(422,),
    ),
)
