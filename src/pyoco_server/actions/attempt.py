"""One attempt at a run, as seen by the process that owns it; the same for flows and programs."""

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
    #: The attempt still owns the run and a cancel was requested: stop the work.
    CANCEL_REQUESTED = "cancel requested"
    #: A newer attempt owns the run, or the run has ended: stop the work, write nothing, acknowledge nothing (FLOW-311,
    #: GRID-56).
    FENCED = "fenced"


@dataclass
class Attempt:
    """A run that this process owns, as last written. Writers hold `lock`, so writes of one process do not race."""

    run: Run
    revision: int
    #: New for each attempt; the record names the attempt that owns it. Frames call it Token.
    attempt_id: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, kw_only=True)
    #: The run has ended, was released or is fenced: this attempt may write and acknowledge nothing more (FLOW-376).
    closed: bool = field(default=False, kw_only=True)


def standing_of(run: Run) -> Standing:
    """Return the standing of a run that this attempt still owns."""
    return Standing.CANCEL_REQUESTED if run.status is RunState.CANCELLING else Standing.OURS
