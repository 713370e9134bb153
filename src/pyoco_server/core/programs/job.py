"""Jobs: a client's request to run a program, and the queue message of it (sections 5.3 and 10 of the contract)."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import (
    check_client_id,
    check_exec_name,
    check_file_names,
    check_group,
    client_key,
    read_job_id,
    run_id_of,
)

__all__ = [
    "ARGS_BYTES_MAX",
    "ARGS_MAX",
    "TIMEOUT_MAX",
    "InlineInputs",
    "InputFile",
    "Inputs",
    "JobAsk",
    "ObjectInputs",
    "ProgramJob",
    "check_ask",
    "check_timeout",
    "decode_inline",
    "files_of",
    "fingerprint",
    "job_of",
    "to_message",
    "without_delivery_terms",
]

ARGS_MAX = 256
ARGS_BYTES_MAX = 16 * 1024
TIMEOUT_MAX = 86_400


@dataclass(frozen=True)
class InputFile:
    """An input file, without its bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class JobAsk:
    """A validated request to run a program (`check_ask`). The bytes of its files travel separately."""

    job_id: str
    group: str
    client_id: str
    exec_name: str
    args: tuple[str, ...] = ()
    #: Sorted by name.
    files: tuple[InputFile, ...] = ()
    #: None: the caller did not set a timeout.
    timeout_sec: float | None = None
    #: The run that this one repeats (GRID-88).
    retry_of: str | None = None
    delay: Delay = NO_DELAY
    #: The tick of a schedule that this job is for.
    schedule: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    #: The retry policy, as in `core.run.Submission`.
    retry: Mapping[str, Any] | None = None

    @property
    def run_id(self) -> str:
        return run_id_of(self.job_id, self.group)


def check_ask(ask: JobAsk) -> JobAsk:
    """Validate a request and return it with canonical names and sorted files. Raises GridRefused. O(args + files)."""
    check_group(ask.group)
    check_client_id(ask.client_id)
    check_exec_name(ask.exec_name)
    check_file_names(each.name for each in ask.files)
    _check_args(ask.args)
    check_timeout(ask.timeout_sec)
    values = vars(ask) | {"job_id": read_job_id(ask.job_id), "files": tuple(sorted(ask.files, key=lambda f: f.name))}
    return JobAsk(**values)


def _check_args(args: tuple[str, ...]) -> None:
    if len(args) > ARGS_MAX:
        raise GridRefused(Code.BAD_SCHEMA, f"a job has at most {ARGS_MAX} arguments", field="Args")
    try:
        size = sum(len(each.encode()) for each in args)
    except UnicodeEncodeError:
        raise GridRefused(Code.BAD_SCHEMA, "an argument must be text that UTF-8 can hold", field="Args") from None
    if size > ARGS_BYTES_MAX:
        raise GridRefused(Code.BAD_SCHEMA, f"arguments take at most {ARGS_BYTES_MAX} bytes together", field="Args")
    if any("\0" in each for each in args):
        raise GridRefused(Code.BAD_SCHEMA, "an argument may not contain NUL", field="Args")


