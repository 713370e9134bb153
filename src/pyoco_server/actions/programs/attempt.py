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

    Code that ends the attempt or puts it back acquires `ending` before `lock`: it stores the outputs first, which may
    take longer than the lease, and heartbeats must continue meanwhile (GRID-56).
    """

    job: ProgramJob
    #: None: another process received the message; it is redelivered, or removed by its subject.
    delivery: Delivery | None
    #: None: the program was already running when this process took it over, and its client was at its cap.
    slot: Slot | None
    ending: asyncio.Lock = field(default_factory=asyncio.Lock, kw_only=True)
