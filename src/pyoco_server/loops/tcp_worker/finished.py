"""The result of an attempt, and its form in the spool."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import read_job_id
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState

__all__ = ["Damaged", "FinishedArchive", "FinishedJob", "decode", "encode"]

_MAGIC = b"pyoco-result 1 "
_DIGEST_LENGTH = 64
_OUTPUTS = ("stdout", "stderr")


class Damaged(Exception):
    """A file of the spool differs from what was written."""


@dataclass(frozen=True)
class FinishedArchive:
    """The zip of the files that a program made, on this machine's disk."""

    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class FinishedJob:
    """The content of an AckJob, independent of the door that will receive it (section 5.4)."""

    job_id: str
    run_id: str
    client_id: str
    exec_name: str
    attempt: int
    #: Of the newest attempt that this result answers (GRID-107).
    token: str
    report: Report
    archive: FinishedArchive | None = None

    def with_token(self, token: str, attempt: int) -> Self:
        return replace(self, token=token, attempt=attempt)

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the result applies to later attempts (GRID-107).

        A WORKER_ERROR, or a missing program, says nothing about the job: the next attempt runs it.
        """
        return self.report.error_code not in (ErrorCode.WORKER_ERROR, ErrorCode.EXEC_NOT_FOUND)


def encode(finished: FinishedJob) -> bytes:
    """Encode: a line with the hash of the rest, a line of JSON, the two outputs. The archive is a separate file."""
    report = finished.report
    members = {name: value for name, value in vars(report).items() if name not in _OUTPUTS}
    names = ("job_id", "run_id", "client_id", "exec_name", "attempt", "token")
    document: dict[str, Any] = {name: getattr(finished, name) for name in names}
    document["report"] = members
    document["lengths"] = [len(report.stdout), len(report.stderr)]
    if finished.archive is not None:
        document["archive"] = [finished.archive.size, finished.archive.sha256]
    rest = json.dumps(document).encode() + b"\n" + report.stdout + report.stderr
    return _MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def decode(data: bytes, archive_path: Path) -> FinishedJob:
    """Decode, with the archive at that path. Raises Damaged; only content covered by the hash is trusted."""
    start = len(_MAGIC) + _DIGEST_LENGTH + 1
    rest = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n":
        raise Damaged("its hash is another")
    line, _, outputs = rest.partition(b"\n")
    try:
        return _read(json.loads(line), outputs, archive_path)
    except (KeyError, TypeError, ValueError, AttributeError, GridRefused) as error:
        # The hash is valid, so this was written by another version.
        raise Damaged(f"its members cannot be read: {type(error).__name__}") from error


def _read(document: dict[str, Any], outputs: bytes, archive_path: Path) -> FinishedJob:
    stdout_length, stderr_length = document["lengths"]
    if stdout_length + stderr_length != len(outputs):
        raise ValueError("lengths do not add up")
    members = dict(document["report"])
    members["status"] = RunState(members["status"])
    if members.get("error_code") is not None:
        members["error_code"] = ErrorCode(members["error_code"])
    report = Report(**members, stdout=outputs[:stdout_length], stderr=outputs[stdout_length:])
    archive = document.get("archive")
    texts = {name: str(document[name]) for name in ("run_id", "client_id", "exec_name", "token")}
    return FinishedJob(
        job_id=read_job_id(document["job_id"]),
        attempt=int(document["attempt"]),
        report=report,
        archive=FinishedArchive(archive_path, int(archive[0]), str(archive[1])) if archive is not None else None,
        **texts,
    )
