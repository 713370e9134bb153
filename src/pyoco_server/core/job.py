"""The message that asks a worker to execute a run (section 15.3 of the contract)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.core.names import is_run_id, is_tag, tag_problem
from pyoco_server.core.retries.reading import RUN_TIMEOUT_MAX, RUN_TIMEOUT_MIN
from pyoco_server.core.run import Run, Submission
from pyoco_server.errors import InvalidJob, Problem

__all__ = ["Job", "decode_job", "encode_job", "job_of", "run_of", "to_message", "trust_job"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run's message on the queue. It carries everything a worker needs, so a short run costs no read."""

    run_id: str
    flow_name: str
    tag: str
    submitted_at: float
    tags: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    rerun_of: str | None = None
    #: As in `core.run.Submission`.
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None
    #: The revision of the PENDING record this job belongs to. A worker may claim over exactly that revision without
    #: reading the record first; it reads only after losing the claim. None: a foreign producer made the job.
    revision: int | None = None


def job_of(run: Run, ask: Submission, revision: int) -> Job:
    """Return the job of a run, whose record has this revision.

    A job does not carry the schedule of a run. So that of such a run names an older revision: its first claim then
    reads the record instead of writing over it.
    """
    if run.schedule is not None:
        revision = max(revision - 1, 0)
    return Job(
        run_id=run.run_id,
        flow_name=run.flow_name,
        tag=run.tag,
        tags=run.tags,
        params=run.params,
        submitted_at=run.submitted_at,
        workflow_yaml=ask.workflow_yaml,
        workflow_yaml_sha256=run.workflow_yaml_sha256,
        workflow_yaml_bytes=run.workflow_yaml_bytes,
        tenant_id=run.tenant_id,
        api_key_id=run.api_key_id,
        rerun_of=run.rerun_of,
        retry=run.retry,
        timeout=run.timeout,
        revision=revision,
    )


def run_of(job: Job) -> Run:
    """Return the PENDING record this job was made from (FLOW-310). Gateway and workers derive the same record."""
    return Run(
        run_id=job.run_id,
        flow_name=job.flow_name,
        tag=job.tag,
        tags=job.tags,
        params=job.params,
        submitted_at=job.submitted_at,
        updated_at=job.submitted_at,
        heartbeat_at=job.submitted_at,
        workflow_yaml_sha256=job.workflow_yaml_sha256,
        workflow_yaml_bytes=job.workflow_yaml_bytes,
        tenant_id=job.tenant_id,
        api_key_id=job.api_key_id,
        rerun_of=job.rerun_of,
        retry=job.retry,
        timeout=job.timeout,
    )


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_OPTIONAL = (
    "workflow_yaml",
    "workflow_yaml_sha256",
    "workflow_yaml_bytes",
    "tenant_id",
    "api_key_id",
    "rerun_of",
    "retry",
    "timeout",
    "revision",
)


def to_message(job: Job) -> dict[str, Any]:
    """Return the job in the form of section 15.3 of the contract."""
    message: dict[str, Any] = {
        "run_id": job.run_id,
        "flow_name": job.flow_name,
        "tag": job.tag,
        "tags": list(job.tags),
        "params": job.params,
        "submitted_at": job.submitted_at,
    }
    for name in _OPTIONAL:
        value = getattr(job, name)
        if value is not None:
            message[name] = value
    return message


def encode_job(job: Job) -> bytes:
    """Encode a job. Non-ASCII text is not escaped (FLOW-306)."""
    return _encoder.encode(to_message(job)).encode("utf-8", "replace")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_instant(value: Any) -> bool:
    # Bounded, because JSON has integers that no float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _is_tag(value: Any) -> bool:
    # A tag becomes part of a subject (FLOW-32, FLOW-330), and white space in a subject would break the protocol.
    return isinstance(value, str) and (is_tag(value) or tag_problem(value) is None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_timeout(value: Any) -> bool:
    return _is_instant(value) and RUN_TIMEOUT_MIN <= value <= RUN_TIMEOUT_MAX


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


#: FLOW-296 to FLOW-304: field, whether it is required, check, description of a valid value.
_SHAPE: tuple[tuple[str, bool, Callable[[Any], bool], str], ...] = (
    ("run_id", True, lambda value: isinstance(value, str) and is_run_id(value), "a UUID"),
    ("flow_name", True, _is_text, "a non-empty string"),
    ("tag", True, _is_tag, "one token of a subject"),
    ("submitted_at", True, _is_instant, "a number of unix seconds"),
    ("tags", False, _is_texts, "an array of strings"),
    ("params", False, lambda value: isinstance(value, dict), "an object"),
    ("workflow_yaml", False, _is_text, "a non-empty string"),
    ("workflow_yaml_sha256", False, _is_text, "a non-empty string"),
    ("workflow_yaml_bytes", False, _is_count, "a number"),
    ("tenant_id", False, _is_text, "a non-empty string"),
    ("api_key_id", False, _is_text, "a non-empty string"),
    ("rerun_of", False, lambda value: isinstance(value, str) and is_run_id(value), "a UUID"),
    ("retry", False, lambda value: isinstance(value, dict), "an object"),
    ("timeout", False, _is_timeout, "a number of seconds"),
    ("revision", False, _is_count, "a number"),
)


_NAMES = tuple(name for name, *_ in _SHAPE)


def decode_job(data: bytes) -> Job:
    """Decode a job. Raises InvalidJob with all problems, and with the run id if at least that can be read
    (FLOW-316)."""
    try:
        message = _decoder.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the job is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise InvalidJob("the job is not a JSON object")
    problems = tuple(_problems(message))
    if problems:
        run_id = message.get("run_id")
        raise InvalidJob(
            "the job is not valid: " + "; ".join(f"{item.loc[0]}: {item.msg}" for item in problems),
            run_id=run_id if isinstance(run_id, str) and is_run_id(run_id) else None,
            problems=problems,
        )
    return _job(message)


def trust_job(data: bytes) -> Job:
    """Decode a job that `decode_job` accepted before: a host does not repeat the checks of its worker."""
    return _job(json.loads(data))


def _job(message: Mapping[str, Any]) -> Job:
    known = {name: message[name] for name in _NAMES if message.get(name) is not None}
    known["tags"] = tuple(known.get("tags", ()))
    return Job(**known)


def _finite(text: str) -> float:
    """Refuse NaN and infinities. We could not write them back: our records are strict JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a number that JSON has")
    return number


_decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _problems(message: Mapping[str, Any]) -> list[Problem]:
    found = []
    for name, required, check, expected in _SHAPE:
        value = message.get(name)
        if value is None:
            if required:
                found.append(Problem((name,), "is missing", "missing"))
        elif not check(value):
            found.append(Problem((name,), f"must be {expected}", "type"))
    return found
