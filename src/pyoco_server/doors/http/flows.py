"""`/flows`: the flows that live workers announce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.list_flows import list_flows, see_flow
from pyoco_server.core.flow_offers import FlowOffer, Wanted
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.shapes import Answer, Tag
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import state_of
from pyoco_server.doors.http.submissions import NAME_LENGTH_MAX
from pyoco_server.doors.http.tokens import read_token, write_token

__all__ = ["OPERATIONS"]

PAGE_MAX = 200
SEARCH_LENGTH_MAX = 200


class FlowShown(msgspec.Struct, kw_only=True):
    """A flow of an app, as the live workers that serve it announce it."""

    name: str
    app: str
    doc: Annotated[str, Meta(description="Empty if there is none, or no room for it.")]
    tags: Annotated[Sequence[str], Meta(description="The `tags` of its runs. Empty: as for any submission.")]
    tag: Annotated[str, Meta(description="The routing tag to submit it with.")]
    params: Annotated[
        Mapping[str, Any], Meta(description="JSON Schema of its params. Empty: unknown, there was no room for it.")
    ]
    returns: Annotated[
        Mapping[str, Any] | None, Meta(description="JSON Schema of its result. Null: not declared. Empty: any value.")
    ]
    schedule: Annotated[Mapping[str, Any] | None, Meta(description="Its own schedule: `when` and `timezone`.")]
    retry: Annotated[Mapping[str, Any] | None, Meta(description="The retry policy of its runs.")]
    timeout: Annotated[float | None, Meta(description="Seconds that one try of a run may take.")]
    tool: Annotated[bool, Meta(description="MCP clients may call it as the tool `flow_<name>`.")]
    workers: Annotated[Sequence[str], Meta(description="The ids of the live workers that offer it.")]
    conflict: Annotated[bool, Meta(description="Live workers announce different signatures; this is one of them.")]


class FlowList(msgspec.Struct):
    """A page of flows, by name."""

    items: list[FlowShown]
    next_cursor: str | None


class FlowsQuery(Shape):
    tag: Annotated[Tag, Meta(description="Flows of workers that serve this tag.")] | None = None
    q: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=SEARCH_LENGTH_MAX,
                description="Words that name, app or doc contain, all of them, in any case.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many at most.")] = 50
    cursor: Annotated[str, Meta(max_length=4096, description="`next_cursor` of the page before.")] | None = None


async def get_flows(request: Request) -> Response:
    """APP-11"""
    asked = read_query(FlowsQuery, request.query_params).checked()
    words = tuple(dict.fromkeys((asked.q or "").lower().split()))
    filters = ["flows", asked.tag, *words]
    after = "" if asked.cursor is None else read_token(asked.cursor, filters, str)
    offers = await list_flows(state_of(request).backend, Wanted(tag=asked.tag, words=words))
    rest = [each for each in offers if each.flow.name > after]
    page = rest[: asked.limit]
    token = write_token(page[-1].flow.name, filters) if len(rest) > len(page) else None
    return json_answer(FlowList([_shown(each) for each in page], token))


async def get_flow(request: Request) -> Response:
    """APP-11"""
    return json_answer(_shown(await see_flow(state_of(request).backend, request.path_params["name"])))


def _shown(offer: FlowOffer) -> FlowShown:
    return FlowShown(**offer.flow.document(), tag=offer.tag, workers=offer.workers, conflict=offer.conflict)


_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX},
    "description": "The name of the flow.",
}
_TAGS = ("flows",)
_OF_NO_TENANT = "As workers, flows belong to no tenant: every caller with access sees all of them."

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/flows",
        endpoint=get_flows,
        summary="List the flows that live workers announce, by name",
        description="Workers that serve an app announce its flows; workers with a resolver announce none. "
        f"{_OF_NO_TENANT}",
        query=FlowsQuery,
        answer=Answer(FlowList, "The flows."),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/flows/{name}",
        endpoint=get_flow,
        summary="Read a flow that live workers announce",
        description=f"404 if none does. {_OF_NO_TENANT}",
        parameters=(_NAME,),
        answer=Answer(FlowShown, "The flow."),
        errors=(404,),
        tail=True,
        tags=_TAGS,
    ),
)
