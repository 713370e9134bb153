"""The dead letters: jobs set aside, with their reasons."""

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
    """A dead letter as it lies in its stream. Its id is its sequence there, and never used again."""

    letter_id: int
    letter: DeadLetter


@dataclass(frozen=True)
class DeadLetterChanges:
    """New letters, oldest first, and what is no longer there: everything below `first_id`, and `gone`."""

    items: tuple[StoredDeadLetter, ...]
    gone: frozenset[int]
    first_id: int
    #: True once everything has been told that came or went before the feed began.
    caught_up: bool
    #: Names the stream: another one means that all must be read again.
    epoch: str


class DeadLetters(Protocol):
    """The stream of dead letters. `Queue.bury` writes it. An outage raises Unavailable.

    A message in it that is no letter is as good as not there.
    """

    async def find(self, letter_id: int) -> StoredDeadLetter | None:
        """One round trip. None: there is none, or no longer."""

    async def delete(self, letter_id: int) -> bool:
        """One round trip. False: there was none. After a lost answer it may be our own earlier try that took it."""

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[DeadLetterChanges, None]:
        """Every letter with an id above `after`, for ever, resumable; and, within a few seconds, which ones went.

        `on_heard` is called at least once a second while every letter that came has been told, as for runs.
        Close it when done (`contextlib.aclosing`): it holds a consumer.
        """


@dataclass(frozen=True)
class DeadLetterFilter:
    """Which letters are asked for. All that is set must hold."""

    #: Only letters of this tenant's runs; EVERYBODY: all.
    tenant_id: str = EVERYBODY
    reason: str | None = None
    flow: str | None = None
    #: The routing tag or one of the labels, as for runs (FLOW-99).
    tag: str | None = None
    run_id: str | None = None
    #: Of programs: who asked for the job, and where it was queued.
    client_id: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class DeadLetterPage:
    items: list[StoredDeadLetter]
    #: Ids below this one follow; None: nothing follows.
    next_before: int | None


@dataclass(frozen=True)
class DeadLetterCount:
    reason: str
    #: None: the job did not tell.
    flow_name: str | None
    count: int
    newest_at: float


class DeadLetterIndex(Protocol):
    """A read model of the dead letters, one per gateway. It may lag by a moment; it never invents.

    An outage raises Unavailable, and so does everything before `open` and after `close`.
    """

    async def open(self) -> Mark:
        """Open or make it. Returns where the feeding has to go on."""

    async def close(self) -> None:
        """May be called twice."""

    async def damaged(self) -> None:
        """Returns once somebody found it damaged: it has to be opened again, and fed from the beginning."""

    async def apply(self, changes: DeadLetterChanges) -> None:
        """Take in what came and what went, and remember how far, in one transaction. Repeating it changes nothing."""

    async def forget(self, letter_ids: Collection[int]) -> None:
        """These were deleted just now: no list shows them from here on, though word of them may still be on its way."""

    async def reset(self, epoch: str) -> None:
        """Forget everything: the stream is another one."""

    async def page(self, wanted: DeadLetterFilter, limit: int, before: int | None = None) -> DeadLetterPage:
        """Newest first. O(limit * log letters) for one filter, with or without a tenant, and for tenant, reason and
        flow together; any other sieves what these bring. The job of a program's letter is left out: `find` has it."""

    async def counts(self, tenant_id: str = EVERYBODY) -> list[DeadLetterCount]:
        """Grouped by reason and flow, the most first, at most 1,000 groups. O(groups)."""

    async def total(self, tenant_id: str = EVERYBODY) -> int:
        """How many there are, in however many groups. O(groups)."""

    async def of_group(self, tenant_id: str, group: str) -> tuple[int, int | None]:
        """How many letters tell of jobs of this group, and the newest of them. O(that many)."""

    async def recent(self, tenant_id: str, since: float, limit: int) -> int:
        """How many of the newest `limit` letters were written later than this. O(limit)."""
