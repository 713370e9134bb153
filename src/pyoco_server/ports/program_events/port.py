"""The history of jobs, for operators and tests. State is never rebuilt from it (GRID-173)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["REPEAT_SECONDS", "Event", "EventName", "Events"]

#: An event that is repeated within this time is stored once.
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
        """Send an event without waiting for it to be stored.

        The events of one process are stored in the order of these calls. Best effort; never raises. Does nothing if the
        history is turned off.
        """

    async def record(self, event: Event) -> None:
        """Send an event and wait until it is stored: for the event that ends a job.

        Repeats within REPEAT_SECONDS are stored once. Raises Unavailable.
        """

    async def recent(self, *, job_id: str | None, event: str | None, group: str | None, limit: int) -> list[Event]:
        """Return matching events out of the newest 10,000, newest first. Raises Unavailable."""

    async def counts(self, event: EventName) -> dict[str, int]:
        """Return the number of stored events of this name, by group. One round trip. Raises Unavailable."""
