"""What can be known of a deployment by looking at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyoco_server.core.diagnosis.facts import (
    Account,
    Keeper,
    Off,
    Orphans,
    Queue,
    Server,
    Stream,
    Unknown,
    Unreachable,
    Unreadable,
    Workers,
)
from pyoco_server.core.run import Run

__all__ = ["Deployment"]


class Deployment(Protocol):
    """A look at NATS and at what of ours is on it. It makes nothing and changes nothing, and it never raises: what
    cannot be had within a few seconds is Unknown, with the reason. Ask `reach` first, and once."""

    async def reach(self) -> Server | Unreachable:
        """Whether NATS answers, and what it says of itself. Without it everything else is Unknown."""

    async def account(self) -> Account | Off | Unknown:
        """What we use of JetStream, and what we may use."""

    async def streams(self) -> tuple[Stream, ...]:
        """Every stream, bucket and object store we need, as we would make it and as it is. O(streams)."""

    async def clock_ahead(self) -> float | Unknown:
        """By how many seconds this machine's clock is ahead of that of NATS, at least; 0.0: they agree as far as one
        round trip can tell."""

    async def queue(self) -> Queue | Unknown:
        """The jobs and who takes them. O(tags)."""

    async def workers(self) -> Workers | Unknown:
        """Every record of a worker. O(workers)."""

    async def keeper(self) -> Keeper | Unknown:
        """Whether a keeper waits for notices. May take some seconds when there is none: between two waits it pauses."""

    async def remembered_ledger(self) -> str | Unknown | None:
        """The id of the ledger that priced runs use here. None: none is remembered."""

    async def orphans(self) -> tuple[Orphans | Unknown, ...]:
        """Parts of files that belong to none, for each object store: up to a thousand. O(files)."""

    async def unreadable(self) -> Unreadable | Unknown:
        """Run records that cannot be decoded, of as many as can be read within three seconds; at most 100 are named."""

    async def runs(self, run_ids: Sequence[str]) -> tuple[Run, ...] | Unknown:
        """Those of these runs that there are: one round trip each."""
