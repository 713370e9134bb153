"""The port for executing one run. An executor uses no store, queue or door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyoco_server.core.job import Job
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.core.wheel_sync import Environment

__all__ = ["Execution", "Executor", "Work"]


@dataclass(frozen=True)
class Work:
    """What to execute: the job, and the undecoded message it came in, to be passed on as it is."""

    job: Job
    data: bytes
    attempt: int = 1
    #: Seconds for this try, of the submission or as the flow said before. None: as the flow says.
    timeout: float | None = None
    #: As `core.run.Run.task_tries`.
    task_tries: Mapping[str, Any] = field(default_factory=dict)


class Execution(Protocol):
    """One attempt in progress."""

    async def outcome(self) -> Outcome:
        """Wait for the end of the attempt and return its outcome. Never raises."""

    async def progress(self) -> Progress | None:
        """Return the progress, or None if the work is too busy to report it. Takes at most half a second."""

    def ask_cancel(self) -> None:
        """Request the work to stop at its next opportunity. Idempotent; the outcome shows when it has stopped."""

    def kill(self) -> bool:
        """Stop the work and everything it started immediately. Returns False if this executor cannot kill."""


class Executor(Protocol):
    """Executes work. Call `start` once, then `begin` up to as many times concurrently as there are slots."""

    @property
    def restarts(self) -> int:
        """Number of host processes that were replaced because they crashed or were killed."""

    @property
    def is_able(self) -> bool:
        """Whether work could run here now, or as soon as other work has ended. If not, waiting jobs are better released
        for other workers: beginning them here would fail."""

    async def start(self) -> None:
        """Return once work can begin. Raises UsageError if that will never be possible."""

    async def stop(self) -> None:
        """End all running work immediately. Idempotent."""

    async def begin(self, work: Work, when_free: Callable[[], None]) -> Execution | None:
        """Start one attempt. `when_free` is called once, as soon as there is room for another.

        Returns None if no slot became free within two seconds, because running work takes longer than it used to.
        """

    async def renew(self, environment: Environment) -> None:
        """Switch to `environment`: attempts that begin after this call use it; running ones keep theirs.

        May be called before `start`. Raises UsageError if nothing can run in the environment; then nothing has changed.
        """

    @property
    def offered(self) -> tuple[OfferedFlow, ...] | None:
        """The flows of the app that is served, by name; known once `start` has returned. None: it is a resolver, which
        announces nothing."""

    @property
    def paths_in_use(self) -> frozenset[str]:
        """Directories of environments that running work may still read."""
