"""The stored logs of runs: batches of lines, by run and attempt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LogStore", "RunLogs", "StoredBatch", "StoredBatches"]


@dataclass(frozen=True)
class StoredBatch:
    """One batch as it was stored."""

    attempt: int
    #: Rises with each batch, over all runs.
    number: int
    stored_at: float
    payload: bytes


@dataclass(frozen=True)
class StoredBatches:
    """Batches that were available, in the order in which they were stored."""

    items: tuple[StoredBatch, ...]
    #: True once all batches that existed at the beginning have been reported.
    caught_up: bool


@dataclass(frozen=True)
class LogStore:
    """The state of the store of all logs."""

    size: int
    #: When it was created; earlier runs have no logs.
    created_at: float
    #: When the oldest batch that is left was stored. None: the store is empty.
    first_at: float | None
    #: Whether batches have been deleted by their age, or for lack of room.
    has_forgotten: bool


class RunLogs(Protocol):
    """An outage raises Unavailable."""

    async def append(self, run_id: str, attempt: int, payload: bytes, after: int) -> int:
        """Store a batch after the batch with the number `after` (0: as the first of this attempt). Returns its number.

        Idempotent: a batch that was stored without our knowledge is not stored again. One writer per attempt.
        """

    async def delete(self, number: int) -> None:
        """Delete a batch. Idempotent."""

    def batches(self, run_id: str) -> AsyncGenerator[StoredBatches, None]:
        """Yield the batches of a run, and new ones as they are stored, without end.

        Costs O(batches of this run). Close it when done (`contextlib.aclosing`): it holds a consumer. A slow reader is
        sent no more than it takes.
        """

    async def state(self) -> LogStore:
        """Return the state of the store. One round trip."""
