"""Wake-ups between the processes of a grid. Losing every one of them may delay work, and loses none."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

__all__ = ["Listening", "Wakeup", "Wakeups"]


class Wakeup(StrEnum):
    #: A job was queued; the word is `<exec>.<client>`.
    NEW = "new"
    #: A run has ended or was put back, and its slot is free; the word is the run id.
    DONE = "done"
    #: Somebody asked for a run to be stopped; the word is the run id.
    CANCEL = "cancel"


class Listening(Protocol):
    async def close(self) -> None: ...


class Wakeups(Protocol):
    async def tell(self, group: str, wakeup: Wakeup, word: str) -> None:
        """Best effort, not waited for, never raises."""

    async def listen(self, group: str, heard: Callable[[Wakeup, str], None], only: Wakeup | None = None) -> Listening:
        """Until it is closed, also over lost connections. `heard` must not block. `only`: what nobody cares for here is
        not even sent to us."""
