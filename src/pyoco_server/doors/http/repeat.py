"""`/runs/batch` and `/runs/{run_id}/rerun`: submit many runs, and resubmit one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.rerun import rerun
from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_many import submit_many
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import error_body, json_answer, status_of
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import Malformed, read_body
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import (
    BATCH_BYTES_MAX,
    BATCH_ITEMS_MAX,
    KEY_LENGTH_MAX,
    KEY_PARAMETER,
    REPLAYED,
    Item,
    read_batch,
    read_change,
    read_key,
)
from pyoco_server.errors import PyocoError

__all__ = ["OPERATIONS", "SCHEMAS"]

#: Parsing a larger body takes milliseconds and moves to a thread, so other requests are served meanwhile.
_READ_IN_PLACE_BYTES_MAX = 128 * 1024


async def rerun_run(request: Request) -> Response:
    state = state_of(request)
    key = read_key(request)
    change = read_change(await read_body(request))
    run_id = request.path_params["run_id"]
    accepted = await rerun(state.backend, caller_of(request), run_id, change, key)
    state.told(accepted.stored.revision)
    answer = {"run_id": accepted.stored.run.run_id, "status": "PENDING", "rerun_of": run_id}
    return json_answer(answer, headers=REPLAYED if accepted.replayed else None)


async def submit_batch(request: Request) -> Response:
    state = state_of(request)
    key = read_key(request)
    body = await read_body(request, BATCH_BYTES_MAX)
    asked = body, state.backend.config.default_tag, key
    if len(body) <= _READ_IN_PLACE_BYTES_MAX:
        items = read_batch(*asked)
    else:
        items = await asyncio.to_thread(read_batch, *asked)
    good = [item for item in items if isinstance(item, Item)]
    outcomes = _in_order(items, await submit_many(state.backend, caller_of(request), good))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    state.told(max((outcome.stored.revision for outcome in accepted), default=0))
    is_replay = bool(accepted) and all(outcome.replayed for outcome in accepted)
    answer = {
        "accepted": len(accepted),
        "refused": len(outcomes) - len(accepted),
        "items": [_line(index, outcome) for index, outcome in enumerate(outcomes)],
    }
    return json_answer(answer, headers=REPLAYED if is_replay else None)


def _in_order(
    items: Sequence[Item | Malformed], outcomes: Sequence[Accepted | PyocoError]
) -> list[Accepted | PyocoError]:
    """Merge the outcomes: items that were malformed were never submitted."""
    tried: Iterator[Accepted | PyocoError] = iter(outcomes)
    return [item if isinstance(item, Malformed) else next(tried) for item in items]


def _line(index: int, outcome: Accepted | PyocoError) -> dict[str, Any]:
    if isinstance(outcome, Accepted):
        line = {"index": index, "run_id": outcome.stored.run.run_id, "status": "PENDING"}
        return {**line, "replayed": True} if outcome.replayed else line
    body = error_body(outcome)
    if isinstance(outcome, Malformed):
        body["detail"] = body["errors"]  # FLOW-50, as for a single submission
    return {"index": index, "error": body, "status_code": status_of(outcome)}


_SUBMIT: dict[str, Any] = schemas.SCHEMAS["RunSubmitRequest"]["properties"]
_ACCEPTED: dict[str, Any] = schemas.SCHEMAS["RunAccepted"]["properties"]

SCHEMAS: dict[str, Any] = {
    "RunRerunRequest": schemas.object_of(
        {name: _SUBMIT[name] for name in ("params", "tag", "tags")},
        [],
        "The changes. `params` are merged over the old ones, and are allowed for named flows only.",
    ),
    "RunRepeated": schemas.object_of(
        _ACCEPTED | {"rerun_of": {"type": "string", "format": "uuid"}},
        ["run_id", "status", "rerun_of"],
        "The new run is recorded and queued; both are durable.",
    ),
    "RunBatchItem": schemas.object_of(
        _SUBMIT
        | {"idempotency_key": schemas.or_null({"type": "string", "pattern": "^[!-~]+$", "maxLength": KEY_LENGTH_MAX})},
        ["flow_name"],
        "A run of a named flow, with an optional idempotency key of its own.",
    ),
    "RunBatchRequest": schemas.object_of(
        {"runs": {"type": "array", "items": schemas.ref("RunBatchItem"), "maxItems": BATCH_ITEMS_MAX}},
        ["runs"],
        f"1 to {BATCH_ITEMS_MAX} submissions, {BATCH_BYTES_MAX >> 20} MiB at most.",
    ),
    "RunBatchLine": schemas.object_of(
        {"index": schemas.COUNT}
        | _ACCEPTED
        | {"replayed": schemas.FLAG, "error": schemas.ref("Error"), "status_code": schemas.COUNT},
        ["index"],
        "One item: either `run_id` and `status`, or `error` and the `status_code` it would have had on its own.",
    ),
    "RunBatchAnswer": schemas.object_of(
        {
            "accepted": schemas.COUNT,
            "refused": schemas.COUNT,
            "items": schemas.array_of(schemas.ref("RunBatchLine")),
        },
        ["accepted", "refused", "items"],
        "The outcome of each item, in order.",
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/runs/batch",
        endpoint=submit_batch,
        summary="Submit many runs of named flows",
        description=(
            "Items are independent: a refused item does not stop the others. With an `Idempotency-Key` each "
            "item without a key of its own gets one made from it and the item's index, so the same batch may be sent "
            "again. 503 if NATS failed for every item."
        ),
        parameters=(KEY_PARAMETER,),
        body=schemas.json_body(schemas.ref("RunBatchRequest")),
        answer=schemas.json_response(schemas.ref("RunBatchAnswer"), "The outcome of each item."),
        errors=(413, 422),
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/rerun",
        endpoint=rerun_run,
        summary="Run the same submission again",
        description=(
            "Submits the work of a run again as a new run, with the changes in the body, if any. The old run "
            "is not changed, whatever its state. 409 if its submission is no longer kept: an uploaded "
            "flow.yaml is kept for as long as the records of its runs. Params that were too large to be kept have to "
            "be given again, all of them."
        ),
        parameters=(schemas.path_run_id, KEY_PARAMETER),
        body=schemas.json_body(schemas.ref("RunRerunRequest"), required=False),
        answer=schemas.json_response(schemas.ref("RunRepeated"), "Recorded and queued."),
        errors=(404, 409, 413, 422),
    ),
)
