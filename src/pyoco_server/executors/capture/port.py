"""Where captured lines go. An executor knows no store: it passes on finished batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.shipment import Shipment

__all__ = ["Captured", "Collector"]


@dataclass(frozen=True)
class Captured:
    """The attempt that lines belong to."""

    run_id: str
    attempt: int


class Collector(Protocol):
    #: The bounds of each attempt.
    limits: Limits
    #: The least level of records, as a number of `logging`.
    level: int

    def collect(self, captured: Captured, shipment: Shipment) -> None:
        """Take a batch of this attempt, after all earlier ones. Never waits and never raises."""
