"""Handles runs that no worker starts (contract 16)."""

from __future__ import annotations

from pyoco_server.actions.priced.sweep import (
    Beginning,
    forget_lost_messages,
    give_up_abandoned,
    give_up_aged,
    send_again,
)
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["Sweeper"]


class Sweeper(Duty):
    """Refunds runs that were queued for too long and submissions that did not finish; sends runs again that are not
    recorded as sent, or whose queue was recreated since.

    It cannot make a worker start anything. A run whose message is a dead letter waits until it is given up by age, and
    is refunded then (PRICED-109).
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_sweeper_interval_sec)
        #: When the queue was created, as last seen.
        self._known: Beginning | None = None

    async def turn(self) -> None:
        await self.each(Scan.AGED, lambda run: give_up_aged(self._priced, run))
        # Joint mode never creates such a row; a deployment that was in split mode before may have some.
        await self.each(Scan.ABANDONED, lambda run: give_up_abandoned(self._priced, run))
        self._known = await forget_lost_messages(self._priced, self._known)
        await self.each(Scan.UNSENT, lambda run: send_again(self._priced, run))
