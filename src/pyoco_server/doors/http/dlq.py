"""`/dlq`: the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta
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
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.dead_letter_requests import (
    DeadLettersDeletion,
    DeadLettersQuery,
    DeadLettersRedriveRequest,
    read_dead_letter_deletion,
    read_dead_letter_query,
    read_dead_letter_selection,
    write_cursor,
)
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.shapes import Absent, Answer, Body, Count, Status, Uuid, one_of, refers_to, schema_of
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import REPLAYED, RunRerunRequest, defaults_of, read_change
from pyoco_server.errors import PyocoError
from pyoco_server.ports.dead_letters.port import StoredDeadLetter

__all__ = ["OPERATIONS"]

_DETAIL_LENGTH_MAX = 500


LetterId = Annotated[str, Meta(pattern="^[1-9][0-9]*$", description="The letter's place in its stream.")]
Reason = Annotated[str, Meta(description=f"One of {', '.join(DeadReason)}, or a text written by other software.")]
_EXEC_ONLY = "`exec` for programs. The following fields exist for programs only."


class DeadLetter(msgspec.Struct, kw_only=True):
    """A job set aside, and the reason. Unknown fields are left out; it contains neither params nor YAML."""

    id: LetterId
    timestamp: float
    reason: Reason
    error: str | None
    tag: str
    run_id: str | Absent = UNSET
    flow_name: str | Absent = UNSET
    tags: Sequence[str] | Absent = UNSET
    worker_id: str | Absent = UNSET
    num_delivered: Count | Absent = UNSET
    subject: Annotated[str, Meta(description="The subject of the original job.")] | Absent = UNSET
    tenant_id: str | Absent = UNSET
    api_key_id: str | Absent = UNSET
    tries: list[Annotated[dict[str, Any], refers_to("RunTry")]] | Absent = UNSET
    kind: Annotated[str, one_of((EXEC,), description=_EXEC_ONLY)] | Absent = UNSET
    job_id: Uuid | Absent = UNSET
    group: str | Absent = UNSET
    exec_name: str | Absent = UNSET
    client_id: str | Absent = UNSET
    attempt: Count | Absent = UNSET
    lost: Count | Absent = UNSET
    exit_code: int | Absent = UNSET
    error_code: str | Absent = UNSET


class DeadLetterDetail(DeadLetter, kw_only=True):
    """A job set aside, and the current state of its run."""

    run_status: (
        Annotated[Status, Meta(description="The current status of its run; missing if the run is no longer kept.")]
        | Absent
    ) = UNSET
    redrivable: Annotated[bool, Meta(description="Whether the data needed for a redrive still exists.")]


class DeadLetterPage(msgspec.Struct):
    """Some letters, the newest first."""

    items: list[DeadLetter]
    next_cursor: Annotated[
        str | None, Meta(description="Pass it as `cursor` to get the next page; null: this is the last one.")
    ]
    next: Annotated[int | None, Meta(description="The same position, as a number for `before`.")]


class DeadLetterGroup(msgspec.Struct):
    """Letters of one reason and one flow."""

    reason: Reason
    flow_name: Annotated[str | None, Meta(description="null: unknown.")]
    count: Count
    newest_at: float


class DeadLetterCounts(msgspec.Struct):
    """Number of letters, the largest groups first."""

    total: Count
    groups: Annotated[list[DeadLetterGroup], Meta(max_length=1000)]


class DeadLetterRedriven(msgspec.Struct):
    """The new run is recorded and queued, and the letter is deleted."""

    id: LetterId
    run_id: Uuid
    rerun_of: Uuid | None
    status: Literal["PENDING"]


class DeadLetterRequeued(msgspec.Struct):
    """The new run is recorded and queued. The letter of a program stays."""

    run_id: Uuid
    job_id: Annotated[Uuid | None, Meta(description="For programs only.")] | Absent = UNSET


class DeadLetterProblem(msgspec.Struct):
    """Why one letter could not be redriven."""

    id: LetterId
    err_id: str
    detail: str


class DeadLettersRedriven(msgspec.Struct):
    """The result of the request, in numbers."""

    matched: Annotated[Count, Meta(description="Letters checked; some may have been deleted just before.")]
    redriven: Count
    failed: Annotated[Count, Meta(description="Cannot be redriven; they stay.")]
    more: Annotated[bool, Meta(description="More letters may match.")]
    next_cursor: Annotated[
        str | None, Meta(description="Continues after the letters that failed; null: none are left.")
    ]
    problems: Annotated[list[DeadLetterProblem], Meta(max_length=PROBLEMS_MAX)]


class DeadLetterDeleted(msgspec.Struct):
    """The letter is deleted."""

    id: LetterId
    deleted: Literal[True]


class DeadLettersDeleted(msgspec.Struct):
    """The result of the request, in numbers."""

    matched: Annotated[Count, Meta(description="Letters checked; some may have been deleted just before.")]
    deleted: Count
    more: Annotated[bool, Meta(description="More letters may match: repeat the request.")]


async def get_letters(request: Request) -> Response:
    state = state_of(request)
    asked = read_dead_letter_query(request.query_params)
    await state.dead_letters_settled()
    page = await list_dead_letters(state.backend, caller_of(request), asked.wanted, asked.limit, asked.before)
    items = [DeadLetter(**_known(item)) for item in page.items]
    return json_answer(DeadLetterPage(items, write_cursor(page.next_before), page.next_before))


async def get_letter_counts(request: Request) -> Response:
    state = state_of(request)
    await state.dead_letters_settled()
    counts = await count_dead_letters(state.backend, caller_of(request))
    return json_answer(DeadLetterCounts(counts.total, [DeadLetterGroup(**vars(each)) for each in counts.groups]))


async def get_letter(request: Request) -> Response:
    view = await show_dead_letter(state_of(request).backend, caller_of(request), request.path_params["letter_id"])
    status = UNSET if view.run_status is None else view.run_status
    return json_answer(DeadLetterDetail(**_known(view.found), run_status=status, redrivable=view.redrivable))


async def redrive_letter(request: Request) -> Response:
    state, letter_id = state_of(request), request.path_params["letter_id"]
    change = read_change(await read_body(request), defaults_of(state.backend))
    accepted = await redrive(state.backend, caller_of(request), letter_id, change)
    state.note_revision(accepted.stored.revision)
    run = accepted.stored.run
    answer = DeadLetterRedriven(letter_id, run.run_id, run.rerun_of, "PENDING")
    return json_answer(answer, headers=REPLAYED if accepted.replayed else None)


async def requeue_letter(request: Request) -> Response:
    """GRID-88: resubmit the job of a program. The work of a flow is redriven under either path."""
    state, caller, letter_id = state_of(request), caller_of(request), request.path_params["letter_id"]
    found = await find_dead_letter(state.backend, caller, letter_id)
    if not found.dead_letter.is_exec:
        accepted = await redrive(state.backend, caller, letter_id)
        state.note_revision(accepted.stored.revision)
        answer = DeadLetterRequeued(accepted.stored.run.run_id)
        return json_answer(answer, headers=REPLAYED if accepted.replayed else None)
    submitted = await requeue(state.backend, caller, found)
    state.note_revision(submitted.revision)
    run = submitted.run
    answer = DeadLetterRequeued(run.run_id, run.program.job_id if run.program is not None else None)
    return json_answer(answer, headers=REPLAYED if submitted.duplicate else None)


async def redrive_letters(request: Request) -> Response:
    state = state_of(request)
    wanted, span = read_dead_letter_selection(await read_body(request))
    await state.dead_letters_settled()
    done = await redrive_many(state.backend, caller_of(request), wanted, span)
    state.note_revision(done.revision)
    answer = DeadLettersRedriven(
        matched=done.matched,
        redriven=done.redriven,
        failed=done.failed,
        more=done.next_before is not None,
        next_cursor=write_cursor(done.next_before),
        problems=[_problem(letter_id, error) for letter_id, error in done.problems],
    )
    return json_answer(answer)


async def delete_one_letter(request: Request) -> Response:
    letter_id = request.path_params["letter_id"]
    await delete_dead_letter(state_of(request).backend, caller_of(request), letter_id)
    return json_answer(DeadLetterDeleted(letter_id, True))


async def delete_many_letters(request: Request) -> Response:
    state = state_of(request)
    wanted, span = read_dead_letter_deletion(request.query_params)
    await state.dead_letters_settled()
    done = await delete_dead_letters(state.backend, caller_of(request), wanted, span)
    return json_answer(DeadLettersDeleted(done.matched, done.deleted, done.more))


def _known(item: StoredDeadLetter) -> dict[str, Any]:
    """FLOW-331 to FLOW-334: `error` always, other fields if known. The job of a program is never exposed."""
    known = {name: value for name, value in vars(item.dead_letter).items() if value is not None or name == "error"}
    known.pop("job", None)
    return {"id": str(item.letter_id), **known}


def _problem(letter_id: int, error: PyocoError) -> DeadLetterProblem:
    return DeadLetterProblem(str(letter_id), error.text.err_id, str(error)[:_DETAIL_LENGTH_MAX])


_LETTER_ID: dict[str, Any] = {
    "name": "letter_id",
    "in": "path",
    "required": True,
    "schema": schema_of(LetterId),
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
        answer=Answer(DeadLetterPage, "One page."),
        errors=(422,),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/dlq/counts",
        endpoint=get_letter_counts,
        summary="Count dead letters by reason and flow",
        answer=Answer(DeadLetterCounts, "The counts, kept and never scanned."),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/dlq/{letter_id}",
        endpoint=get_letter,
        summary="Read a dead letter",
        parameters=(_LETTER_ID,),
        answer=Answer(DeadLetterDetail, "The letter, and the current status of its run."),
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
        answer=Answer(DeadLettersRedriven, "How many were redriven."),
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
        answer=Answer(DeadLetterRedriven, "Recorded and queued."),
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
        answer=Answer(DeadLetterRequeued, "Recorded and queued."),
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
        answer=Answer(DeadLettersDeleted, "How many were deleted."),
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
        answer=Answer(DeadLetterDeleted, "The letter is deleted."),
        errors=(404,),
        tags=_TAGS,
    ),
)
