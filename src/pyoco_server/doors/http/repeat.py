"""`/runs/batch` and `/runs/{run_id}/rerun`: submit many runs, and resubmit one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.rerun import rerun
from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_many import submit_many
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import error_body, json_answer, status_of
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import Malformed, read_body
from pyoco_server.doors.http.shapes import FLOW_WARNING, Answer, Body, RunId, refers_to
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import (
    BATCH_BYTES_MAX,
    KEY_PARAMETER,
    REPLAYED,
    Item,
    RunAccepted,
    RunBatchItem,
    RunBatchRequest,
    RunRerunRequest,
    defaults_of,
    read_batch,
    read_change,
    read_key,
    warning_of,
)
from pyoco_server.errors import PyocoError

__all__ = ["OPERATIONS"]

#: Parsing a larger body takes milliseconds and moves to a thread, so other requests are served meanwhile.
_READ_IN_PLACE_BYTES_MAX = 128 * 1024


class RunRepeated(RunAccepted, kw_only=True):
    """The new run is recorded and queued; both are durable."""

    rerun_of: RunId


class RunBatchLine(msgspec.Struct):
    """One item: either `run_id` and `status`, or `error` and the `status_code` it would have had on its own."""

    index: int
    run_id: RunId | msgspec.UnsetType = msgspec.UNSET
    status: Literal["PENDING"] | msgspec.UnsetType = msgspec.UNSET
    replayed: bool | msgspec.UnsetType = msgspec.UNSET
    warning: Annotated[str, Meta(description=FLOW_WARNING)] | msgspec.UnsetType = msgspec.UNSET
    error: Annotated[dict[str, Any], refers_to("Error")] | msgspec.UnsetType = msgspec.UNSET
    status_code: int | msgspec.UnsetType = msgspec.UNSET


class RunBatchAnswer(msgspec.Struct):
    """The outcome of each item, in order."""

    accepted: int
    refused: int
    items: list[RunBatchLine]


async def rerun_run(request: Request) -> Response:
    state = state_of(request)
    key = read_key(request)
    change = read_change(await read_body(request), defaults_of(state.backend))
    run_id = request.path_params["run_id"]
    accepted = await rerun(state.backend, caller_of(request), run_id, change, key)
    state.note_revision(accepted.stored.revision)
    new_id, warning = accepted.stored.run.run_id, warning_of(accepted)
    answer = RunRepeated(run_id=new_id, status="PENDING", warning=warning, rerun_of=run_id)
    return json_answer(answer, headers=REPLAYED if accepted.replayed else None)


async def submit_batch(request: Request) -> Response:
    state = state_of(request)
    key = read_key(request)
    body = await read_body(request, BATCH_BYTES_MAX)
    asked = body, defaults_of(state.backend), key
    if len(body) <= _READ_IN_PLACE_BYTES_MAX:
        read = read_batch(*asked)
    else:
        read = await asyncio.to_thread(read_batch, *asked)
    good = [item for item in read if isinstance(item, Item)]
    outcomes = _in_order(read, await submit_many(state.backend, caller_of(request), good))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    state.note_revision(max((outcome.stored.revision for outcome in accepted), default=0))
    is_replay = bool(accepted) and all(outcome.replayed for outcome in accepted)
    items = [_line(index, outcome) for index, outcome in enumerate(outcomes)]
    answer = RunBatchAnswer(accepted=len(accepted), refused=len(outcomes) - len(accepted), items=items)
    return json_answer(answer, headers=REPLAYED if is_replay else None)


def _in_order(
    items: Sequence[Item | Malformed], outcomes: Sequence[Accepted | PyocoError]
) -> list[Accepted | PyocoError]:
    """Merge the outcomes: items that were malformed were never submitted."""
    tried: Iterator[Accepted | PyocoError] = iter(outcomes)
    return [item if isinstance(item, Malformed) else next(tried) for item in items]


def _line(index: int, outcome: Accepted | PyocoError) -> RunBatchLine:
    if isinstance(outcome, Accepted):
        replayed = True if outcome.replayed else msgspec.UNSET
        run_id, warning = outcome.stored.run.run_id, warning_of(outcome)
        return RunBatchLine(index, run_id=run_id, status="PENDING", replayed=replayed, warning=warning)
    body = error_body(outcome)
    if isinstance(outcome, Malformed):
        body["detail"] = body["errors"]  # FLOW-50, as for a single submission
    return RunBatchLine(index, error=body, status_code=status_of(outcome))


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
        body=Body(RunBatchRequest, parts=(RunBatchItem,)),
        answer=Answer(RunBatchAnswer, "The outcome of each item."),
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
        body=Body(RunRerunRequest, required=False),
        answer=Answer(RunRepeated, "Recorded and queued."),
        errors=(404, 409, 413, 422),
    ),
)
