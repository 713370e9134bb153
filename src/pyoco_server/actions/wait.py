"""The explanation of why a run waits."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.run import Caller, Run
from pyoco_server.core.waiting import WaitReason, tell_time
from pyoco_server.ports.index.port import Ahead

__all__ = ["AHEAD_MAX", "SECONDS_MAX", "OldestAhead", "Wait", "oldest_of", "wait_for_time"]

#: Positions further back are not counted: each costs 0.1 µs of the single thread that reads the index, for every read
#: of every waiting run.
AHEAD_MAX = 1_000
#: The explanation is optional: the answer does not wait longer for it.
SECONDS_MAX = 0.5


@dataclass(frozen=True)
class OldestAhead:
    """The run that has waited longest before this one. Of another tenant's run, only the age is shown."""

    age_seconds: float
    run_id: str | None = None
    submitted_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a run waits, and the facts that this was concluded from."""

    reason: WaitReason
    message: str
    message_ja: str
    #: 1: it is next. An estimate: jobs are taken in order of submission, unless they have to be redelivered. None: the
    #: run has no job and waits for its time.
    position: int | None
    #: The real position is further back than `position`: counting stopped there.
    position_capped: bool
    #: Workers with the run's tag, and the sum of their slots. For a pack: all workers; for a disputed one: 0. For a
    #: program: workers that take it, and how many they run concurrently.
    workers_alive: int
    slots: int
    slots_busy: int
    oldest_ahead: OldestAhead | None
    #: When the run may start. None: it waits for something else.
    until: float | None = None


def wait_for_time(run: Run) -> Wait:
    """Explain the wait of a run that has no job yet (DELAY-4, RETRY-14)."""
    reason, message, message_ja = tell_time(run)
    return Wait(
        reason=reason,
        message=message,
        message_ja=message_ja,
        position=None,
        position_capped=False,
        workers_alive=0,
        slots=0,
        slots_busy=0,
        oldest_ahead=None,
        until=run.due_at,
    )


def oldest_of(ahead: Ahead, caller: Caller, now: float) -> OldestAhead | None:
    oldest = ahead.oldest
    if oldest is None:
        return None
    age = max(0.0, now - oldest.submitted_at)
    if caller.tenant_id is not None and caller.tenant_id != ahead.oldest_tenant_id:  # FLOW-273, FLOW-275
        return OldestAhead(age)
    return OldestAhead(age, oldest.run_id, oldest.submitted_at)
