"""Expires runs whose retention has passed (contract 17.3), and the input files of packs."""

from __future__ import annotations

from pyoco_server.actions.priced.retain import expire_all, remove_inputs
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["Retainer"]


class Retainer(Duty):
    """Removes the inputs, the pointer and the key of old runs, a batch per transaction; the row stays (PRICED-31).

    Uploaded files are removed with their rows: expired ones, and after an hour the remains of unfinished uploads. It
    cannot delete a result: the store of results lets it expire by itself, later than the run.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_retention_interval_sec)

    async def turn(self) -> None:
        await self._expire_runs()
        await remove_inputs(self._priced, self._stopping.is_set)

    async def _expire_runs(self) -> None:
        while not self._stopping.is_set():
            rows = await self._priced.ledger.read(lambda tx: tx.runs.scan(Scan.PAST_RETENTION, JANITOR_BATCH))
            expired = await expire_all(self._priced, rows) if rows else []
            if len(rows) < JANITOR_BATCH or not expired:
                break
