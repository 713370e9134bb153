"""The common part of the keeper's duties for priced runs: scan for rows, oldest first, and process each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.finalize import Unfinished
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["Duty"]

log = get_logger(__name__)

_AT_ONCE = 8
#: Longer than any single row takes while its stores are down.
_TURN_SECONDS_MAX = 300


class Duty(Loop):
    """A loop over rows of the ledger.

    Several keepers may do the same duty concurrently: every change of a row names its version, so that one of them wins
    and the others skip it.
    """

    def __init__(self, priced: Priced, *, every_seconds: int) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=_TURN_SECONDS_MAX)
        self._priced = priced

    async def each(self, kind: Scan, process: Callable[[PricedRun], Awaitable[object]]) -> int:
        """Process every row that qualifies, several concurrently, batch by batch, and return how many succeeded.

        A row that fails does not stop the others of its batch. A batch in which a store was unavailable is the last
        one: the rows stay as they are, and the next turn finds them. A batch without new rows is the last one, too.
        """
        seen: set[str] = set()
        succeeded = 0
        while not self._stopping.is_set():
            rows = await self._priced.ledger.read(lambda tx: tx.runs.scan(kind, JANITOR_BATCH))
            fresh = [row for row in rows if row.run_id not in seen]
            seen |= {row.run_id for row in fresh}
            succeeded_now = await self._concurrently(kind, fresh, process)
            succeeded += succeeded_now
            if len(rows) < JANITOR_BATCH or not fresh or succeeded_now < len(fresh):
                break
        return succeeded

    async def _concurrently(
        self, kind: Scan, rows: list[PricedRun], process: Callable[[PricedRun], Awaitable[object]]
    ) -> int:
        succeeded = 0
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            oks = await asyncio.gather(*(self._one(kind, row, process) for row in some))
            succeeded += sum(oks)
            # Claiming more rows while a store is down would only leave more unfinished claims.
            if not any(oks) or self._stopping.is_set():
                break
        return succeeded

    async def _one(self, kind: Scan, row: PricedRun, process: Callable[[PricedRun], Awaitable[object]]) -> bool:
        try:
            return not isinstance(await process(row), Unfinished)
        except DependencyUnavailable as error:
            log.warning("could not process a run; will retry", **facts.about(row), duty=kind.value, cause=error)
            return False
        except Exception:  # top level of a duty: one defective row must not block the others
            log.exception("failed to process a run", **facts.about(row), duty=kind.value)
            return True
