"""The history of the wheel registry (section 12.2)."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.wheel_event import WheelAction, WheelEvent

__all__ = ["WheelHistory"]


class WheelHistory(Protocol):
    """One event for each change, kept for as long as the settings say. An outage raises Unavailable."""

    async def add(self, event: WheelEvent) -> None:
        """Write it down: one round trip."""

    async def newest(
        self, limit: int, wheel_name: str | None = None, action: WheelAction | None = None
    ) -> list[WheelEvent]:
        """The newest events that match, newest first. O(limit) without a filter; O(events) with one, 200 ms for 20,000
        of them. In few round trips, and in memory that does not grow with the history. An event nobody can read is
        passed over, and logged if it may have been wanted."""
