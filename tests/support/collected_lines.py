"""Takes the lines that an executor captures, and puts them together as readers see them."""

from __future__ import annotations

from collections import defaultdict

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.executors.capture.port import Captured

__all__ = ["CollectedLines"]


class CollectedLines:
    """A `Collector`."""

    level = 20

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.shipments: dict[Captured, list[Shipment]] = defaultdict(list)

    def collect(self, captured: Captured, shipment: Shipment) -> None:
        self.shipments[captured].append(shipment)

    def is_over(self, captured: Captured) -> bool:
        """Whether the last batch has come."""
        return any(each.is_last for each in self.shipments[captured])

    def lines(self, captured: Captured) -> list[Line]:
        assembly, found = Assembly(), list[Line]()
        for each in self.shipments[captured]:
            found += assembly.add(captured.attempt, decode_batch(each.payload), 1.0)
        return found
