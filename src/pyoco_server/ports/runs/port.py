"""The record of every flow and program run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.core.run import Run

__all__ = ["ABSENT", "LOST", "NO_RUN", "Absent", "Changes", "Lost", "Removed", "Runs", "Stored", "Withdrawn"]


@dataclass(frozen=True)
class Stored:
    """A run as it is stored, and the revision that the next write has to name."""

    run: Run
    revision: int
    #: When this revision was stored, by the store's own clock; 0.0 when that is not known, as after a write.
    stored_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Removed:
    """A run that is no longer stored: withdrawn, or expired."""

    run_id: str
    revision: int
    #: The record is still stored, but it cannot be decoded: what was known of the run is not true any more.
    is_corrupt: bool = False
    #: When that revision was stored; 0.0: not known.
    stored_at: float = field(default=0.0, compare=False)


class Lost:
    """Someone was faster, and nothing changed."""

    def __repr__(self) -> str:
        return "LOST"


class Absent:
    """There never was such a run, or its trace has expired."""

    revision = 0

    def __repr__(self) -> str:
        return "ABSENT"


@dataclass(frozen=True)
class Withdrawn:
    """There was such a run; its submission was taken back, or its retention has passed."""

    revision: int


#: No run has it: a question about it takes the same way as any other, and the answer is ABSENT.
NO_RUN = "00000000-0000-4000-8000-000000000000"

LOST = Lost()
ABSENT = Absent()


@dataclass(frozen=True)
class Changes:
    """What changed, oldest first. `epoch` names the store: another one means that all must be read again."""

    items: tuple[Stored | Removed, ...]
    caught_up: bool
    epoch: str


class Runs(Protocol):
    """The record of every flow and program run. Who holds the newest revision may write the next.

    An outage raises Unavailable: the write may have happened; read back before deciding. NotStored, a kind of
    it, is certain. A run too large for its cap raises SnapshotTooLargeError, and nothing is written.
    """

    async def create(self, run: Run) -> Stored | Lost:
        """Write a run that must not exist yet. LOST: the id is taken, and nothing changed."""

    def check_size(self, run: Run) -> None:
        """Raises SnapshotTooLargeError where `create` would. Asks nobody and writes nothing."""

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        """The newest revision, as the leader knows it: one round trip. Raises RecordUnreadable."""

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        """Write over exactly `revision`. LOST: someone was faster, and nothing changed."""

    async def replace_smallest(self, run: Run, revision: int) -> Stored | Lost:
        """As `replace`, for a terminal run that fits in no other way: status and reason, little else (FLOW-363)."""

    async def withdraw(self, run_id: str, revision: int) -> bool:
        """Take back a submission that nobody has touched since `revision`. False: somebody did; it stays."""

    async def newest(self) -> int:
        """The newest revision of any run, as the leader knows it: two round trips. 0: there is none."""

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        """Every change with a revision above `after`, for ever, resumable; the newest state of each run.

        `on_heard` is called at least once a second while everything that is stored has been told. Silence means that
        nobody knows whether there was more: a feed that cannot go on tries again for ever, and says nothing.
        Close it when done (`contextlib.aclosing`): it holds a consumer.
        """
