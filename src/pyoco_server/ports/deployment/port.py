"""The port that inspects a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyoco_server.core.diagnosis.facts import (
    Account,
    Keeper,
    Off,
    Orphans,
    Server,
    StreamFacts,
    Unknown,
    Unreachable,
    Unreadable,
    Workers,
    WorkQueueFacts,
)
from pyoco_server.core.run import Run

__all__ = ["Deployment"]


class Deployment(Protocol):
    """Inspects NATS and our resources on it.

    It creates and changes nothing, and never raises: whatever cannot be determined within a few seconds is Unknown,
    with the reason. Call `reach` first, and once.
    """

    async def reach(self) -> Server | Unreachable:
        """Check whether NATS answers, and return its own description. If it does not, everything else is Unknown."""

    async def account(self) -> Account | Off | Unknown:
        """Return our use of JetStream, and the limits of our account."""

    async def streams(self) -> tuple[StreamFacts, ...]:
        """Return every stream, bucket and object store that we need, as we would create it and as it is. O(streams)."""

    async def clock_ahead(self) -> float | Unknown:
        """Return by how many seconds, at least, this machine's clock is ahead of that of NATS.

        0.0: they agree within the precision of one round trip.
        """

    async def queue(self) -> WorkQueueFacts | Unknown:
        """Return the queued jobs and their consumers. O(tags)."""

    async def workers(self) -> Workers | Unknown:
        """Return every worker record. O(workers)."""

    async def keeper(self) -> Keeper | Unknown:
        """Check whether a keeper is waiting for notices.

        Takes some seconds if there is none, because a keeper pauses between two pulls.
        """

    async def remembered_ledger(self) -> str | Unknown | None:
        """Return the id of the ledger that priced runs use here. None: none is recorded."""

    async def orphans(self) -> tuple[Orphans | Unknown, ...]:
        """Count the chunks that belong to no object, per object store, up to a thousand. O(files)."""

    async def unreadable(self) -> Unreadable | Unknown:
        """Return run records that cannot be decoded, out of those read within three seconds; at most 100 are named."""

    async def runs(self, run_ids: Sequence[str]) -> tuple[Run, ...] | Unknown:
        """Return those of these runs that exist. One round trip each."""
