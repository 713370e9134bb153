"""What was promised under an idempotency key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Receipt", "Receipts"]


@dataclass(frozen=True)
class Receipt:
    """Under this key this run was promised, for a submission with this fingerprint."""

    run_id: str
    #: A digest of what was submitted. Another one under the same key is another submission.
    fingerprint: str
    revision: int = 0


class Receipts(Protocol):
    """One receipt per key; they expire by themselves. A key is a digest: what users call it is not stored.

    An outage raises Unavailable: the receipt may have been stored; asking again under the same key finds out.
    """

    async def claim(self, key: str, run_id: str, fingerprint: str) -> Receipt:
        """The receipt under this key: a new one with these facts, or the one that was there first. One round trip for
        a new one, two otherwise. Of two claims at once one wins, and both get the winner's receipt."""

    async def replace(self, key: str, run_id: str, receipt: Receipt) -> Receipt:
        """Promise another run under the same key and fingerprint, because that of `receipt` came to nothing. Returns
        whichever receipt is there afterwards: somebody else may have been faster."""
