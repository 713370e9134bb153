"""A job set aside, with the reason (section 15.6 of the contract). For diagnosis: it holds neither params nor YAML."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Run

__all__ = ["DeadLetter", "encode_dead_letter", "letter_of"]


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    timestamp: float
    reason: DeadReason
    error: str | None
    #: Where the letter goes: <dead-letter prefix>.<tag> (FLOW-330).
    tag: str
    run_id: str | None = None
    flow_name: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    #: How often the job had been delivered when it was set aside.
    num_delivered: int | None = None
    #: The subject the job came in on.
    subject: str | None = None


def letter_of(
    run: Run, reason: DeadReason, now: float, *, num_delivered: int | None = None, subject: str | None = None
) -> DeadLetter:
    """The letter of a run that has just ended badly."""
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
    )


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """`timestamp`, `reason` and `error` always, the rest when known (FLOW-331 to FLOW-334)."""
    known = {name: value for name, value in asdict(letter).items() if value is not None or name == "error"}
    return json.dumps(known, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
