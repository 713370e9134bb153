"""One attempt at a run, as the process that holds it sees it: the same for flows and programs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState

__all__ = ["Attempt", "Standing", "standing_of"]


class Standing(Enum):
    """Whether an attempt still owns its run."""

    OURS = "ours"
    #: Ours, and a cancel was requested: stop the work.
    CANCEL_REQUESTED = "cancel requested"
    #: A newer attempt owns the run, or it has ended: stop the work, write nothing, acknowledge nothing (FLOW-311,
    #: GRID-56).
    FENCED = "fenced"


@dataclass
class Attempt:
    """A run that this process owns, as it was last written. Writers hold `lock`, so our own writes do not race."""

    run: Run
    revision: int
    #: Fresh for each attempt; the record names the attempt that owns it. Frames call it Token.
    attempt_id: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, kw_only=True)
    #: It has ended, was put back or is fenced: nothing of ours may be written or acknowledged any more (FLOW-376).
    closed: bool = field(default=False, kw_only=True)


def standing_of(run: Run) -> Standing:
    """Of a run that is still ours."""
    return Standing.CANCEL_REQUESTED if run.status is RunState.CANCELLING else Standing.OURS
