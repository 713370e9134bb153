"""The result of a job, and how it is reduced to fit into a frame (sections 5.4 and 19)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from pyoco_server.core.frames.codec import LENGTH_MAX, LENGTH_MIN
from pyoco_server.core.frames.hello import TOKEN_CHARACTERS_MAX
from pyoco_server.core.frames.reading import Fields, bad_field, to_base64, write_object
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import check_client_id, check_exec_name, read_job_id
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import TERMINAL, RunState

__all__ = ["STDIO_BYTES_LEAST", "JobResult", "OutputRef", "fitted"]

#: GRID-143: how much of each output is kept if the result does not fit otherwise.
STDIO_BYTES_LEAST: Final = 64 * 1024
_ERROR_MAX = 4_096
_NAME_MAX = 1_024
_SECONDS_MAX = 1e12
_SUBJECT_ROOM = 128
_SHA256_CHARACTERS = 64
_ERROR_CODES = frozenset(ErrorCode)


@dataclass(frozen=True, kw_only=True)
class OutputRef:
    """A reference to an archive that did not fit into the frame."""

    bucket: str
    object: str
    size: int
    sha256: str
    #: Its path on the HTTP API: `/runs/{run_id}/artifacts`.
    href: str

    def members(self) -> dict[str, Any]:
        return {
            "Bucket": self.bucket,
            "Object": self.object,
            "Size": self.size,
            "Sha256": self.sha256,
            "Href": self.href,
        }

    @classmethod
    def of(cls, fields: Fields) -> Self:
        return cls(
            bucket=fields.text("Bucket", _NAME_MAX),
            object=fields.text("Object", _NAME_MAX),
            size=fields.integer("Size", 0),
            sha256=fields.text("Sha256", _SHA256_CHARACTERS),
            href=fields.text("Href", _NAME_MAX),
        )


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The outcome of a job, or of an attempt at it."""

    job_id: str
    client_id: str
    exec_name: str
    #: COMPLETED, FAILED or CANCELLED.
    status: RunState
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    #: A zip of the files that the program created; None: there are none, or `output_ref` refers to them.
    output_archive: bytes | None = field(default=None, repr=False)
    output_ref: OutputRef | None = None
    #: None: the program did not start. Negative: killed by that signal.
    exit_code: int | None = None
    error_code: ErrorCode | None = None
    error: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    run_id: str = ""
    attempt: int = 0
    worker_id: str | None = None
    #: Unix seconds.
    started_at: float | None = None
    ended_at: float | None = None
    run_seconds: float | None = None
    #: The token of the attempt; in an AckJob only.
    token: str | None = field(default=None, repr=False)

    @property
    def is_completed(self) -> bool:
        return self.status is RunState.COMPLETED

    def report(self) -> Report:
        """Return the report of the process that executed the job, without the archive, which is passed separately."""
        return Report(
            status=self.status,
            exit_code=self.exit_code,
            error_code=self.error_code,
            error=self.error,
            stdout=self.stdout.encode(),
            stderr=self.stderr.encode(),
            stdout_truncated=self.stdout_truncated,
            stderr_truncated=self.stderr_truncated,
            started_at=self.started_at,
            ended_at=self.ended_at,
            run_seconds=self.run_seconds,
        )

    def members(self) -> dict[str, Any]:
        """Return the JSON of section 5.4; Token only if it is set."""
        archive = None if self.output_archive is None else to_base64(self.output_archive)
        members = {
            "JobId": self.job_id,
            "ClientId": self.client_id,
            "ExecName": self.exec_name,
            "Status": self.status,
            "Stdout": self.stdout,
            "Stderr": self.stderr,
            "OutputArchive": archive,
            "OutputRef": None if self.output_ref is None else self.output_ref.members(),
            "ExitCode": self.exit_code,
            "ErrorCode": self.error_code,
            "Error": self.error,
            "StdoutTruncated": self.stdout_truncated,
            "StderrTruncated": self.stderr_truncated,
            "RunId": self.run_id,
            "Attempt": self.attempt,
            "WorkerId": self.worker_id,
            "StartedAt": self.started_at,
            "EndedAt": self.ended_at,
            "RunSeconds": self.run_seconds,
        }
        return members if self.token is None else members | {"Token": self.token}

    def to_payload(self) -> bytes:
        return write_object(self.members())

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a Result. Raises GridRefused, with the JobId if it could be read."""
        fields = Fields.of(payload)
        job_id = read_job_id(fields.text("JobId"))
        try:
            return cls._of(fields, job_id)
        except GridRefused as error:
            error.job_id = job_id
            raise

    @classmethod
    def read_ack(cls, payload: bytes) -> Self:
        """Decode an AckJob: it requires a Token, and an ErrorCode unless the job completed. Raises GridRefused."""
        result = cls.read(payload)
        if result.token is None:
            missing = bad_field("Token", "is missing")
            missing.job_id = result.job_id
            raise missing
        if not result.is_completed and result.error_code is None:
            missing = bad_field("ErrorCode", "is missing: the job did not complete")
            missing.job_id = result.job_id
            raise missing
        return result

    @classmethod
    def _of(cls, fields: Fields, job_id: str) -> Self:
        reference = fields.get("OutputRef")
        return cls(
            job_id=job_id,
            client_id=check_client_id(fields.text("ClientId")),
            exec_name=check_exec_name(fields.text("ExecName")),
            status=_read_status(fields),
            stdout=fields.text("Stdout"),
            stderr=fields.text("Stderr"),
            output_archive=fields.binary_or_none("OutputArchive"),
            output_ref=None if reference is None else OutputRef.of(Fields(fields.object("OutputRef"))),
            exit_code=fields.integer_or_none("ExitCode", -(2**31), 2**32 - 1),
            error_code=_read_error_code(fields),
            error=fields.text_or_none("Error", _ERROR_MAX),
            stdout_truncated=fields.flag("StdoutTruncated"),
            stderr_truncated=fields.flag("StderrTruncated"),
            run_id=fields.text("RunId", _NAME_MAX),
            attempt=fields.integer("Attempt", 0),
            worker_id=fields.text_or_none("WorkerId", _NAME_MAX),
            started_at=fields.number_or_none("StartedAt", 0, _SECONDS_MAX),
            ended_at=fields.number_or_none("EndedAt", 0, _SECONDS_MAX),
            run_seconds=fields.number_or_none("RunSeconds", 0, _SECONDS_MAX),
            token=fields.text_or_none("Token", TOKEN_CHARACTERS_MAX),
        )


def _read_status(fields: Fields) -> RunState:
    text = fields.text("Status")
    if text not in TERMINAL:
        raise bad_field("Status", "must be COMPLETED, FAILED or CANCELLED")
    return RunState(text)


def _read_error_code(fields: Fields) -> ErrorCode | None:
    text = fields.text_or_none("ErrorCode")
    if text is None:
        return None
    if text not in _ERROR_CODES:
        raise bad_field("ErrorCode", "is not one of the codes of a result")
    return ErrorCode(text)


def fitted(result: JobResult, reference: OutputRef | None) -> JobResult:
    """Return the result, reduced to fit into a frame (GRID-143). `reference`: where its archive is stored, if anywhere.

    Keeps everything inline if possible; else replaces the archive by the reference; else also cuts each output to its
    last 64 KiB.
    """
    if _fits(result):
        return result
    result = replace(result, output_archive=None, output_ref=reference)
    if _fits(result):
        return result
    stdout, stderr = _tail(result.stdout), _tail(result.stderr)
    return replace(
        result,
        stdout=stdout,
        stderr=stderr,
        stdout_truncated=result.stdout_truncated or stdout != result.stdout,
        stderr_truncated=result.stderr_truncated or stderr != result.stderr,
    )


def _fits(result: JobResult) -> bool:
    # A lower bound avoids encoding what cannot fit.
    least = len(result.stdout) + len(result.stderr) + len(result.output_archive or b"") * 4 // 3
    room = LENGTH_MAX - LENGTH_MIN - _SUBJECT_ROOM
    return least <= room and len(result.to_payload()) <= room


def _tail(text: str) -> str:
    return text.encode("utf-8", "replace")[-STDIO_BYTES_LEAST:].decode("utf-8", "ignore")
