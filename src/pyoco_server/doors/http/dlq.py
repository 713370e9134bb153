"""`/dlq`: the dead letters."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.count_dead_letters import count_dead_letters
from pyoco_server.actions.delete_dead_letter import delete_dead_letter
from pyoco_server.actions.delete_dead_letters import delete_dead_letters
from pyoco_server.actions.list_dead_letters import list_dead_letters
from pyoco_server.actions.programs.requeue import requeue
from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.redrive_many import PROBLEMS_MAX, redrive_many
from pyoco_server.actions.show_dead_letter import find_dead_letter, show_dead_letter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.record import EXEC
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.dead_letter_requests import (
    DeadLettersDeletion,
    DeadLettersQuery,
    DeadLettersRedriveRequest,
    read_letter_deletion,
    read_letter_query,
    read_letter_selection,
    write_cursor,
)
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.shapes import Body
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import REPLAYED, RunRerunRequest, defaults_of, read_change
from pyoco_server.errors import PyocoError
from pyoco_server.ports.dead_letters.port import StoredDeadLetter

__all__ = ["OPERATIONS", "SCHEMAS"]

_DETAIL_LENGTH_MAX = 500


async def get_letters(request: Request) -> Response:
    state = state_of(request)
    asked = read_letter_query(request.query_params)
    await state.letters_settled()
    page = await list_dead_letters(state.backend, caller_of(request), asked.wanted, asked.limit, asked.before)
    items = [_line(item) for item in page.items]
    return json_answer({"items": items, "next_cursor": write_cursor(page.next_before), "next": page.next_before})


async def get_letter_counts(request: Request) -> Response:
    state = state_of(request)
    await state.letters_settled()
    counts = await count_dead_letters(state.backend, caller_of(request))
    return json_answer({"total": counts.total, "groups": [vars(group) for group in counts.groups]})


async def get_letter(request: Request) -> Response:
    view = await show_dead_letter(state_of(request).backend, caller_of(request), request.path_params["letter_id"])
    letter = _line(view.found)
    if view.run_status is not None:
        letter["run_status"] = view.run_status
    return json_answer(letter | {"redrivable": view.redrivable})


async def redrive_letter(request: Request) -> Response:
    state, letter_id = state_of(request), request.path_params["letter_id"]
    change = read_change(await read_body(request), defaults_of(state.backend))
    accepted = await redrive(state.backend, caller_of(request), letter_id, change)
    state.told(accepted.stored.revision)
    run = accepted.stored.run
    answer = {"id": letter_id, "run_id": run.run_id, "rerun_of": run.rerun_of, "status": "PENDING"}
    return json_answer(answer, headers=REPLAYED if accepted.replayed else None)


async def requeue_letter(request: Request) -> Response:
    """GRID-88: resubmit the job of a program. The work of a flow is redriven under either path."""
    state, caller, letter_id = state_of(request), caller_of(request), request.path_params["letter_id"]
    found = await find_dead_letter(state.backend, caller, letter_id)
    if not found.letter.is_exec:
        accepted = await redrive(state.backend, caller, letter_id)
        state.told(accepted.stored.revision)
        return json_answer({"run_id": accepted.stored.run.run_id}, headers=REPLAYED if accepted.replayed else None)
    submitted = await requeue(state.backend, caller, found)
    state.told(submitted.revision)
    run = submitted.run
    answer = {"run_id": run.run_id, "job_id": run.program.job_id if run.program is not None else None}
    return json_answer(answer, headers=REPLAYED if submitted.duplicate else None)


async def redrive_letters(request: Request) -> Response:
    state = state_of(request)
    wanted, span = read_letter_selection(await read_body(request))
    await state.letters_settled()
    done = await redrive_many(state.backend, caller_of(request), wanted, span)
    state.told(done.revision)
    answer = {
        "matched": done.matched,
        "redriven": done.redriven,
        "failed": done.failed,
        "more": done.next_before is not None,
        "next_cursor": write_cursor(done.next_before),
        "problems": [_problem(letter_id, error) for letter_id, error in done.problems],
    }
    return json_answer(answer)


async def delete_one_letter(request: Request) -> Response:
    letter_id = request.path_params["letter_id"]
    await delete_dead_letter(state_of(request).backend, caller_of(request), letter_id)
    return json_answer({"id": letter_id, "deleted": True})


async def delete_many_letters(request: Request) -> Response:
    state = state_of(request)
    wanted, span = read_letter_deletion(request.query_params)
    await state.letters_settled()
    done = await delete_dead_letters(state.backend, caller_of(request), wanted, span)
    return json_answer({"matched": done.matched, "deleted": done.deleted, "more": done.more})


def _line(item: StoredDeadLetter) -> dict[str, Any]:
    """FLOW-331 to FLOW-334: `error` always, other fields if known. The job of a program is never exposed."""
    known = {name: value for name, value in vars(item.letter).items() if value is not None or name == "error"}
    known.pop("job", None)
    return {"id": str(item.letter_id), **known}


def _problem(letter_id: int, error: PyocoError) -> dict[str, str]:
    return {"id": str(letter_id), "err_id": error.text.err_id, "detail": str(error)[:_DETAIL_LENGTH_MAX]}


_ID = {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "The letter's place in its stream."}
_UUID = {"type": "string", "format": "uuid"}
_COUNT = {"type": "integer", "minimum": 0}
_CURSOR = schemas.or_null(schemas.TEXT) | {
    "description": "Pass it as `cursor` to get the next page; null: there is none."
}
_REASON = {"type": "string", "description": f"One of {', '.join(DeadReason)}, or a text written by other software."}

_LETTER: dict[str, Any] = {
    "id": _ID,
    "timestamp": schemas.NUMBER,
    "reason": _REASON,
    "error": schemas.or_null(schemas.TEXT),
    "tag": schemas.TEXT,
    "run_id": schemas.TEXT,
    "flow_name": schemas.TEXT,
    "tags": schemas.TEXTS,
    "worker_id": schemas.TEXT,
    "num_delivered": _COUNT,
    "subject": schemas.TEXT | {"description": "The subject of the original job."},
    "tenant_id": schemas.TEXT,
    "api_key_id": schemas.TEXT,
    "kind": {
        "type": "string",
        "enum": [EXEC],
        "description": "`exec` for programs. The following fields exist for programs only.",
    },
    "job_id": _UUID,
    "group": schemas.TEXT,
    "exec_name": schemas.TEXT,
    "client_id": schemas.TEXT,
    "attempt": _COUNT,
    "lost": _COUNT,
    "exit_code": schemas.COUNT,
    "error_code": schemas.TEXT,
}
_ALWAYS = ["id", "timestamp", "reason", "error", "tag"]

SCHEMAS: dict[str, Any] = {
    "DeadLetter": schemas.object_of(
        _LETTER,
        _ALWAYS,
        "A job set aside, and the reason. Unknown fields are left out; it contains neither params nor YAML.",
    ),
    "DeadLetterDetail": schemas.object_of(
        _LETTER
        | {
            "run_status": schemas.STATUS
            | {"description": "The current status of its run; missing if the run is no longer kept."},
            "redrivable": schemas.FLAG | {"description": "Whether the data needed for a redrive still exists."},
        },
        [*_ALWAYS, "redrivable"],
        "A job set aside, and the current state of its run.",
    ),
    "DeadLetterPage": schemas.object_of(
        {
            "items": schemas.array_of(schemas.ref("DeadLetter")),
            "next_cursor": _CURSOR,
            "next": schemas.or_null(schemas.COUNT) | {"description": "The same position, as a number for `before`."},
        },
        ["items", "next_cursor", "next"],
        "Some letters, the newest first.",
    ),
    "DeadLetterGroup": schemas.object_of(
        {
            "reason": _REASON,
            "flow_name": schemas.or_null(schemas.TEXT) | {"description": "null: unknown."},
            "count": _COUNT,
            "newest_at": schemas.NUMBER,
        },
        ["reason", "flow_name", "count", "newest_at"],
        "Letters of one reason and one flow.",
    ),
    "DeadLetterCounts": schemas.object_of(
        {"total": _COUNT, "groups": schemas.array_of(schemas.ref("DeadLetterGroup")) | {"maxItems": 1000}},
        ["total", "groups"],
        "Number of letters, the largest groups first.",
    ),
    "DeadLetterRedriven": schemas.object_of(
        {"id": _ID, "run_id": _UUID, "rerun_of": _UUID, "status": {"type": "string", "enum": ["PENDING"]}},
        ["id", "run_id", "rerun_of", "status"],
        "The new run is recorded and queued, and the letter is deleted.",
    ),
    "DeadLetterRequeued": schemas.object_of(
        {"run_id": _UUID, "job_id": _UUID | {"description": "For programs only."}},
        ["run_id"],
        "The new run is recorded and queued. The letter of a program stays.",
    ),
    "DeadLetterProblem": schemas.object_of(
        {"id": _ID, "err_id": schemas.TEXT, "detail": schemas.TEXT},
        ["id", "err_id", "detail"],
        "Why one letter could not be redriven.",
    ),
    "DeadLettersRedriven": schemas.object_of(
        {
            "matched": _COUNT | {"description": "Letters looked at; some may have gone just before."},
            "redriven": _COUNT,
            "failed": _COUNT | {"description": "Cannot be redriven; they stay."},
            "more": schemas.FLAG | {"description": "More letters may match."},
            "next_cursor": _CURSOR | {"description": "Continues after the letters that failed; null: none is left."},
            "problems": schemas.array_of(schemas.ref("DeadLetterProblem")) | {"maxItems": PROBLEMS_MAX},
        },
        ["matched", "redriven", "failed", "more", "next_cursor", "problems"],
        "What became of the request, in numbers.",
    ),
    "DeadLetterDeleted": schemas.object_of(
        {"id": _ID, "deleted": {"type": "boolean", "enum": [True]}}, ["id", "deleted"], "The letter is deleted."
    ),
    "DeadLettersDeleted": schemas.object_of(
        {
            "matched": _COUNT | {"description": "Letters looked at; some may have gone just before."},
            "deleted": _COUNT,
            "more": schemas.FLAG | {"description": "More letters may match: repeat the request."},
        },
        ["matched", "deleted", "more"],
        "What became of the request, in numbers.",
    ),
}

_LETTER_ID: dict[str, Any] = {
    "name": "letter_id",
    "in": "path",
    "required": True,
    "schema": _ID,
    "description": "The `id` of a letter in a list.",
}
_TAGS = ("dead letters",)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/dlq",
        endpoint=get_letters,
        summary="List dead letters, newest first",
        description="A letter that expires, or is deleted through another gateway, leaves the list in a few seconds.",
        query=DeadLettersQuery,
        answer=schemas.json_response(schemas.ref("DeadLetterPage"), "One page."),
        errors=(422,),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/dlq/counts",
        endpoint=get_letter_counts,
        summary="Count dead letters by reason and flow",
        answer=schemas.json_response(schemas.ref("DeadLetterCounts"), "The counts, kept and never scanned."),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/dlq/{letter_id}",
        endpoint=get_letter,
        summary="Read a dead letter",
        parameters=(_LETTER_ID,),
        answer=schemas.json_response(schemas.ref("DeadLetterDetail"), "The letter, and the current status of its run."),
        errors=(404,),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/dlq/redrive",
        endpoint=redrive_letters,
        summary="Redrive many dead letters",
        description="Redrives each letter as a single request would, newest first. Takes 20 s at most. Letters added "
        "meanwhile are left for the next request; with `up_to`, also those added after the given letter.",
        body=Body(DeadLettersRedriveRequest),
        answer=schemas.json_response(schemas.ref("DeadLettersRedriven"), "How many were redriven."),
        errors=(413, 422),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/dlq/{letter_id}/redrive",
        endpoint=redrive_letter,
        summary="Redrive a dead letter",
        description="Submits the same work as a new run, like `POST /runs/{run_id}/rerun`, and deletes the "
        "letter. Repeating the request has no further effect. 409 if there is no run, or what it was "
        "submitted with is no longer kept.",
        parameters=(_LETTER_ID,),
        body=Body(RunRerunRequest, required=False),
        answer=schemas.json_response(schemas.ref("DeadLetterRedriven"), "Recorded and queued."),
        errors=(404, 409, 413, 422),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/dlq/{letter_id}/requeue",
        endpoint=requeue_letter,
        summary="Submit the job of a dead letter again",
        description="For a program: a new job with the same content, with the old run as `retry_of`. Repeating the "
        "request returns the same new job. 410 if its input files are no longer kept, 422 if the letter does not hold "
        "the job. For a flow: the same as redrive.",
        parameters=(_LETTER_ID,),
        answer=schemas.json_response(schemas.ref("DeadLetterRequeued"), "Recorded and queued."),
        errors=(404, 409, 410, 422),
        tags=_TAGS,
    ),
    Operation(
        method="DELETE",
        path="/dlq",
        endpoint=delete_many_letters,
        summary="Delete many dead letters",
        description="Needs a filter, or `all=true`. Their runs stay as they are. Takes 20 s at most. With `up_to`, "
        "letters added after the given one are skipped.",
        query=DeadLettersDeletion,
        answer=schemas.json_response(schemas.ref("DeadLettersDeleted"), "How many were deleted."),
        errors=(422,),
        tags=_TAGS,
    ),
    Operation(
        method="DELETE",
        path="/dlq/{letter_id}",
        endpoint=delete_one_letter,
        summary="Delete a dead letter",
        description="Its run stays as it is.",
        parameters=(_LETTER_ID,),
        answer=schemas.json_response(schemas.ref("DeadLetterDeleted"), "The letter is deleted."),
        errors=(404,),
        tags=_TAGS,
    ),
)
