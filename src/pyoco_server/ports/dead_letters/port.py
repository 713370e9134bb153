"""Dead letters: jobs set aside, with their reasons."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.ports.index.port import EVERYBODY, Mark

__all__ = [
    "DeadLetterChanges",
    "DeadLetterCount",
    "DeadLetterFilter",
    "DeadLetterIndex",
    "DeadLetterPage",
    "DeadLetters",
    "StoredDeadLetter",
]


@dataclass(frozen=True)
class StoredDeadLetter:
    """A dead letter as stored. Its id is its sequence in the stream, and is never reused."""

    letter_id: int
    dead_letter: DeadLetter


@dataclass(frozen=True)
class DeadLetterChanges:
    """New dead letters, oldest first, and deletions: every id below `first_id`, and those in `gone`."""

    items: tuple[StoredDeadLetter, ...]
    gone: frozenset[int]
    first_id: int
    #: True once everything that was added or deleted before the feed began has been reported.
    caught_up: bool
    #: Identifies the stream: if it changes, everything must be read again.
    epoch: str


class DeadLetters(Protocol):
    """The stream of dead letters, written by `Queue.bury`. An outage raises Unavailable.

    Messages in it that are not dead letters are ignored.
    """

    async def find(self, letter_id: int) -> StoredDeadLetter | None:
        """Return the dead letter. One round trip. None: it does not exist, or no longer."""

    async def delete(self, letter_id: int) -> bool:
        """Delete the dead letter. One round trip.

        False: it did not exist. After a lost answer, our own earlier attempt may have deleted it.
        """

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[DeadLetterChanges, None]:
        """Yield every dead letter with an id above `after`, endlessly and resumably, and deletions within a few
        seconds.

        `on_heard` is called at least once a second while every dead letter that arrived has been yielded, as for runs.

        Close it when done (`contextlib.aclosing`): it holds a consumer.
        """


@dataclass(frozen=True)
class DeadLetterFilter:
    """Criteria for dead letters. All criteria that are set must match."""

    #: Only dead letters of this tenant's runs; EVERYBODY: those of all tenants.
    tenant_id: str = EVERYBODY
    reason: str | None = None
    flow: str | None = None
    #: The routing tag or one of the labels, as for runs (FLOW-99).
    tag: str | None = None
    run_id: str | None = None
    #: Programs only: the client that submitted the job, and the group it was queued in.
    client_id: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class DeadLetterPage:
    items: list[StoredDeadLetter]
    #: Pass this as `before` for the next page. None: this is the last page.
    next_before: int | None


@dataclass(frozen=True)
class DeadLetterCount:
    reason: str
    #: None: the job does not contain it.
    flow_name: str | None
    count: int
    newest_at: float


class DeadLetterIndex(Protocol):
    """A read model of the dead letters, one per gateway. It may lag briefly; it never contains invented entries.

    An outage raises Unavailable, as does any call before `open` and after `close`.
    """

    async def open(self) -> Mark:
        """Open or create the index. Return the mark at which feeding must resume."""

    async def close(self) -> None:
        """Close the index. Idempotent."""

    async def damaged(self) -> None:
        """Return once the index was found damaged: it must be reopened, and fed from the beginning."""

    async def apply(self, changes: DeadLetterChanges) -> None:
        """Apply additions and deletions, and move the mark, in one transaction. Idempotent."""

    async def forget(self, letter_ids: Collection[int]) -> None:
        """Remove dead letters that were just deleted.

        No list shows them from now on, even if the feed has yet to report them.
        """

    async def reset(self, epoch: str) -> None:
        """Delete all entries: the stream was replaced."""

    async def page(self, wanted: DeadLetterFilter, limit: int, before: int | None = None) -> DeadLetterPage:
        """Return one page, newest first.

        O(limit * log letters) for one criterion, with or without a tenant, and for tenant, reason and flow together;
        any other criterion filters the rows that these find. The job of a program's dead letter is left out: `find`
        returns it.
        """

    async def counts(self, tenant_id: str = EVERYBODY) -> list[DeadLetterCount]:
        """Return counts by reason and flow, largest first, at most 1,000 groups. O(groups)."""

    async def total(self, tenant_id: str = EVERYBODY) -> int:
        """Return the number of dead letters in all groups. O(groups)."""

    async def of_group(self, tenant_id: str, group: str) -> tuple[int, int | None]:
        """Return how many dead letters are of jobs of this group, and the newest id. O(that many)."""

    async def recent(self, tenant_id: str, since: float, limit: int) -> int:
        """Return how many of the newest `limit` dead letters were written after `since`. O(limit)."""
