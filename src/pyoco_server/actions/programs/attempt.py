"""An attempt at a program."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pyoco_server.actions.attempt import Attempt
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.ports.queue.port import Delivery
from pyoco_server.ports.slots.port import Slot

__all__ = ["ProgramAttempt"]


@dataclass
class ProgramAttempt(Attempt):
    """An attempt at a program, with its message and its slot.

    Whoever ends it or puts it back takes `ending` before `lock`: its outputs are stored first, which may take longer
    than its lease, and heartbeats must go on meanwhile (GRID-56).
    """

    job: ProgramJob
    #: None: another process received the message; it is redelivered, or removed by its subject.
    delivery: Delivery | None
    #: None: the program was already running when this process took it over, and its client is at its cap.
    slot: Slot | None
    ending: asyncio.Lock = field(default_factory=asyncio.Lock, kw_only=True)
