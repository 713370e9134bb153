"""The records of all flow and program runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.core.run import Run

__all__ = ["ABSENT", "LOST", "NO_RUN", "Absent", "Changes", "Lost", "Removed", "Runs", "Stored", "Withdrawn"]


@dataclass(frozen=True)
class Stored:
    """A stored run, and the revision that the next write must name."""

    run: Run
    revision: int
    #: When this revision was stored, by the store's clock; 0.0 if unknown, as after a write.
    stored_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Removed:
    """A run that is no longer stored: withdrawn, or expired."""

    run_id: str
    revision: int
    #: True: the record is still stored, but cannot be decoded; what was known of the run is no longer valid.
    is_corrupt: bool = False
    #: When this revision was stored; 0.0: unknown.
    stored_at: float = field(default=0.0, compare=False)


class Lost:
    """Another writer was faster, and nothing changed."""

    def __repr__(self) -> str:
        return "LOST"


class Absent:
    """There never was such a run, or its trace has expired."""

    revision = 0

    def __repr__(self) -> str:
        return "ABSENT"


@dataclass(frozen=True)
class Withdrawn:
    """The run existed; its submission was withdrawn, or its retention has passed."""

    revision: int


#: The id of no run: looking it up takes the same path as any other id, and returns ABSENT.
NO_RUN = "00000000-0000-4000-8000-000000000000"

LOST = Lost()
ABSENT = Absent()


@dataclass(frozen=True)
class Changes:
    """Changes, oldest first. `epoch` identifies the store: if it changes, everything must be read again."""

    items: tuple[Stored | Removed, ...]
    caught_up: bool
    epoch: str


class Runs(Protocol):
    """The records of all flow and program runs. The holder of the newest revision may write the next.

    An outage raises Unavailable: the write may have happened, so read the record before deciding. Its subclass
    NotStored is certain. A run that exceeds the size cap raises SnapshotTooLargeError, and nothing is written.
    """

    async def create(self, run: Run) -> Stored | Lost:
        """Write a new run. LOST: the id is taken, and nothing changed."""

    def check_size(self, run: Run) -> None:
        """Raise SnapshotTooLargeError if `create` would. Makes no request."""

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        """Return the newest revision according to the leader. One round trip. Raises RecordUnreadable."""

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        """Overwrite exactly `revision`. LOST: another writer was faster, and nothing changed."""

    async def replace_smallest(self, run: Run, revision: int) -> Stored | Lost:
        """Like `replace`, for a terminal run that fits in no other way: status and reason, little else (FLOW-363)."""

    async def withdraw(self, run_id: str, revision: int) -> bool:
        """Withdraw a submission that is unchanged since `revision`. False: it has changed, and stays."""

    async def newest(self) -> int:
        """Return the newest revision of any run according to the leader. Two round trips. 0: there are no runs."""

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        """Yield every change with a revision above `after`, endlessly and resumably; only the newest state of each run.

        `on_heard` is called at least once a second while everything stored has been yielded. If it is not called, it is
        unknown whether there is more: a feed that cannot continue retries for ever, and raises nothing.

        Close it when done (`contextlib.aclosing`): it holds a consumer.
        """
