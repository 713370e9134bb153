"""The history of jobs, for people and tests. State is never rebuilt from it (GRID-173)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["REPEAT_SECONDS", "Event", "EventName", "Events"]

#: Told again within this time, an event is stored once.
REPEAT_SECONDS = 120.0


class EventName(StrEnum):
    ENQUEUE = "enqueue"
    ASSIGN = "assign"
    REATTACH = "reattach"
    ACK = "ack"
    TIMEOUT_REQUEUE = "timeout_requeue"
    WORKER_DOWN_REQUEUE = "worker_down_requeue"
    DLQ = "dlq"
    CANCEL = "cancel"
    CAP_SET = "cap_set"
    STALE_RESULT = "stale_result"


@dataclass(frozen=True, kw_only=True)
class Event:
    ts: float
    event: EventName
    group: str
    run_id: str | None = None
    job_id: str | None = None
    exec_name: str | None = None
    client_id: str | None = None
    attempt: int = 0
    worker_id: str | None = None
    holder: str | None = None
    detail: str | None = None


class Events(Protocol):
    async def tell(self, event: Event) -> None:
        """Sent in order, and not waited for: what one process tells is stored in the order in which it told it. Best
        effort; never raises. Does nothing where no history is wanted."""

    async def record(self, event: Event) -> None:
        """The same, waited for until it is stored: for the one that ends a job. Repeats are stored once within
        REPEAT_SECONDS. Raises Unavailable."""

    async def recent(self, *, job_id: str | None, event: str | None, group: str | None, limit: int) -> list[Event]:
        """The newest first, among the newest 10,000. Raises Unavailable."""

    async def counts(self, event: EventName) -> dict[str, int]:
        """How many events of this name are kept, by group: one round trip. Raises Unavailable."""
