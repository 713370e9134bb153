"""Which backend routers have sent a job to: decided once, for all routers (GRID-135)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Route", "Routes"]


@dataclass(frozen=True)
class Route:
    job_id: str
    #: The name of the backend.
    group: str
    at: float
    revision: int


class Routes(Protocol):
    """Placements of jobs. An outage raises Unavailable."""

    async def place(self, job_id: str, group: str, now: float) -> Route:
        """Record a placement, unless a router has recorded one. Return the recorded one. One or two round trips."""

    async def find(self, job_id: str) -> Route | None: ...

    async def move(self, route: Route, group: str, now: float) -> Route:
        """Send the job elsewhere from now on (failover).

        Return the placement in force: another router may have been faster.
        """
