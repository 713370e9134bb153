"""`POST /runs/cancel`: request the cancellation of many runs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.cancel_many import RunSelection, cancel_many
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.filters import Sha256
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_document
from pyoco_server.doors.http.requests import read_body, wrong
from pyoco_server.doors.http.shapes import Answer, Body, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import REASON_LENGTH_MAX
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index.port import RunFilter

__all__ = ["OPERATIONS"]

RUN_IDS_MAX = 1000
LIMIT_DEFAULT = 1000
LIMIT_MAX = 10_000

_Name = Annotated[str, Meta(min_length=1, max_length=512)]


class RunsCancelRequest(Shape):
    """Which runs: filters (all must match), `run_ids`, or `all`. Unknown fields are refused."""

    status: Annotated[str, one_of(("PENDING", "RUNNING"))] | None = None
    flow: _Name | None = None
    tag: _Name | None = None
    kind: Annotated[str, one_of(("flow", "exec", "pack"))] | None = None
    workflow_yaml_sha256: Sha256 | None = None
    submitted_before: float | None = None
    run_ids: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=RUN_IDS_MAX)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, extra_json_schema={"default": LIMIT_DEFAULT})] | None = None
    all: bool = False


class RunsCancelled(msgspec.Struct):
    """The outcome in numbers."""

    matched: Annotated[int, Meta(ge=0, description="Matching runs: the sum of `failed` and the next three.")]
    asked: Annotated[int, Meta(ge=0, description="Cancellation was requested by this call.")]
    already_cancelling: Annotated[int, Meta(ge=0)]
    already_ended: Annotated[int, Meta(ge=0)]
    not_found: Annotated[int, Meta(ge=0, description="Of `run_ids`: unknown, or another tenant's.")]
    failed: Annotated[int, Meta(ge=0, description="The cancellation failed, or its outcome is unknown: try again.")]
    more: Annotated[bool, Meta(description="More runs may match: repeat the request.")]


#: Each filter narrows the selection.
_FILTERS = ("status", "flow", "tag", "kind", "workflow_yaml_sha256", "submitted_before")


def read_selection(body: bytes) -> tuple[RunSelection, str | None]:
    """Read which runs to cancel, and the reason. Raises Malformed with every problem and its location."""
    wire = read_document(RunsCancelRequest, body)
    given = [name for name in _FILTERS if getattr(wire, name) is not None]
    if wire.run_ids is not None and (given or wire.all):
        raise wrong(("body", "run_ids"), "cannot be combined with filters or `all`: give one or the other", "forbidden")
    if wire.run_ids is None and not given and not wire.all:
        message = 'nothing says which runs to stop: give a filter, `run_ids`, or `"all": true`'
        raise wrong(("body",), message, "missing")
    sha256 = wire.workflow_yaml_sha256
    wanted = RunFilter(
        status=wire.status,
        flow=wire.flow,
        tag=wire.tag,
        kind=wire.kind,
        workflow_yaml_sha256=sha256.lower() if sha256 is not None else None,
    )
    selection = RunSelection(
        run_ids=None if wire.run_ids is None else tuple(wire.run_ids),
        wanted=wanted,
        submitted_before=wire.submitted_before,
        limit=wire.limit or LIMIT_DEFAULT,
    )
    return selection, wire.reason


async def cancel_runs(request: Request) -> Response:
    state = state_of(request)
    selection, reason = read_selection(await read_body(request))
    if selection.run_ids is None:
        await state.settled()  # the selection must include runs submitted just before
    elif not state.backend.is_up():
        raise Unavailable("runs cannot be stopped while there is no connection to NATS")
    done = await cancel_many(state.backend, caller_of(request), selection, reason)
    state.note_revision(done.revision)
    answer = RunsCancelled(
        matched=done.matched,
        asked=done.asked,
        already_cancelling=done.already_cancelling,
        already_ended=done.already_ended,
        not_found=done.not_found,
        failed=done.failed,
        more=done.more,
    )
    return json_answer(answer)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/runs/cancel",
        endpoint=cancel_runs,
        summary="Cancel many runs",
        description="Cancels each matching run that has not ended, like a single cancel request. A pending run "
        "never starts. Priced runs cannot be cancelled: those selected by `run_ids` or `kind` count as `failed`, "
        "others are skipped. With `status`, a run that has left that state meanwhile is skipped. Takes 20 s at most.",
        body=Body(RunsCancelRequest),
        answer=Answer(RunsCancelled, "The outcome in numbers."),
        errors=(413, 422),
    ),
)
