"""What the keeper's duties for priced runs share: look for rows, the oldest first, and see to each."""

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
#: Longer than any one row takes with its stores away.
_TURN_SECONDS_MAX = 300


class Duty(Loop):
    """A loop over rows of the ledger. Several keepers may do the same duty at once: whatever is done to a row is done
    by its version, so that one of them wins and the others leave it.
    """

    def __init__(self, priced: Priced, *, every_seconds: int) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=_TURN_SECONDS_MAX)
        self._priced = priced

    async def each(self, kind: Scan, see_to: Callable[[PricedRun], Awaitable[object]]) -> int:
        """See to every row that qualifies, some at once, batch after batch; how many went well.

        One row that fails does not keep the others of its batch. A batch in which a store was away is the last: the
        rows stay as they are, and the next turn finds them. So is a batch that brings nothing new.
        """
        seen: set[str] = set()
        well = 0
        while not self._stopping.is_set():
            rows = await self._priced.ledger.read(lambda tx: tx.runs.scan(kind, JANITOR_BATCH))
            fresh = [row for row in rows if row.run_id not in seen]
            seen |= {row.run_id for row in fresh}
            went_well = await self._some_at_once(kind, fresh, see_to)
            well += went_well
            if len(rows) < JANITOR_BATCH or not fresh or went_well < len(fresh):
                break
        return well

    async def _some_at_once(
        self, kind: Scan, rows: list[PricedRun], see_to: Callable[[PricedRun], Awaitable[object]]
    ) -> int:
        well = 0
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            oks = await asyncio.gather(*(self._one(kind, row, see_to) for row in some))
            well += sum(oks)
            # Claiming more rows while a store is away would only leave more claims behind.
            if not any(oks) or self._stopping.is_set():
                break
        return well

    async def _one(self, kind: Scan, row: PricedRun, see_to: Callable[[PricedRun], Awaitable[object]]) -> bool:
        try:
            return not isinstance(await see_to(row), Unfinished)
        except DependencyUnavailable as error:
            log.warning(
                "a run could not be seen to; it is tried again", **facts.about(row), duty=kind.value, cause=error
            )
            return False
        except Exception:  # the top of a duty: one defective row must not keep the others from their money
            log.exception("a run cannot be seen to", **facts.about(row), duty=kind.value)
            return True
