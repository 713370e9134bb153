"""The events of each job, and whether they form a legal story (GRID-174)."""

from __future__ import annotations

import msgspec

from pyoco_server.ports.program_events.port import Event
from support.grid.story import story_problems

__all__ = ["Stories"]

_decode = msgspec.json.Decoder(Event).decode


class Stories:
    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    def add(self, data: bytes) -> None:
        event = _decode(data)
        if event.run_id is not None:
            self._events.setdefault(event.run_id, []).append(event)

    def problems(self, run_id: str) -> list[str]:
        events = self._events.get(run_id, [])
        told = ", ".join(f"{event.event.value} {event.attempt}" for event in events)
        return [f"{problem} in [{told}]" for problem in story_problems(events)]
