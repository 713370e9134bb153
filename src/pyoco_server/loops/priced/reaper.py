"""Ends runs whose worker sends no more heartbeats (contract 15)."""

from __future__ import annotations

from pyoco_server.actions.priced.reap import reap
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["Reaper"]


class Reaper(Duty):
    """Scans for expired leases, and ends their runs as FAILED with the minimum fee (PRICED-152).

    It cannot distinguish a dead worker from one that merely cannot reach the ledger. Both have lost their run.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_reaper_interval_sec)

    async def turn(self) -> None:
        await self.each(Scan.EXPIRED_LEASES, lambda run: reap(self._priced, run))
