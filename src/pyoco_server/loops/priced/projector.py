"""Projects priced runs among all other runs: each process projects its own changes, and the keeper those that were
missed."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict

from pyoco_server.actions.priced.project import show_row
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.ledger.port import Ledger
from pyoco_server.ports.runs.port import Runs

__all__ = ["ProjectionKeeper", "Projector"]

log = get_logger(__name__)

#: Rows that wait to be projected. More are dropped: the keeper finds them.
_WAITING_MAX = 10_000
_AT_ONCE = 32


class Projector(Loop):
    """Projects rows soon after they changed, only the newest version of each, many concurrently.

    It guarantees nothing: a process that exits, or a NATS outage, loses the waiting rows; the keeper's pass over the
    ledger finds them.
    """

    def __init__(self, runs: Runs) -> None:
        super().__init__(every_seconds=60.0)
        self._runs = runs
        self._waiting: OrderedDict[str, PricedRun] = OrderedDict()
        self.dropped = 0

    def show(self, row: PricedRun) -> None:
        """Queue the row. Never waits, never raises."""
        older = self._waiting.get(row.run_id)
        if older is not None and older.version >= row.version:
            return
        if older is None and len(self._waiting) >= _WAITING_MAX:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._waiting[row.run_id] = row
        self.nudge()

    async def turn(self) -> None:
        while self._waiting:
            rows = [self._waiting.popitem(last=False)[1] for _ in range(min(_AT_ONCE, len(self._waiting)))]
            results = await asyncio.gather(*(show_row(self._runs, row) for row in rows), return_exceptions=True)
            for row, result in zip(rows, results, strict=True):
                if isinstance(result, PyocoError):
                    log.info("could not project a priced run; the keeper will", run_id=row.run_id, error=result)
                elif isinstance(result, BaseException):
                    raise result

    async def stop(self) -> None:
        """Stop after projecting the waiting rows, if that is quick: no other process has them."""
        if self._task is not None and self._waiting:
            self.nudge()
            for _ in range(20):
                if not self._waiting:
                    break
                await asyncio.sleep(0.05)
        await super().stop()


class ProjectionKeeper(Loop):
    """Scans the ledger's rows in the order of their changes, and projects those that were missed.

    A row may be committed a little later than its timestamp: so each turn scans the last half minute again, and
    remembers what it has seen there. The first turn scans all rows, 500 at a time: one read of the record for each.
    Later turns read a record once for each version of a row, so they cost O(rows of the last half minute).

    It cannot find a row that was committed more than half a minute after its timestamp. The next start does, or the
    row's next change.
    """

    def __init__(
        self, ledger: Ledger, runs: Runs, *, every_seconds: float = 3.0, runs_retention_seconds: float = 0.0
    ) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=3600.0)
        self._ledger, self._runs = ledger, runs
        #: How long a record outlives its run's end: a run that ended earlier was shown for that long. 0: forever.
        self._kept_us = math.ceil(runs_retention_seconds * 1_000_000)
        #: All rows before this position have been scanned.
        self._place = (0, "")
        #: Rows of the last half minute that are known to be projected: timestamp and version.
        self._seen: dict[str, tuple[int, int]] = {}

    _OVERLAP_US = 30_000_000
    _PAGE = 500

    async def turn(self) -> None:
        place = self._place
        now_us = await self._ledger.read(lambda tx: tx.now_us())
        settled_us = now_us - self._OVERLAP_US
        while True:
            rows = await self._page(place)
            await self._show([row for row in rows if not self._has_expired(row, now_us)])
            if rows:
                place = rows[-1].updated_at, rows[-1].run_id
            if place[0] <= settled_us:
                self._place = place
            elif self._place[0] < settled_us:
                self._place = settled_us, ""
            self._forget()
            if len(rows) < self._PAGE or self._stopping.is_set():
                break

    async def _page(self, place: tuple[int, str]) -> list[PricedRun]:
        return await self._ledger.read(lambda tx: tx.runs.changed_since(place[0], place[1], self._PAGE))

    def _has_expired(self, row: PricedRun, now_us: int) -> bool:
        """Whether the record has expired before the row. It must not reappear at each start of a keeper."""
        return row.has_ended and 0 < self._kept_us < now_us - row.updated_at

    async def _show(self, rows: list[PricedRun]) -> None:
        fresh = [row for row in rows if self._seen.get(row.run_id, (0, -1))[1] < row.version]
        for start in range(0, len(fresh), _AT_ONCE):
            some = fresh[start : start + _AT_ONCE]
            results = await asyncio.gather(*(show_row(self._runs, row) for row in some), return_exceptions=True)
            for row, result in zip(some, results, strict=True):
                if isinstance(result, Unavailable) or (
                    isinstance(result, BaseException) and not isinstance(result, PyocoError)
                ):
                    raise result  # the turn is repeated from its last position
                if isinstance(result, PyocoError):  # a row that cannot be projected must not block the others
                    self.outage.crashed("a priced run cannot be shown", result, run_id=row.run_id)
                elif result:
                    log.info("projected a priced run late", run_id=row.run_id, version_after=row.version)
        self._seen |= {row.run_id: (row.updated_at, row.version) for row in rows}

    def _forget(self) -> None:
        """Forget rows before the position: they are not scanned again."""
        for run_id in [key for key, (at, _) in self._seen.items() if at < self._place[0]]:
            del self._seen[run_id]
