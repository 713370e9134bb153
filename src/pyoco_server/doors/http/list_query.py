"""Parse the query of `GET /runs`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta, field
from starlette.datastructures import QueryParams

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.programs.names import flow_name_of
from pyoco_server.core.states import UNKNOWN, RunState
from pyoco_server.doors.http.cursors import LENGTH_MAX as CURSOR_LENGTH_MAX
from pyoco_server.doors.http.cursors import BadCursor, read_cursor
from pyoco_server.doors.http.filters import ClientId, ExecName, Group, JobId, RunIdPrefix, Sha256, UnixSeconds
from pyoco_server.doors.http.reading import Reading, read_query
from pyoco_server.doors.http.requests import MalformedQuery, wants_records
from pyoco_server.doors.http.shapes import Request, one_of
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, RunFilter

__all__ = ["ListQuery", "RunsFilters", "RunsQuery", "read_list_filters", "read_list_query"]

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
SEARCH_LENGTH_MAX = 200
KINDS = ("exec", "flow", "pack")


class RunsFilters(Request):
    """FLOW-97 to FLOW-105, CLI-16."""

    q: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=SEARCH_LENGTH_MAX,
                description="Words that all have to occur in the flow name, tag, labels, param values or error of a "
                "run, or be a prefix of its id. Case does not matter; the first three letters of a word are enough.",
            ),
        ]
        | None
    ) = None
    status: (
        Annotated[str, one_of((*RunState, UNKNOWN), description="Exact status. `UNKNOWN`: its record cannot be read.")]
        | None
    ) = None
    flow: Annotated[str, Meta(description="Exact flow name.")] | None = None
    tag: Annotated[str, Meta(description="The routing tag, or one of the labels.")] | None = None
    kind: Annotated[str, one_of(KINDS, description="Kind of run.")] | None = None
    workflow_yaml_sha256: Annotated[Sha256, Meta(description="Runs of this flow.yaml.")] | None = None
    run_id: Annotated[RunIdPrefix, Meta(description="Prefix of the run id, at least 4 characters.")] | None = None
    job_id: Annotated[JobId, Meta(description="Runs of this job: one in each group.")] | None = None
    client_id: Annotated[ClientId, Meta(description="Jobs of this client.")] | None = None
    group: Annotated[Group, Meta(description="Jobs of this group.")] | None = None
    exec: Annotated[ExecName, Meta(description="Jobs of this program, as `flow=exec:NAME`.")] | None = None
    waiting: (
        Annotated[str, one_of(WaitsFor, description="Runs that wait for their time: delayed, or for the next try.")]
        | None
    ) = None


class RunsQuery(RunsFilters):
    """What a list shows of the runs that match."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Page size.")] = LIMIT_DEFAULT
    include: Annotated[
        list[str],
        Meta(
            description="`full`, `all` or `records`: complete snapshots instead of summaries. `counts`: the number of "
            "runs in each status, too. `params`: a line of text with the params of each summary."
        ),
    ] = field(default_factory=list)
    updated_after: (
        Annotated[UnixSeconds, Meta(description="Only runs updated later than this, in unix seconds.")] | None
    ) = None
    cursor: (
        Annotated[
            str,
            Meta(
                description="`next_cursor` of the page before, with the same filters.",
                extra_json_schema={"maxLength": CURSOR_LENGTH_MAX},
            ),
        ]
        | None
    ) = None
    envelope: Annotated[bool, Meta(description="`true`: respond with an object instead of an array.")] = False


@dataclass(frozen=True)
class ListQuery:
    #: Includes the caller's tenant, which is part of what a cursor is bound to.
    wanted: RunFilter
    limit: int
    after: ListPosition | None
    #: Return complete snapshots instead of list entries.
    is_full: bool
    #: Count the matching runs by status.
    counts: bool
    #: Show the params of each run in its list entry.
    params: bool
    #: Return an object with `items` and `next_cursor` instead of an array (FLOW-107, FLOW-108).
    envelope: bool


def read_list_query(query: QueryParams, tenant_id: str | None) -> ListQuery:
    """Raises MalformedQuery with every bad value and unknown name (FLOW-106, STRICT-3)."""
    reading = read_query(RunsQuery, query)
    asked = reading.value
    wanted = replace(_filter(reading, tenant_id), updated_after=asked.updated_after)
    after = _position(reading, wanted)
    reading.checked(MalformedQuery)
    counts = "counts" in asked.include
    is_object = asked.envelope or counts or after is not None or wanted.updated_after is not None
    return ListQuery(
        wanted, asked.limit, after, wants_records(asked.include), counts, "params" in asked.include, is_object
    )


def read_list_filters(query: QueryParams, tenant_id: str | None) -> RunFilter:
    """Raises MalformedQuery, as `read_list_query` does."""
    reading = read_query(RunsFilters, query)
    wanted = _filter(reading, tenant_id)
    reading.checked(MalformedQuery)
    return wanted


def _filter(reading: Reading[Any], tenant_id: str | None) -> RunFilter:
    asked: RunsFilters = reading.value
    return RunFilter(
        tenant_id=tenant_id or EVERYBODY,
        status=asked.status,
        flow=_flow(reading),
        tag=asked.tag,
        kind=asked.kind,
        workflow_yaml_sha256=_lower(asked.workflow_yaml_sha256),
        run_id_prefix=_lower(asked.run_id),
        job_id=asked.job_id,
        client_id=asked.client_id,
        group=asked.group,
        waits=asked.waiting,
        search=asked.q,
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _flow(reading: Reading[Any]) -> str | None:
    """A program matches as a flow name (GRID-150): `exec=calcA` is `flow=exec:calcA`."""
    asked: RunsFilters = reading.value
    flow, program = asked.flow, asked.exec
    if program is None:
        return flow
    if flow not in {None, flow_name_of(program)}:
        reading.wrong("exec", "is another program than `flow` says: give one or the other")
    return flow_name_of(program)


def _position(reading: Reading[RunsQuery], wanted: RunFilter) -> ListPosition | None:
    token = reading.value.cursor
    if token is None:
        return None
    try:
        place, is_of = read_cursor(token)
    except BadCursor as error:
        reading.wrong("cursor", str(error))
        return None
    # A cursor can only be checked against valid filters.
    if not reading.problems and not is_of(wanted):
        reading.wrong("cursor", "belongs to a list with other filters; send it with those of the first page")
    return place
