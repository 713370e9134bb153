"""`POST /jobs`: submit a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.admit import admit_client
from pyoco_server.actions.programs.submit_once import Key, submit_job_once
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import ARGS_BYTES_MAX, ARGS_MAX, TIMEOUT_MAX
from pyoco_server.core.programs.names import FILES_MAX
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.job_files import JobFiles
from pyoco_server.doors.http.job_form import read_job_form
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import caller_of, programs_of, state_of
from pyoco_server.doors.http.submissions import KEY_PARAMETER, REPLAYED, read_key

__all__ = ["CLIENT_ID_DEFAULT", "OPERATIONS", "SCHEMAS"]

#: Client id of jobs that name no client and come without a key (GRID-155).
CLIENT_ID_DEFAULT = "http"


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
        )
        admit_client(programs, caller, ask.client_id, ask.exec_name, ask.group)
        named = None if key is None else Key(key, names_job=ask.job_id != drawn)
        try:
            submitted = await submit_job_once(state.backend, caller, ask, files, named)
        except GridRefused as error:
            if error.code is Code.QUEUE_FULL:  # its record was created and withdrawn: later lists must not show it
                state.told(await state.backend.runs.newest())
            raise
    state.told(submitted.revision)
    state.duplicates[ask.group] += submitted.duplicate
    run = submitted.run
    answer = {
        "run_id": run.run_id,
        "job_id": run.program.job_id if run.program is not None else ask.job_id,
        "status": run.status.value,
        "duplicate": submitted.duplicate,
    }
    return json_answer(answer, headers=REPLAYED if key is not None and submitted.duplicate else None)


_UUID = {"type": "string", "format": "uuid"}
_ID_PATTERN = "^[A-Za-z0-9_-]{1,64}$"

SCHEMAS: dict[str, Any] = {
    "JobSubmitRequest": schemas.object_of(
        {
            "exec_name": {
                "type": "string",
                "pattern": "^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$",
                "description": "The program, by the name that workers know.",
            },
            "arg": {
                "type": "array",
                "items": schemas.TEXT,
                "maxItems": ARGS_MAX,
                "description": f"Its arguments, one part each, in their order; {ARGS_BYTES_MAX} bytes together.",
            },
            "file": {
                "type": "array",
                "items": {"type": "string", "format": "binary"},
                "maxItems": FILES_MAX,
                "description": "Its input files, one part each, under their own names, which hold no path.",
            },
            "job_id": _UUID
            | {"description": "Chosen by the caller: repeating the same job under the same id has no further effect."},
            "client_id": {
                "type": "string",
                "pattern": _ID_PATTERN,
                "description": "Whose job it is, for its cap and its lane: the id of the API key unless given, "
                f"`{CLIENT_ID_DEFAULT}` without one.",
            },
            "group": {
                "type": "string",
                "pattern": "^[A-Za-z0-9_-]{1,32}$",
                "description": "Where it is queued: the gateway's own group unless given.",
            },
            "timeout_sec": {
                "type": "number",
                "minimum": 1,
                "maximum": TIMEOUT_MAX,
                "description": "Run time: `EXEC_JOB_TIMEOUT_SEC` unless given.",
            },
        },
        ["exec_name"],
        "A program to be run once, with its arguments and files.",
    ),
    "JobAccepted": schemas.object_of(
        {"run_id": _UUID, "job_id": _UUID, "status": schemas.STATUS, "duplicate": schemas.FLAG},
        ["run_id", "job_id", "status", "duplicate"],
        "The job is recorded and queued; both are durable. `duplicate`: it was already known, and `status` is "
        "the current status of its run.",
    ),
}

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
        body={"required": True, "content": {"multipart/form-data": {"schema": schemas.ref("JobSubmitRequest")}}},
        answer=schemas.json_response(schemas.ref("JobAccepted"), "Recorded and queued."),
        errors=(409, 413, 422),
        tags=("programs",),
    ),
)
