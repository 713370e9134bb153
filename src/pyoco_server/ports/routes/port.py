"""Where routers have sent a job: decided once, for all of them (GRID-135)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Route", "Routes"]


@dataclass(frozen=True)
class Route:
    job_id: str
    #: The backend's name.
    group: str
    at: float
    revision: int


class Routes(Protocol):
    """An outage raises Unavailable."""

    async def place(self, job_id: str, group: str, now: float) -> Route:
        """Write it down, unless a router has: then what that one wrote. One round trip, or two."""

    async def find(self, job_id: str) -> Route | None: ...

    async def move(self, route: Route, group: str, now: float) -> Route:
        """Failover: send it elsewhere from now on. What is answered counts: another router may have been faster."""
