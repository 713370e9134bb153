"""The messages of a job: requested, accepted, assigned, cancelled, settled (sections 5.3 and 5.9)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pyoco_server.core.delays import Delay
from pyoco_server.core.durations import INSTANT_MAX
from pyoco_server.core.frames.hello import TOKEN_CHARACTERS_MAX, without_none
from pyoco_server.core.frames.reading import Fields, bad_field, from_base64, to_base64, write_object
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.job import ARGS_MAX, TIMEOUT_MAX, InputFile, JobAsk, check_ask
from pyoco_server.core.programs.names import FILES_MAX, check_client_id, check_exec_name, read_job_id
from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS
from pyoco_server.core.states import RunState

__all__ = [
    "AssignJob",
    "CancelJob",
    "JobRequest",
    "Settled",
    "SubmitAck",
]

_NAME_MAX = 1_024
_SHA256_CHARACTERS = 64
_STATES = frozenset(RunState)


def _read_files(fields: Fields) -> dict[str, bytes]:
    files = fields.object("Files")
    if len(files) > FILES_MAX:
        raise bad_field("Files", f"has at most {FILES_MAX} files")
    return {name: from_base64("Files", text) for name, text in files.items()}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job as requested by a client. A client library fills in the two ids if they are empty."""

    exec_name: str
    args: tuple[str, ...] = field(default=(), repr=False)
    #: File contents by name.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: None: the maximum of the group.
    timeout_sec: float | None = None
    job_id: str = ""
    client_id: str = ""
    #: Unix seconds. Doors of earlier versions ignore it.
    not_before: float | None = None

    def to_payload(self) -> bytes:
        return write_object(without_none(self._members()))

    def _members(self) -> dict[str, Any]:
        return {
            "JobId": self.job_id,
            "ClientId": self.client_id,
            "ExecName": self.exec_name,
            "Args": list(self.args),
            "Files": {name: to_base64(data) for name, data in self.files.items()},
            "TimeoutSec": self.timeout_sec,
            "NotBefore": self.not_before,
        }

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload and check each member by itself; `ask` checks them together.

        Raises GridRefused, with the JobId if it is valid.
        """
        fields = Fields.of(payload)
        job_id = read_job_id(fields.text("JobId"))
        try:
            return cls(
                job_id=job_id,
                client_id=check_client_id(fields.text("ClientId")),
                exec_name=check_exec_name(fields.text("ExecName")),
                args=fields.texts("Args", ARGS_MAX),
                files=_read_files(fields),
                timeout_sec=fields.number_or_none("TimeoutSec", 1, TIMEOUT_MAX),
                not_before=fields.number_or_none("NotBefore", 0, INSTANT_MAX),
            )
        except GridRefused as error:
            error.job_id = job_id
            raise

    def ask(self, group: str) -> JobAsk:
        """Return the complete request after all checks (section 5.3). O(bytes of its files). Raises GridRefused."""
        files = tuple(InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in self.files.items())
        ask = JobAsk(
            job_id=self.job_id,
            group=group,
            client_id=self.client_id,
            exec_name=self.exec_name,
            args=tuple(self.args),
            files=files,
            timeout_sec=self.timeout_sec,
            delay=Delay(until=self.not_before),
        )
        try:
            return check_ask(ask)
        except GridRefused as error:
            error.job_id = self.job_id
            raise


@dataclass(frozen=True, kw_only=True)
class AssignJob:
    """One attempt at a job, for a worker."""

    job_id: str
    client_id: str
    exec_name: str
    args: tuple[str, ...] = field(default=(), repr=False)
    #: The files that travel in the frame.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    timeout_sec: float
    run_id: str
    attempt: int
    token: str = field(repr=False)
    #: The files that the worker downloads.
    input_refs: tuple[InputFile, ...] = ()

    def to_payload(self) -> bytes:
        return write_object(
            {
                "JobId": self.job_id,
                "ClientId": self.client_id,
                "ExecName": self.exec_name,
                "Args": list(self.args),
                "Files": {name: to_base64(data) for name, data in self.files.items()},
                "TimeoutSec": self.timeout_sec,
                "RunId": self.run_id,
                "Attempt": self.attempt,
                "Token": self.token,
                "InputRefs": [{"Name": f.name, "Size": f.size, "Sha256": f.sha256} for f in self.input_refs],
            }
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused.

        Names of files and programs are checked by the executor, which can report an invalid one as the job's result.
        """
        fields = Fields.of(payload)
        timeout = fields.number_or_none("TimeoutSec", 1, TIMEOUT_MAX)
        if timeout is None:
            raise bad_field("TimeoutSec", "is missing")
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            client_id=check_client_id(fields.text("ClientId")),
            exec_name=fields.text("ExecName", _NAME_MAX),
            args=fields.texts("Args", ARGS_MAX),
            files=_read_files(fields),
            timeout_sec=timeout,
            run_id=fields.text("RunId", _NAME_MAX),
            attempt=fields.integer("Attempt", 1),
            token=fields.text("Token", TOKEN_CHARACTERS_MAX),
            input_refs=() if fields.get("InputRefs") is None else tuple(map(_input_ref, fields.objects("InputRefs"))),
        )


def _input_ref(fields: Fields) -> InputFile:
    return InputFile(
        fields.text("Name", _NAME_MAX), fields.integer("Size", 0), fields.text("Sha256", _SHA256_CHARACTERS)
    )


@dataclass(frozen=True, kw_only=True)
class SubmitAck:
    """A job is accepted: it is stored, and will have exactly one result."""

    job_id: str
    run_id: str
    status: RunState
    #: Whether the job was already known.
    duplicate: bool

    def to_payload(self) -> bytes:
        return write_object(
            {"JobId": self.job_id, "RunId": self.run_id, "Status": self.status, "Duplicate": self.duplicate}
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        status = fields.text("Status")
        if status not in _STATES:
            raise bad_field("Status", "is not a status of a run")
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            run_id=fields.text("RunId", _NAME_MAX),
            status=RunState(status),
            duplicate=fields.flag("Duplicate"),
        )


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A door has processed an AckJob; the worker may delete the result."""

    job_id: str
    token: str = field(repr=False)
    #: `recorded` or `stale`.
    outcome: str

    def to_payload(self) -> bytes:
        return write_object({"JobId": self.job_id, "Token": self.token, "Outcome": self.outcome})

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        outcome = fields.text("Outcome")
        if outcome not in ("recorded", "stale"):
            raise bad_field("Outcome", "must be recorded or stale")
        return cls(
            job_id=read_job_id(fields.text("JobId")), token=fields.text("Token", TOKEN_CHARACTERS_MAX), outcome=outcome
        )


@dataclass(frozen=True, kw_only=True)
class CancelJob:
    """Stop a job. For a worker: stop the attempt with this token, which was `cancelled` or `superseded`."""

    job_id: str
    reason: str | None = None
    token: str | None = field(default=None, repr=False)
    #: For a worker: between SIGTERM and SIGKILL. None: as long as always.
    grace_seconds: float | None = None

    def to_payload(self) -> bytes:
        members = {"JobId": self.job_id, "Reason": self.reason, "Token": self.token, "GraceSec": self.grace_seconds}
        return write_object(without_none(members))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            reason=fields.text_or_none("Reason", _NAME_MAX),
            token=fields.text_or_none("Token", TOKEN_CHARACTERS_MAX),
            grace_seconds=fields.number_or_none("GraceSec", 0, CANCEL_GRACE_SECONDS),
        )
