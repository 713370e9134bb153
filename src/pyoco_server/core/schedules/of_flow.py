"""The schedule that an app declares for a flow (APP-13)."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.schedules.reading import read_schedule
from pyoco_server.core.schedules.record import Definition
from pyoco_server.core.schedules.what import Offer

__all__ = ["schedule_of"]


def schedule_of(flow: OfferedFlow, now: float) -> Definition | None:
    """Return the schedule `app-<app>-<flow>`. None: the flow has none. Raises InvalidSchedule."""
    if flow.schedule is None:
        return None
    what: dict[str, Any] = {"kind": "flow", "flow_name": flow.name}
    if flow.tags:
        what["tags"] = list(flow.tags)
    document = {
        "name": f"app-{flow.app}-{flow.name}",
        "what": what,
        "labels": [f"app:{flow.app}"],
        **flow.schedule,
    }
    return read_schedule(document, now, Offer())
