"""Which ledger a deployment uses, remembered outside of every ledger (SAFE-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["KnownLedger", "Remembered"]


@dataclass(frozen=True)
class Remembered:
    #: None: no ledger is remembered.
    ledger_id: str | None
    #: What `remember` and `forget` compare with.
    revision: int


class KnownLedger(Protocol):
    """An outage raises DependencyUnavailable."""

    async def start(self) -> None:
        """Create the place where the id is kept, if it is missing. May be called again."""

    async def get(self) -> Remembered: ...

    async def remember(self, ledger_id: str, over: Remembered) -> bool:
        """Compare-and-set. False: something else was written since `over` was read; nothing changed."""

    async def forget(self, over: Remembered) -> bool:
        """The next gateway that starts decides. False: as above."""
