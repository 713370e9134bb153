"""Records which ledger a deployment uses, outside of every ledger (SAFE-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["KnownLedger", "Remembered"]


@dataclass(frozen=True)
class Remembered:
    #: None: no ledger is recorded.
    ledger_id: str | None
    #: The revision that `remember` and `forget` compare with.
    revision: int


class KnownLedger(Protocol):
    """The recorded ledger id. An outage raises DependencyUnavailable."""

    async def start(self) -> None:
        """Create the bucket for the id if it is missing. Idempotent."""

    async def get(self) -> Remembered: ...

    async def remember(self, ledger_id: str, over: Remembered) -> bool:
        """Record the id by compare-and-set. False: there was another write since `over` was read; nothing changed."""

    async def forget(self, over: Remembered) -> bool:
        """Delete the record by compare-and-set; the next gateway to start records its own ledger.

        False: as for `remember`.
        """
