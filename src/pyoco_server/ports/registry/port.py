"""The registry of workers, as they announce themselves."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["Registry"]


class Registry(Protocol):
    """One record per worker id. A worker writes its own; only `hidden` belongs to the operator (FLOW-148).

    An outage raises Unavailable. After `start` reads come from memory, which a watch keeps up to date.
    """

    async def start(self) -> None:
        """Begin to follow all changes, in a process that reads often.

        Returns once all records are loaded. Idempotent.
        """

    async def stop(self) -> None:
        """Stop following changes. Idempotent, and harmless without `start`."""

    async def announce(self, record: WorkerRecord) -> WorkerRecord:
        """Write the worker's own record over the stored one, keeping the operator's fields. Return what was stored.

        Logs a warning if another live instance has the same id, and takes over its record (FLOW-200). A deleted record
        is created again.
        """

    async def retire(self, record: WorkerRecord) -> bool:
        """Write the worker's last record. False: another instance has taken over the id, and nothing changed."""

    async def find(self, worker_id: str) -> WorkerRecord | None:
        """Return the newest record. None: the worker does not exist."""

    async def all(self) -> list[WorkerRecord]:
        """Return every worker. O(workers), without a round trip. Requires `start`.

        Raises Unavailable while the answer might be out of date: immediately without a connection, and after a short
        wait if the connection is silent.
        """

    def known(self) -> list[WorkerRecord]:
        """Return every worker as last seen, without waiting: perhaps out of date. Nothing without `start`."""

    async def hide(self, worker_id: str, hidden: bool, now: float) -> WorkerRecord | None:
        """Store whether the worker is hidden, and leave everything else unchanged. None: the worker does not exist.

        Two round trips, more while the worker writes at the same time. Later reads from this registry see the change.
        """

    async def remove(self, record: WorkerRecord) -> bool:
        """Delete exactly this record. False: it was changed or deleted meanwhile, and nothing happened."""
