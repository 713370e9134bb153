"""Decide about a submission whose tenant has used its idempotency key before (contract 11.2)."""

from __future__ import annotations

from enum import Enum, auto

from pyoco_server.core.priced.reasons import KEY_RELEASING
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.core.states.priced import Money, Stage
from pyoco_server.errors import KeyBusy, KeyReused

__all__ = ["SameKey", "look_at_same_key"]


class SameKey(Enum):
    #: The run was accepted before: return its receipt again.
    REPLAY = auto()
    #: Its retention has passed: expire it, and the key is free.
    PAST = auto()


def look_at_same_key(existing: PricedRun, ask: NewRun, now_us: int) -> SameKey:
    """Apply PRICED-88, line by line. Raises KeyReused for another submission, KeyBusy while the earlier one is
    undecided."""
    if existing.retention_until <= now_us:
        return SameKey.PAST
    if existing.payload_hash != ask.payload_hash:
        raise KeyReused
    if existing.money is Money.NONE or _will_release_key(existing):
        raise KeyBusy
    return SameKey.REPLAY


def _will_release_key(run: PricedRun) -> bool:
    """Whether its end is claimed and will release the key."""
    return run.stage is Stage.CLAIMED and run.intent is not None and run.intent.reason_code in KEY_RELEASING
