"""Which run each idempotency key stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Receipt", "Receipts"]


@dataclass(frozen=True)
class Receipt:
    """Maps an idempotency key to the run promised for it, for a submission with this fingerprint."""

    run_id: str
    #: A digest of the submission. Another fingerprint under the same key means another submission.
    fingerprint: str
    revision: int = 0


class Receipts(Protocol):
    """One receipt per key; receipts expire. The key is a digest: the user's own text is not stored.

    An outage raises Unavailable: the receipt may have been stored; a retry with the same key finds out.
    """

    async def claim(self, key: str, run_id: str, fingerprint: str) -> Receipt:
        """Return the receipt under this key: a new one with these values, or the existing one.

        One round trip for a new one, two otherwise. Of two concurrent claims one wins, and both get the winner's
        receipt.
        """

    async def find(self, key: str) -> Receipt | None:
        """Return the receipt under this key. None: there is none. One round trip."""

    async def replace(self, key: str, run_id: str, receipt: Receipt) -> Receipt:
        """Promise another run under the same key and fingerprint, because that of `receipt` was not created.

        Returns the receipt that is stored afterwards: a concurrent caller may have been faster.
        """
