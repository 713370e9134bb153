"""List the history of the wheel registry."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.wheel_event import WheelAction, WheelEvent
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["HistoryFilter", "list_wheel_history"]


@dataclass(frozen=True, kw_only=True)
class HistoryFilter:
    """Which events to return; all conditions must match (FLOW-150)."""

    limit: int = 100
    wheel_name: str | None = None
    action: WheelAction | None = None


async def list_wheel_history(backend: GatewayBackend, wanted: HistoryFilter) -> list[WheelEvent]:
    """Return the newest events that match, newest first. O(limit), with a filter O(events). Raises Unavailable."""
    return await backend.wheel_history.newest(wanted.limit, wanted.wheel_name, wanted.action)
