"""Compares the ledger with the one that the deployment uses, while the process runs (SAFE-12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyoco_server.actions.priced.agree_on_ledger import LedgerAgreement
from pyoco_server.errors import DependencyUnavailable, OtherLedger
from pyoco_server.loops.loop import Loop

__all__ = ["LedgerWatch"]

#: A difference has to be found within 10 s, including an answer that takes 2 s.
_EVERY_SECONDS = 3.0
_TURN_SECONDS_MAX = 4.0


class LedgerWatch(Loop):
    """Stops priced runs while the ledger is not the remembered one, and resumes them when it is again.

    It cannot compare while NATS or the ledger does not answer. The last result then stays valid, since without them
    neither priced runs nor their money move.
    """

    def __init__(self, compare: Callable[[], Awaitable[object]], standing: LedgerAgreement) -> None:
        """`compare` raises OtherLedger when they differ."""
        super().__init__(every_seconds=_EVERY_SECONDS, turn_seconds_max=_TURN_SECONDS_MAX)
        self._compare, self._standing = compare, standing

    async def turn(self) -> None:
        try:
            await self._compare()
        except OtherLedger as error:
            self._standing.refuse(error)
        except DependencyUnavailable:  # reported by everything that needs the store
            return
        else:
            self._standing.accept()
