"""Submit the job of a dead letter, or of a run, again."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.programs.admit import admit_client, is_operator
from pyoco_server.actions.programs.inputs import StagedInputs, inputs_object, open_inputs
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Content, Submitted, submit_job
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import JobAsk, ObjectInputs, ProgramJob, files_of, to_message
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.programs.names import requeued_job_id
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import ArtifactExpired, Corrupt, InvalidJob, NotRepeatable, ObjectNotFound, Problem
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.dead_letters.port import StoredDeadLetter
from pyoco_server.ports.runs.port import Stored

__all__ = ["can_requeue", "requeue", "rerun_job"]


class _Staged(Content):
    """The input files of another job, read while they are submitted with this one."""

    def __init__(self, staged: StagedInputs) -> None:
        self._staged = staged

    def open(self, name: str) -> AsyncIterator[bytes]:
        return self._staged.read(name)


async def requeue(backend: Backend, caller: Caller, found: StoredDeadLetter) -> Submitted:
    """Submit a new job with the same content, owned by the caller, with the old run in `retry_of` (GRID-88).

    Its id is derived from the letter's, so repeated requests lead to the same job. The old run and the letter do not
    change. The inputs are copied, since those of the old job may expire first. Costs a read, and what `submit_job`
    costs.

    Raises GridRefused (422) if the letter holds no valid job, ArtifactExpired (410) if the inputs are no longer stored,
    and what `submit_job` raises.
    """
    try:
        job = read_job(found.dead_letter.job or {})
    except InvalidJob as error:
        message = "the letter does not hold a job that could be run again"
        raise GridRefused(Code.BAD_SCHEMA, message, field="job") from error
    job_id = requeued_job_id(found.dead_letter.run_id or job.run_id, found.letter_id)
    return await _submit(backend, caller, job, job_id)


async def can_requeue(backend: Backend, dead_letter: DeadLetter) -> bool:
    """Return whether a requeue is possible now; the requeue itself decides. One round trip for larger inputs."""
    try:
        job = read_job(dead_letter.job or {})
        if isinstance(job.inputs, ObjectInputs):
            await programs_of(backend).artifacts.info(job.inputs.object)
    except (InvalidJob, ObjectNotFound, Corrupt):
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Again:
    """What to change in the new job. None: as it was."""

    delay: Delay = NO_DELAY
    retry: Mapping[str, Any] | None = None
    timeout_sec: float | None = None


_AS_IT_WAS = Again()


async def rerun_job(
    backend: Backend, caller: Caller, old: Run, key: str | None, again: Again = _AS_IT_WAS
) -> Submitted:
    """Submit the same content as a new job, whatever the state of the old run. A key makes repeated calls one job.

    The small inputs of an ended run were deleted with its message, so it can be run again only if it had none. Raises
    NotRepeatable, and what `submit_job` raises.
    """
    job = await _job_of(backend, old)
    job_id = backend.new_id() if key is None else str(uuid.uuid5(uuid.UUID(old.run_id), f"rerun:{key}"))
    try:
        return await _submit(backend, caller, job, job_id, again)
    except ArtifactExpired as error:
        raise _not_repeatable("was submitted with files that are no longer kept", "inputs_gone") from error


async def _submit(
    backend: Backend, caller: Caller, job: ProgramJob, job_id: str, again: Again = _AS_IT_WAS
) -> Submitted:
    ask = JobAsk(
        job_id=job_id,
        group=job.group,
        client_id=job.client_id,
        exec_name=job.exec_name,
        args=job.args,
        files=files_of(job),
        timeout_sec=job.timeout_sec if again.timeout_sec is None else again.timeout_sec,
        retry_of=job.run_id,
        delay=again.delay,
        retry=job.retry if again.retry is None else again.retry,
    )
    programs = programs_of(backend)
    if not is_operator(programs, caller):  # GRID-168: a caller that may not submit a job may not repeat it either
        admit_client(programs, caller, ask.client_id, ask.exec_name, ask.group)
    async with contextlib.AsyncExitStack() as stack:
        try:
            staged = await stack.enter_async_context(open_inputs(backend, job))
        except ObjectNotFound as error:
            earlier = await backend.runs.find(ask.run_id)
            if isinstance(earlier, Stored):  # already submitted, while the inputs were still stored
                return Submitted(earlier.run, True, earlier.revision)
            raise ArtifactExpired("the input files of the job are no longer kept") from error
        return await submit_job(backend, caller, ask, _Staged(staged))


async def _job_of(backend: Backend, old: Run) -> ProgramJob:
    """Return the submission of the run, as far as it is still stored. Raises NotRepeatable."""
    program = program_of(old)
    try:
        return read_job(program.job if program.job is not None else await _from_params(backend, old))
    except (InvalidJob, KeyError, TypeError, AttributeError) as error:
        raise _not_repeatable("does not tell what it was submitted with", "incomplete") from error


async def _from_params(backend: Backend, old: Run) -> dict[str, Any]:
    """Rebuild the message of a run that has ended. Its record no longer holds it; larger inputs may still be stored."""
    files = old.params["files"]
    bare = to_message(addressed(old)) | {
        "args": list(old.params["args"]),
        "timeout_sec": old.params.get("timeout_sec"),
    }
    if old.retry is not None:
        bare["retry"] = old.retry
    if not files:
        return bare | {"inputs": {"mode": "inline", "files": {}}}
    name = inputs_object(old.run_id, program_of(old).fingerprint)
    try:
        info = await programs_of(backend).artifacts.info(name)
    except ObjectNotFound as error:
        raise _not_repeatable("was submitted with files that are no longer kept", "inputs_gone") from error
    listed = [[each["name"], each["size"], each["sha256"]] for each in files]
    inputs = {"mode": "object", "object": name, "size": info.size_bytes, "sha256": info.sha256_hex, "files": listed}
    return bare | {"inputs": inputs}


def _not_repeatable(message: str, kind: str) -> NotRepeatable:
    return NotRepeatable(f"the run {message}", problems=(Problem(("path", "run_id"), message, kind),))
