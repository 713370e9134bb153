"""`POST /jobs`: submit a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.admit import admit_client
from pyoco_server.actions.programs.submit_once import Key, submit_job_once
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.job_files import JobFiles
from pyoco_server.doors.http.job_form import CLIENT_ID_DEFAULT, JobSubmitRequest, read_job_form
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Answer, Body, RunId, Status
from pyoco_server.doors.http.state import caller_of, programs_of, state_of
from pyoco_server.doors.http.submissions import KEY_PARAMETER, REPLAYED, defaults_of, read_key

__all__ = ["OPERATIONS"]


class JobAccepted(msgspec.Struct):
    """The job is recorded and queued; both are durable. `duplicate`: it was already known, and `status` is the current
    status of its run."""

    run_id: RunId
    job_id: Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
    status: Status
    duplicate: bool


async def submit_job(request: Request) -> Response:
    """Store nothing until the form is complete: an aborted request leaves nothing behind (GRID-157)."""
    state, caller, programs = state_of(request), caller_of(request), programs_of(request)
    key = read_key(request)
    folder = Path(state.backend.config.data_dir) / "tmp"
    drawn = state.backend.new_id()
    async with JobFiles(folder, lambda: state.jobs.turn(caller.tenant_id or "")) as files:
        ask = await read_job_form(
            request,
            files,
            programs.config.exec_http_max_bytes,
            group=programs.config.exec_group,
            client_id=caller.api_key_id or CLIENT_ID_DEFAULT,
            job_id=drawn,
            defaults=defaults_of(state.backend),
        )
        admit_client(programs, caller, ask.client_id, ask.exec_name, ask.group)
        named = None if key is None else Key(key, names_job=ask.job_id != drawn)
        try:
            submitted = await submit_job_once(state.backend, caller, ask, files, named)
        except GridRefused as error:
            if error.code is Code.QUEUE_FULL:  # its record was created and withdrawn: later lists must not show it
                state.note_revision(await state.backend.runs.newest())
            raise
    state.note_revision(submitted.revision)
    state.duplicates[ask.group] += submitted.duplicate
    run = submitted.run
    job_id = run.program.job_id if run.program is not None else ask.job_id
    answer = JobAccepted(run.run_id, job_id, run.status.value, submitted.duplicate)
    return json_answer(answer, headers=REPLAYED if key is not None and submitted.duplicate else None)


_DESCRIPTION = """\
200 means that the job is recorded and queued. The same `job_id` with the same content is one job, however often it \
is sent; with another content it is refused with 409. A 503 contains `job_id` and `run_id`: it is unknown whether the \
job was stored, and repeating the request with that `job_id` is safe. With `EXEC_AUTH=api_key` the client needs an ACL \
record that names the caller's key and allows the program (403)."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/jobs",
        endpoint=submit_job,
        summary="Submit a job: a program, its arguments and files",
        description=_DESCRIPTION,
        parameters=(KEY_PARAMETER,),
        body=Body(JobSubmitRequest, media="multipart/form-data"),
        answer=Answer(JobAccepted, "Recorded and queued."),
        errors=(409, 413, 422),
        tags=("programs",),
    ),
)
