"""A dead letter: a note about a job set aside, with its reason (section 15.6 of the contract). It contains neither
params nor YAML.

The letter of a program contains the job itself, so that it can be redriven when nothing else is left (GRID-85).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.retries.course import TRY_MEMBERS
from pyoco_server.core.retries.policy import TRIES_MAX
from pyoco_server.core.run import ERROR_LENGTH_MAX, Run
from pyoco_server.errors import Corrupt

__all__ = [
    "LETTER_ID_LENGTH_MAX",
    "UNKNOWN_REASON",
    "DeadLetter",
    "dead_letter_of",
    "encode_dead_letter",
    "read_dead_letter",
    "read_letter_id",
]

#: The reason shown for a foreign letter that gives none.
UNKNOWN_REASON = "unknown"

#: More digits than any stream sequence reaches.
LETTER_ID_LENGTH_MAX = 18

_NAME_LENGTH_MAX = 512
_TAGS_MAX = 100


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    timestamp: float
    #: A `DeadReason`. Values written by others are shown unchanged.
    reason: str
    error: str | None
    #: The subject the letter is published to: <dead-letter prefix>.<tag> (FLOW-330).
    tag: str
    run_id: str | None = None
    flow_name: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    #: How often the job had been delivered when it was set aside.
    num_delivered: int | None = None
    #: The subject the job came in on.
    subject: str | None = None
    #: The tenant of the run. None: no owner; with authentication on, the letter is visible to no tenant.
    tenant_id: str | None = None
    api_key_id: str | None = None
    #: The failed tries of its run, if that had a retry policy.
    tries: tuple[Mapping[str, Any], ...] | None = None
    #: `exec` for a program, and then the following fields are known (GRID-85).
    kind: str | None = None
    job_id: str | None = None
    group: str | None = None
    exec_name: str | None = None
    client_id: str | None = None
    attempt: int | None = None
    lost: int | None = None
    exit_code: int | None = None
    error_code: str | None = None
    #: The message of the queue. It contains arguments and input files, so it is never shown.
    job: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def is_exec(self) -> bool:
        return self.kind == EXEC


def dead_letter_of(
    run: Run, reason: DeadReason, now: float, *, num_delivered: int | None = None, subject: str | None = None
) -> DeadLetter:
    """Return the letter of a run that just ended badly."""
    return DeadLetter(
        timestamp=now,
        reason=reason,
        error=run.error,
        tag=run.tag,
        run_id=run.run_id,
        flow_name=run.flow_name,
        tags=run.tags,
        worker_id=run.worker_id,
        num_delivered=num_delivered,
        subject=subject,
        tenant_id=run.tenant_id,
        api_key_id=run.api_key_id,
        tries=run.tries or None,
        **_of_program(run),
    )


def _of_program(run: Run) -> dict[str, Any]:
    program = run.program
    if program is None:
        return {}
    return {
        "kind": EXEC,
        "job_id": program.job_id,
        "group": program.group,
        "exec_name": program.exec_name,
        "client_id": program.client_id,
        "attempt": run.attempt,
        "lost": program.lost,
        "exit_code": program.exit_code,
        "error_code": program.error_code,
        "job": program.job,
    }


def encode_dead_letter(dead_letter: DeadLetter) -> bytes:
    """Encode a letter: `timestamp`, `reason` and `error` always, other members if known (FLOW-331 to FLOW-334)."""
    known = {name: value for name, value in vars(dead_letter).items() if value is not None or name == "error"}
    return json.dumps(known, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def read_dead_letter(data: bytes, tag: str, stored_at: float) -> DeadLetter:
    """Decode a stored letter; `tag` and `stored_at` replace missing values.

    Any client may have written it: a member of another type counts as missing, long text is cut, and unknown members
    are dropped, because they may be params. Raises Corrupt if the bytes are not a JSON object. O(size).
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"not a dead letter: {error}") from error
    if not isinstance(message, dict):
        raise Corrupt("not a dead letter: not a JSON object")
    timestamp = _instant(message.get("timestamp"))
    return DeadLetter(
        timestamp=stored_at if timestamp is None else timestamp,
        reason=_text(message.get("reason")) or UNKNOWN_REASON,
        error=_text(message.get("error"), ERROR_LENGTH_MAX),
        tag=_text(message.get("tag")) or tag,
        run_id=_text(message.get("run_id")),
        flow_name=_text(message.get("flow_name")),
        tags=_texts(message.get("tags")),
        worker_id=_text(message.get("worker_id")),
        num_delivered=_count(message.get("num_delivered")),
        subject=_text(message.get("subject")),
        tenant_id=_text(message.get("tenant_id")),
        api_key_id=_text(message.get("api_key_id")),
        tries=_tries(message.get("tries")),
        **(_read_of_program(message) if message.get("kind") == EXEC else {}),
    )


def _read_of_program(message: Mapping[str, Any]) -> dict[str, Any]:
    """The job is kept unchanged: it is validated strictly when it is redriven."""
    texts = {name: _text(message.get(name)) for name in ("job_id", "group", "exec_name", "client_id", "error_code")}
    job, exit_code = message.get("job"), message.get("exit_code")
    return texts | {
        "kind": EXEC,
        "attempt": _count(message.get("attempt")),
        "lost": _count(message.get("lost")),
        "exit_code": exit_code if type(exit_code) is int and abs(exit_code) < 2**32 else None,
        "job": job if isinstance(job, dict) else None,
    }


def read_letter_id(text: str) -> int | None:
    """Return the sequence number that an id on the wire stands for. None: the id has another format, so no such letter
    exists."""
    # Check the digits first: converting a number with thousands of digits is expensive.
    if not (text.isascii() and text.isdecimal() and len(text) <= LETTER_ID_LENGTH_MAX) or text.startswith("0"):
        return None
    return int(text)


def _text(value: Any, length_max: int = _NAME_LENGTH_MAX) -> str | None:
    """Cut the text to `length_max`. A lone surrogate, which JSON can spell and UTF-8 cannot hold, becomes a question
    mark."""
    if not isinstance(value, str) or not value:
        return None
    return value[:length_max].encode("utf-8", "replace").decode()


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(text for text in map(_text, value[:_TAGS_MAX]) if text is not None)


def _tries(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    """Return the listed tries. None: there are none, or a foreign client wrote something else."""
    if not isinstance(value, list) or not value or len(value) > TRIES_MAX:
        return None
    if not all(isinstance(entry, dict) and entry.keys() == set(TRY_MEMBERS) for entry in value):
        return None
    return tuple(value)


def _instant(value: Any) -> float | None:
    # Bounded, because JSON has numbers that no float can hold. The comparison also rejects NaN.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None
