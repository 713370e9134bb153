"""How one run is run. An executor never sees a store, a queue or a door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.core.wheel_sync import Environment

__all__ = ["Execution", "Executor", "Work"]


@dataclass(frozen=True)
class Work:
    """What is to be executed: the job, and the message it came in, ready to be handed on unread."""

    job: Job
    data: bytes
    attempt: int = 1


class Execution(Protocol):
    """One attempt under way."""

    async def outcome(self) -> Outcome:
        """How it ended. Waits for the end; never raises."""

    async def progress(self) -> Progress | None:
        """How far it is, or None when the work is too busy to say. Returns within half a second."""

    def ask_cancel(self) -> None:
        """Ask it to stop at its next chance. Safe to repeat; the outcome tells when it has."""

    def kill(self) -> bool:
        """Stop it now, with everything it started. False: this executor has no such power."""


class Executor(Protocol):
    """Runs work. `start` once, then as many `begin` at a time as it has slots."""

    #: Host processes that had to be replaced because they fell over or were killed.
    restarts: int

    @property
    def is_able(self) -> bool:
        """Whether anything could run here now, or as soon as something else has ended. If not, what waits is better
        left to others: it would be begun in vain."""

    async def start(self) -> None:
        """Returns once it can take work. Raises UsageError when it never will."""

    async def stop(self) -> None:
        """Ends whatever still runs, at once. May be called twice."""

    async def begin(self, work: Work, when_free: Callable[[], None]) -> Execution | None:
        """Start one attempt. `when_free` is called once, as soon as there is room for another.

        None: no room for it within two seconds, because what runs takes longer than it used to.
        """

    async def renew(self, environment: Environment) -> None:
        """What begins after this has returned sees `environment`; what runs goes on with what it began with.

        May be called before `start`. Raises UsageError when nothing can be run there: then all is as it was.
        """

    @property
    def paths_in_use(self) -> frozenset[str]:
        """Directories of environments that something which runs may still read."""
