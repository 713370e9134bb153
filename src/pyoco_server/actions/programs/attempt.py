"""One attempt at a program, in the hand of the process that answers for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.core.run import Run
from pyoco_server.ports.queue.port import Delivery
from pyoco_server.ports.slots.port import Slot

__all__ = ["ProgramAttempt", "Standing"]


@dataclass
class ProgramAttempt:
    """An attempt that is ours, as we last wrote it. Who writes holds the lock, so that our own writes do not race.

    Who ends it or puts it back holds `ending` before that: what it left has to be stored first, which may take longer
    than its lease, and heartbeats must go on meanwhile (GRID-56).
    """

    run: Run
    revision: int
    token: str
    job: ProgramJob
    #: None: another process was handed the message; it comes again, to somebody, or is taken out by its subject.
    delivery: Delivery | None
    #: None: the program was running already when this process took it over, and its client is at its cap.
    slot: Slot | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: It has ended, was put back, or is another's: nothing of ours may be written or answered any more.
    closed: bool = False


class Standing(Enum):
    """What a heartbeat finds."""

    #: Ours; go on.
    MINE = "mine"
    #: Ours, and somebody asked for it to be stopped.
    CANCEL = "cancel"
    #: Another's, or ended: stop the program, and neither write nor answer anything (GRID-56).
    GONE = "gone"