def check_timeout(seconds: object) -> None:
    """Accept None, or a finite number from 1 to 86,400 that is not a bool. Raises GridRefused."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds <= TIMEOUT_MAX:
        raise GridRefused(Code.BAD_SCHEMA, f"TimeoutSec must be from 1 to {TIMEOUT_MAX} seconds", field="TimeoutSec")


def fingerprint(ask: JobAsk) -> str:
    """Return the digest of the content (GRID-24): equal for equal content, whatever the caller and the door."""
    document: dict[str, Any] = {
        "args": list(ask.args),
        "client_id": ask.client_id,
        "exec_name": ask.exec_name,
        "files": [[each.name, each.size, each.sha256] for each in sorted(ask.files, key=lambda f: f.name)],
        "timeout_sec": ask.timeout_sec,
    }
    if ask.delay != NO_DELAY:  # DELAY-8; a job without a delay keeps the digest of earlier versions
        document["delay"] = [ask.delay.seconds, ask.delay.until]
    if ask.retry is not None:
        document["retry"] = dict(ask.retry)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class InlineInputs:
    """Small inputs: base64 text by file name."""

    files: Mapping[str, str]


@dataclass(frozen=True)
class ObjectInputs:
    """Larger inputs: one zip in the object store."""

    object: str
    size: int
    sha256: str
    files: tuple[InputFile, ...]


Inputs = InlineInputs | ObjectInputs


@dataclass(frozen=True, kw_only=True)
class ProgramJob:
    """The queue message of a run (GRID-52). The record keeps a copy until the run has ended, to send it again."""

    run_id: str
    job_id: str
    group: str
    exec_name: str
    client_id: str
    args: tuple[str, ...]
    timeout_sec: float | None
    inputs: Inputs
    submitted_at: float
    fingerprint: str
    tenant_id: str | None = None
    api_key_id: str | None = None
    retry_of: str | None = None
    #: The job is queued at this instant.
    not_before: float | None = None
    schedule: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    retry: Mapping[str, Any] | None = None
    #: Hints for the first claim, present only in the message: the revision of the PENDING record this job was queued
    #: for, and the one member of that record which the message lacks. A claim that writes over exactly that revision
    #: need not read the record first.
    revision: int | None = None
    max_attempts: int | None = None

    @property
    def client(self) -> str:
        """The client within its tenant (`client_key`)."""
        return client_key(self.client_id, self.tenant_id)

    @property
    def subject_tokens(self) -> tuple[str, str, str, str]:
        return self.group, self.exec_name, self.client, self.run_id

    @property
    def old_subject_tokens(self) -> tuple[str, str, str, str]:
        """Subject tokens of versions that did not separate tenants. Identical for a job without a tenant."""
        return self.group, self.exec_name, self.client_id, self.run_id


def job_of(
    ask: JobAsk, inputs: Inputs, now: float, *, tenant_id: str | None = None, api_key_id: str | None = None
) -> ProgramJob:
    """Build the message of a validated request whose inputs are stored."""
    return ProgramJob(
        run_id=ask.run_id,
        job_id=ask.job_id,
        group=ask.group,
        exec_name=ask.exec_name,
        client_id=ask.client_id,
        args=ask.args,
        timeout_sec=ask.timeout_sec,
        inputs=inputs,
        submitted_at=now,
        fingerprint=fingerprint(ask),
        tenant_id=tenant_id,
        api_key_id=api_key_id,
        retry_of=ask.retry_of,
        not_before=ask.delay.due_at(now),
        schedule=ask.schedule,
        tags=ask.tags,
        retry=ask.retry,
    )


def without_delivery_terms(job: ProgramJob) -> ProgramJob:
    """Return the job without hints, as it is kept in the record: it can be sent again at any time."""
    return replace(job, revision=None, max_attempts=None) if job.revision is not None else job


def decode_inline(text: str) -> bytes:
    """Decode an inline input. Raises ValueError."""
    return binascii.a2b_base64(text, strict_mode=True)


def files_of(job: ProgramJob) -> tuple[InputFile, ...]:
    """Return the input files, sorted by name. O(bytes) for inline inputs, whose digests are computed here."""
    if isinstance(job.inputs, ObjectInputs):
        return job.inputs.files
    contents = ((name, decode_inline(text)) for name, text in sorted(job.inputs.files.items()))
    return tuple(InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents)


#: Left out when they have no value: earlier versions do not know them.
_OPTIONAL = ("revision", "max_attempts", "not_before", "schedule", "tags", "retry")


def to_message(job: ProgramJob) -> dict[str, Any]:
    """Return the message as JSON members (GRID-52), with those hints that are set."""
    if isinstance(job.inputs, InlineInputs):
        inputs: dict[str, Any] = {"mode": "inline", "files": dict(job.inputs.files)}
    else:
        listed = [[each.name, each.size, each.sha256] for each in job.inputs.files]
        inputs = {"mode": "object", "object": job.inputs.object, "size": job.inputs.size, "sha256": job.inputs.sha256}
        inputs["files"] = listed
    message = {"v": 1, **vars(job), "args": list(job.args), "inputs": inputs}
    for name in _OPTIONAL:
        if message[name] is None or message[name] == ():
            del message[name]
    return message
