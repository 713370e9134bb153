"""The schedules that flows of apps declare (APP-13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyoco_server.core.flow_offers import FlowOffer
from pyoco_server.core.schedules.reading import read_schedule
from pyoco_server.core.schedules.record import Definition
from pyoco_server.core.schedules.what import Offer

__all__ = ["app_label", "declared_schedule", "redefined", "schedule_name"]


def schedule_name(offer: FlowOffer) -> str:
    return f"app-{offer.flow.app}-{offer.flow.name}"


def app_label(offer: FlowOffer) -> str:
    """Return the label of schedules that an app has written."""
    return f"app:{offer.flow.app}"


def declared_schedule(offer: FlowOffer, now: float) -> Definition:
    """Return the schedule of a flow that has one. Raises InvalidSchedule."""
    flow = offer.flow
    what: dict[str, Any] = {"kind": "flow", "flow_name": flow.name, "tag": offer.tag}
    if flow.tags:
        what["tags"] = list(flow.tags)
    document = {**(flow.schedule or {}), "name": schedule_name(offer), "what": what, "labels": [app_label(offer)]}
    return read_schedule(document, now, Offer())


def redefined(stored: Definition, declared: Definition) -> Definition:
    """Return the stored schedule as the app declares it by now. Whether it is paused stays as it is."""
    return replace(declared, paused=stored.paused, pause_reason=stored.pause_reason, labels=stored.labels)
