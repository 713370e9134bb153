"""The history of the wheel registry (section 12.2)."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.wheel_event import WheelAction, WheelEvent

__all__ = ["WheelHistory"]


class WheelHistory(Protocol):
    """One event per change, kept for the configured time. An outage raises Unavailable."""

    async def add(self, event: WheelEvent) -> None:
        """Add an event. One round trip."""

    async def newest(
        self, limit: int, wheel_name: str | None = None, action: WheelAction | None = None
    ) -> list[WheelEvent]:
        """Return the newest matching events, newest first.

        O(limit) without a filter; O(events) with one, 200 ms for 20,000 of them. Takes few round trips, and memory that
        does not grow with the history. An unreadable event is skipped, and logged if it might match.
        """
