"""What happens to attempts in flight without a call, told in order to the one reader that has their programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.logs import get_logger

__all__ = ["AttemptLost", "CancelRequested", "InFlightEvent", "InFlightEvents", "QuorumChanged"]

log = get_logger(__name__)


@dataclass(frozen=True)
class CancelRequested:
    """Stop the program, within the grace period of its record. Sent again when that was shortened."""

    attempt: ProgramAttempt


@dataclass(frozen=True)
class AttemptLost:
    """This process no longer owns the attempt: stop the program, and report nothing more (GRID-56)."""

    attempt: ProgramAttempt


@dataclass(frozen=True)
class QuorumChanged:
    """JetStream answers again, or no longer answers (GRID-44)."""

    is_quorate: bool


InFlightEvent = CancelRequested | AttemptLost | QuorumChanged


class InFlightEvents:
    """A queue for one reader. No limit of its own: each event of an attempt follows from a write of its record."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[InFlightEvent | None] = asyncio.Queue()

    def put(self, event: InFlightEvent) -> None:
        self._queue.put_nowait(event)

    def close(self) -> None:
        """Let the reader end after the events that are in the queue."""
        self._queue.put_nowait(None)

    async def read(self, take: Callable[[InFlightEvent], None]) -> None:
        """Call `take` with each event, in order, until `close`. An exception in a call does not end this."""
        while (event := await self._queue.get()) is not None:
            try:
                take(event)
            except Exception:  # the top of a loop
                log.exception("could not handle an event", what=type(event).__name__)
