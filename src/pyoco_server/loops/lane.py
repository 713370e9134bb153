"""What a worker drives: one lane for each kind of run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyoco_server.core.worker_description import LaneReport

__all__ = ["Lane"]


class Lane(Protocol):
    """Takes the jobs of one kind from their queue and executes them, as many at once as it has slots.

    A lane knows nothing of its worker: what the worker has to know, it reports.
    """

    #: Called whenever `report` would return something else. The worker sets it before the start.
    when_changed: Callable[[], None]

    def report(self) -> LaneReport:
        """Return what the worker's record says of this lane now. Never waits; also before the start."""

    async def start(self) -> None:
        """Return once the lane takes jobs. Raises UsageError if it never will, Unavailable."""

    async def stop(self, drain_seconds: float | None) -> None:
        """Take no more jobs, and let running ones finish. After `drain_seconds` (None: the lane's own limit, if it has
        one) give back the runs that still run, so that another worker can take them at once, and end their processes.

        Idempotent; harmless without a start, and while one is under way. Cancelling it leaves everything to redelivery.
        """
