"""Wakeups between the processes of a grid. Losing all of them may delay work, but loses none."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

__all__ = ["Listening", "Wakeup", "Wakeups"]


class Wakeup(StrEnum):
    #: A job was queued. Data: `<exec>.<client>`.
    NEW = "new"
    #: A run has ended or was requeued, and its slot is free. Data: the run id.
    DONE = "done"
    #: A run should be cancelled. Data: the run id.
    CANCEL = "cancel"


class Listening(Protocol):
    async def close(self) -> None: ...


class Wakeups(Protocol):
    async def tell(self, group: str, wakeup: Wakeup, word: str) -> None:
        """Send a wakeup. Best effort, does not wait, never raises."""

    async def listen(self, group: str, heard: Callable[[Wakeup, str], None], only: Wakeup | None = None) -> Listening:
        """Call `heard` for each wakeup until closed, across reconnects. `heard` must not block.

        With `only`, other wakeups are not even sent to this process.
        """
