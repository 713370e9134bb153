"""Why a run waits, as it is told."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.run import Caller
from pyoco_server.core.waiting import WaitReason
from pyoco_server.ports.index.port import Ahead

__all__ = ["AHEAD_MAX", "SECONDS_MAX", "OldestAhead", "Wait", "oldest_of"]

#: Places further back are not counted out: each of them costs 0.1 µs of the one thread that reads the index, at every
#: look at every run that waits.
AHEAD_MAX = 1_000
#: The explanation is a kindness: the answer does not wait longer for it.
SECONDS_MAX = 0.5


@dataclass(frozen=True)
class OldestAhead:
    """The run that has waited longest before this one. Of another tenant's, only the age is told."""

    age_seconds: float
    run_id: str | None = None
    submitted_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a run waits, and what that was concluded from."""

    reason: WaitReason
    message: str
    message_ja: str
    #: 1: it is next. An estimate: jobs are taken by time of submission, unless they have to be repeated.
    position: int
    #: It is further back than `position` says: counting was stopped there.
    position_capped: bool
    #: Workers with the run's tag, and their slots together. Of a pack: all workers; of a disputed one: 0. Of a program:
    #: workers that take it, and how many they run at once.
    workers_alive: int
    slots: int
    slots_busy: int
    oldest_ahead: OldestAhead | None


def oldest_of(ahead: Ahead, caller: Caller, now: float) -> OldestAhead | None:
    oldest = ahead.oldest
    if oldest is None:
        return None
    age = max(0.0, now - oldest.submitted_at)
    if caller.tenant_id is not None and caller.tenant_id != ahead.oldest_tenant_id:  # FLOW-273, FLOW-275
        return OldestAhead(age)
    return OldestAhead(age, oldest.run_id, oldest.submitted_at)
