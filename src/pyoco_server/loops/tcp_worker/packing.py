"""Builds the AckJob of a result, and the uploads that must precede it because they do not fit (GRID-143, GRID-144)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from pyoco_server.core.frames.codec import LENGTH_MAX
from pyoco_server.core.frames.messages import JobResult, OutputRef, fitted
from pyoco_server.loops.tcp_worker.finished import FinishedJob

__all__ = ["ARCHIVE", "OutgoingUpload", "PackedResult", "pack"]

ARCHIVE, STDOUT, STDERR = "output.zip", "stdout.txt", "stderr.txt"
_OBJECT_NAME_MAX = 512
_ERROR_MAX = 1_024


@dataclass(frozen=True)
class OutgoingUpload:
    """Bytes that are sent in parts: a file of the spool, or an output."""

    name: str
    size: int
    sha256: str
    path: Path | None = None
    data: bytes = b""


@dataclass(frozen=True)
class PackedResult:
    result: JobResult
    #: To be sent completely before the AckJob.
    uploads: tuple[OutgoingUpload, ...] = ()

    def with_object(self, name: str | None) -> PackedResult:
        """Set the name of the archive in the door's store."""
        reference = self.result.output_ref
        if reference is None or not name or len(name) > _OBJECT_NAME_MAX:
            return self
        return replace(self, result=replace(self.result, output_ref=replace(reference, object=name)))


def pack(finished: FinishedJob, worker_id: str, bucket: str) -> PackedResult:
    """Build the first form of the AckJob that fits into a frame, and its uploads.

    Reads a small archive completely and hashes outputs: to be run in a thread. Raises OSError.
    """
    report, archive = finished.report, finished.archive
    complete = JobResult(
        job_id=finished.job_id,
        client_id=finished.client_id,
        exec_name=finished.exec_name,
        status=report.status,
        stdout=report.stdout.decode("utf-8", "replace"),
        stderr=report.stderr.decode("utf-8", "replace"),
        exit_code=report.exit_code,
        error_code=report.error_code,
        error=report.error[:_ERROR_MAX] if report.error is not None else None,
        stdout_truncated=report.stdout_truncated,
        stderr_truncated=report.stderr_truncated,
        run_id=finished.run_id,
        attempt=finished.attempt,
        worker_id=worker_id,
        started_at=report.started_at,
        ended_at=report.ended_at,
        run_seconds=report.run_seconds,
        token=finished.token,
    )
    reference = None
    if archive is not None:
        place = f"{finished.run_id}/a{finished.attempt}/{ARCHIVE}"  # GRID-145
        href = f"/runs/{finished.run_id}/artifacts"
        reference = OutputRef(bucket=bucket, object=place, size=archive.size, sha256=archive.sha256, href=href)
        may_fit = archive.size * 4 // 3 < LENGTH_MAX
        complete = replace(
            complete,
            output_archive=archive.path.read_bytes() if may_fit else None,
            output_ref=None if may_fit else reference,
        )
    result = fitted(complete, reference)
    uploads = (
        [OutgoingUpload(ARCHIVE, archive.size, archive.sha256, archive.path)] if archive and result.output_ref else []
    )
    if result.stdout != complete.stdout:
        uploads.append(_output(STDOUT, report.stdout))
    if result.stderr != complete.stderr:
        uploads.append(_output(STDERR, report.stderr))
    return PackedResult(result, tuple(uploads))


def _output(name: str, data: bytes) -> OutgoingUpload:
    return OutgoingUpload(name, len(data), hashlib.sha256(data).hexdigest(), data=data)
