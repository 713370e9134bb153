"""The result of an ended job as a client receives it, and its files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pyoco_server.actions.programs.finish import STDERR, STDOUT
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.frames.codec import LENGTH_MAX
from pyoco_server.core.frames.messages import JobResult, OutputRef, fitted
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import Artifact
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.programs.tails import text_of
from pyoco_server.core.run import Run
from pyoco_server.errors import ArtifactExpired, Corrupt, ObjectNotFound
from pyoco_server.ports.backend import Backend

__all__ = ["ARCHIVE", "job_result", "open_artifact"]

ARCHIVE = "output.zip"
#: A larger archive cannot fit into a frame, whatever else is in the frame, so it is not read.
_INLINE_BYTES_MAX = LENGTH_MAX * 3 // 4


async def job_result(backend: Backend, run: Run) -> JobResult:
    """Build the result of a terminal run from its record and artifacts, whichever process ended it (GRID-51).

    It fits into a frame (GRID-143): a larger archive is referenced, not included. Costs one round trip for an archive
    that fits, and one for each output too long for the record. What has expired is left out; the end of an output is
    still in the record. Raises Unavailable.
    """
    program = program_of(run)
    stdout, stdout_cut = await _printed(backend, run, STDOUT, program.stdout_tail or "")
    stderr, stderr_cut = await _printed(backend, run, STDERR, program.stderr_tail or "")
    archive, reference = await _archive(backend, run)
    result = JobResult(
        job_id=program.job_id,
        client_id=program.client_id,
        exec_name=program.exec_name,
        status=run.status,
        stdout=stdout,
        stderr=stderr,
        output_archive=archive,
        output_ref=None if archive is not None else reference,
        exit_code=program.exit_code,
        error_code=_code(program.error_code),
        error=run.error,
        stdout_truncated=program.stdout_truncated or stdout_cut,
        stderr_truncated=program.stderr_truncated or stderr_cut,
        run_id=run.run_id,
        attempt=run.attempt,
        worker_id=run.worker_id,
        started_at=run.start_time,
        ended_at=run.end_time,
        run_seconds=program.run_seconds,
    )
    return fitted(result, reference)


async def open_artifact(backend: Backend, run: Run, name: str) -> tuple[Artifact, AsyncGenerator[bytes, None]]:
    """Open an artifact.

    The bytes are checked while read: Corrupt at the end if they changed. One round trip before that.

    Raises ObjectNotFound if the run has no such artifact, ArtifactExpired if it is no longer stored, Unavailable.
    """
    artifact = _find(run, name)
    if artifact is None:
        raise ObjectNotFound("the run has no such artifact")
    artifacts = programs_of(backend).artifacts
    try:
        info = await artifacts.info(artifact.object)
    except ObjectNotFound as error:
        raise ArtifactExpired(f"{name} of this run is no longer kept") from error
    if info.sha256_hex != artifact.sha256:
        raise Corrupt(f"{name} of this run is not what it was")
    return artifact, artifacts.read(info)


def _find(run: Run, name: str) -> Artifact | None:
    return next((each for each in program_of(run).artifacts if each.name == name), None)


async def _printed(backend: Backend, run: Run, name: str, tail: str) -> tuple[str, bool]:
    """Return the complete output if it is stored, else its tail; and whether a part is missing."""
    if _find(run, name) is None:
        return tail, False
    data = await _read(backend, run, name)
    return (tail, True) if data is None else (text_of(data), False)


async def _archive(backend: Backend, run: Run) -> tuple[bytes | None, OutputRef | None]:
    artifact = _find(run, ARCHIVE)
    if artifact is None:
        return None, None
    bucket = programs_of(backend).config.exec_artifacts_bucket
    href = f"/runs/{run.run_id}/artifacts"
    reference = OutputRef(bucket=bucket, object=artifact.object, size=artifact.size, sha256=artifact.sha256, href=href)
    if artifact.size > _INLINE_BYTES_MAX:
        return None, reference
    return await _read(backend, run, ARCHIVE), reference


async def _read(backend: Backend, run: Run, name: str) -> bytes | None:
    """Read an artifact. None: no longer stored, or changed."""
    with contextlib.suppress(ArtifactExpired, Corrupt, ObjectNotFound):
        _, chunks = await open_artifact(backend, run, name)
        async with aclosing(chunks):
            return b"".join([chunk async for chunk in chunks])
    return None


def _code(text: str | None) -> ErrorCode | None:
    """Returns None for a code of a newer version."""
    try:
        return None if text is None else ErrorCode(text)
    except ValueError:
        return None
