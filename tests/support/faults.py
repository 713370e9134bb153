"""Writes that fail before or after they took effect: what a network can do to anybody."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.ports.nats.link import Link, Patience

__all__ = ["FaultyLink", "open_faulty_link"]


class FaultyLink(Link):
    """A link whose next stores fail as told: "before" they took effect, "after", or "unheard" (certainly not)."""

    def __init__(self, patience: Patience) -> None:
        super().__init__(patience)
        self.faults: deque[str] = deque()

    async def store(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, stream: str = ""
    ) -> int:
        fault = self.faults.popleft() if self.faults else ""
        if fault == "unheard":
            raise NotStored("injected: nobody listens")
        if fault == "before":
            raise Unavailable("injected: the question got lost")
        sequence = await super().store(subject, payload, headers, stream=stream)
        if fault == "after":
            raise Unavailable("injected: the answer got lost")
        return sequence


async def open_faulty_link(url: str, patience: Patience | None = None) -> FaultyLink:
    link = FaultyLink(patience or Patience())
    await link.open(url, "faulty", 5.0)
    return link
