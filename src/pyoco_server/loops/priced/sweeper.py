"""Sees to runs that nobody starts (contract 16)."""

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
    """Refunds runs that were queued for too long and submissions that died half-way; sends again what nobody knows to
    be sent, and what was sent to a queue that has been lost since.

    What it cannot do: make a worker start anything. A run whose message is a dead letter waits here until its time is
    over, and its money comes back then (PRICED-109).
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_sweeper_interval_sec)
        #: The beginning of the queue that was seen last.
        self._known: Beginning | None = None

    async def turn(self) -> None:
        await self.each(Scan.AGED, lambda run: give_up_aged(self._priced, run))
        # Joint mode never makes such a row; a deployment that was split before may have some.
        await self.each(Scan.ABANDONED, lambda run: give_up_abandoned(self._priced, run))
        self._known = await forget_lost_messages(self._priced, self._known)
        await self.each(Scan.UNSENT, lambda run: send_again(self._priced, run))
