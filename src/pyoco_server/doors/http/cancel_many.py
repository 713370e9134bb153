"""`POST /runs/cancel`: request the cancellation of many runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.cancel_many import Cancelled, Selection, cancel_many
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import decode, read_body, wrong
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index.port import RunFilter

__all__ = ["OPERATIONS", "SCHEMAS"]

RUN_IDS_MAX = 1000
LIMIT_DEFAULT = 1000
LIMIT_MAX = 10_000

_Name = Annotated[str, Meta(min_length=1, max_length=512)]


class _CancelMany(msgspec.Struct, forbid_unknown_fields=True):
    """A misspelt filter would cancel every run: unlike elsewhere (FLOW-44), unknown fields are refused here."""

    status: Literal["PENDING", "RUNNING"] | None = None
    flow: _Name | None = None
    tag: _Name | None = None
    kind: Literal["flow", "exec", "pack"] | None = None
    workflow_yaml_sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    submitted_before: float | None = None
    run_ids: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=RUN_IDS_MAX)] | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] | None = None
    all: bool = False


_read = msgspec.json.Decoder(_CancelMany).decode
#: Each filter narrows the selection.
_FILTERS = ("status", "flow", "tag", "kind", "workflow_yaml_sha256", "submitted_before")


def read_selection(body: bytes) -> tuple[Selection, str | None]:
    """Read which runs to cancel, and the reason. Raises Malformed with every problem and its location."""
    wire: _CancelMany = decode(_read, body)
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
    selection = Selection(
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
    state.told(done.revision)
    return json_answer(_counts(done))


def _counts(done: Cancelled) -> dict[str, Any]:
    return {
        "matched": done.matched,
        "asked": done.asked,
        "already_cancelling": done.already_cancelling,
        "already_ended": done.already_ended,
        "not_found": done.not_found,
        "failed": done.failed,
        "more": done.more,
    }


_NAME = {"type": "string", "minLength": 1, "maxLength": 512}
_KIND = {"type": "string", "enum": ["flow", "exec", "pack"]}
_COUNT = {"type": "integer", "minimum": 0}

SCHEMAS: dict[str, Any] = {
    "RunsCancelRequest": schemas.object_of(
        {
            "status": schemas.or_null({"type": "string", "enum": ["PENDING", "RUNNING"]}),
            "flow": schemas.or_null(_NAME),
            "tag": schemas.or_null(_NAME),
            "kind": schemas.or_null(_KIND),
            "workflow_yaml_sha256": schemas.or_null({"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
            "submitted_before": schemas.or_null(schemas.NUMBER),
            "run_ids": schemas.or_null(
                {"type": "array", "items": {"type": "string", "maxLength": 128}, "maxItems": RUN_IDS_MAX}
            ),
            "reason": schemas.or_null({"type": "string", "maxLength": 4096}),
            "limit": schemas.or_null({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}),
            "all": {"type": "boolean", "default": False},
        },
        [],
        "Which runs: filters (all must match), `run_ids`, or `all`. Unknown fields are refused.",
    )
    | {"additionalProperties": False},
    "RunsCancelled": schemas.object_of(
        {
            "matched": _COUNT | {"description": "Matching runs: the sum of `failed` and the next three."},
            "asked": _COUNT | {"description": "Cancellation was requested by this call."},
            "already_cancelling": _COUNT,
            "already_ended": _COUNT,
            "not_found": _COUNT | {"description": "Of `run_ids`: unknown, or another tenant's."},
            "failed": _COUNT | {"description": "The cancellation failed, or its outcome is unknown: try again."},
            "more": schemas.FLAG | {"description": "More runs may match: repeat the request."},
        },
        ["matched", "asked", "already_cancelling", "already_ended", "not_found", "failed", "more"],
        "The outcome in numbers.",
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/runs/cancel",
        endpoint=cancel_runs,
        summary="Cancel many runs",
        description="Cancels each matching run that has not ended, like a single cancel request. A pending run "
        "never starts. Priced runs cannot be cancelled: those selected by `run_ids` or `kind` count as `failed`, "
        "others are skipped. With `status`, a run that has left that state meanwhile is skipped. Takes 20 s at most.",
        body=schemas.json_body(schemas.ref("RunsCancelRequest")),
        answer=schemas.json_response(schemas.ref("RunsCancelled"), "The outcome in numbers."),
        errors=(413, 422),
    ),
)
