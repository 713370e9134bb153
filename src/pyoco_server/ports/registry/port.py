"""The workers there are, by their own word."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["Registry"]


class Registry(Protocol):
    """One record per worker id. A worker writes its own; only `hidden` belongs to the operator (FLOW-148).

    An outage raises Unavailable. A registry that was started reads from memory, kept true by a watch.
    """

    async def start(self) -> None:
        """Begin to follow every change, for a process that reads often. Returns once all is known. May be repeated."""

    async def stop(self) -> None:
        """End the following. May be called twice, or without a start."""

    async def announce(self, record: WorkerRecord) -> WorkerRecord:
        """Write my record over whatever is there, keeping the operator's fields. Returns what was stored.

        Finding another live instance under the same id logs a warning and takes the record over (FLOW-200). A record
        that was removed is made anew.
        """

    async def retire(self, record: WorkerRecord) -> bool:
        """Write my last record, unless another instance has the id by now: then False, and nothing changed."""

    async def find(self, worker_id: str) -> WorkerRecord | None:
        """The newest record, or None."""

    async def all(self) -> list[WorkerRecord]:
        """Every worker there is; O(workers), no round trip. Only on a registry that was started.

        Raises Unavailable while the answer might be out of date: at once without a connection, and after a moment
        with one that is silent.
        """

    async def hide(self, worker_id: str, hidden: bool, now: float) -> WorkerRecord | None:
        """Write down whether the worker is to be shown, and leave all else as it is. None: there is no such worker.

        Two round trips, more while the worker writes at the same moment. Whoever asks this registry afterwards reads
        what was written.
        """

    async def remove(self, record: WorkerRecord) -> bool:
        """Take exactly this record out. False: it has changed or gone meanwhile, and nothing happened."""
