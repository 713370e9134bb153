"""The options of `apply_async`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from pyoco_server.compat.celery.refusals import SENDING, refuse_all

__all__ = ["Sending", "label_of"]


def label_of(task_id: str) -> str:
    """Return the label of the run that was submitted with this id."""
    return f"task_id:{task_id}"


@dataclass(frozen=True)
class Sending:
    """How a task or a canvas is submitted."""

    countdown: float | None = None
    eta: datetime | None = None
    queue: str | None = None
    task_id: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Sending:
        """Raises NotOffered for every other option, whatever its value is."""
        refuse_all((name for name in options if name not in cls.__dataclass_fields__), SENDING, "apply_async")
        return cls(**options)

    def options(self, timezone: str, default_queue: str | None) -> dict[str, Any]:
        """Return the options of the flow. Raises ValueError."""
        if self.countdown is not None and self.eta is not None:
            raise ValueError("give countdown or eta, not both")
        found: dict[str, Any] = {"tag": self.queue or default_queue}
        if self.countdown is not None:
            found["delay"] = max(float(self.countdown), 0.0)
        if self.eta is not None:
            eta = self.eta if self.eta.tzinfo is not None else self.eta.replace(tzinfo=ZoneInfo(timezone))
            found["not_before"] = eta.timestamp()
        if self.task_id is not None:
            found |= {"tags": [label_of(self.task_id)], "idempotency_key": self.task_id}
        return found
