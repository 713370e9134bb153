"""The lines of runs, as readers see them: those that an executor captures, and those that are stored."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.executors.capture.port import Captured
from pyoco_server.ports.backend import Backend

__all__ = ["CollectedLines", "stored_lines"]


async def stored_lines(backend: Backend, run_id: str) -> list[Line]:
    """What is stored now of a run."""
    assert backend.logs is not None
    assembly, found = Assembly(), list[Line]()
    async with aclosing(backend.logs.batches(run_id)) as batches:
        async for some in batches:
            for each in some.items:
                found += assembly.add(each.attempt, decode_batch(each.payload), each.stored_at)
            if some.caught_up:
                break
    return found


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
