"""The last safety net: completes ends that were claimed but not made, and reports what waits for an operator
(contract 17)."""

from __future__ import annotations

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.finalize import Ending, Unfinished
from pyoco_server.actions.priced.orphans import refund_orphans
from pyoco_server.actions.priced.reap import reap
from pyoco_server.actions.priced.reconcile import reconcile
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.priced import Priced

__all__ = ["Reconciler"]

log = get_logger(__name__)

#: Section 20: an end that is not made for this long is an alarm.
_STALE_ALARM_US = 900 * SECOND_US
_REMEMBERED_MAX = 10_000


class Reconciler(Duty):
    """Takes over stale claims and completes them, reaps runs if no reaper does, and closes reservations that no run
    needs.

    In normal operation it finds nothing, so everything it does is logged as an alarm. It cannot settle a dispute: runs
    whose money facts contradict each other, and dead letters, wait for an operator, and each turn logs them.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_reconcile_interval_sec)
        #: Claims that could not be completed: each takeover makes a claim look recent, so the time since when it is
        #: stale is kept here.
        self._stale_since: dict[str, int] = {}
        self._dead_letters = 0

    async def turn(self) -> None:
        await self.each(Scan.STALE_CLAIMS, self._reconcile)
        await self.each(Scan.LONG_EXPIRED_LEASES, self._reap)
        for step in (self._refund_orphans, self._log_disputes, self._log_dead_letters):
            try:
                await step()
            except PyocoError as error:  # one store that is down must not block the other steps
                log.warning("skipped a part of the reconcile pass", step=step.__name__, cause=error)

    async def _reconcile(self, run: PricedRun) -> Ending:
        since = self._stale_since.setdefault(run.run_id, run.finalize_claimed_at or run.updated_at)
        now_us = await self._priced.ledger.read(lambda tx: tx.now_us())
        if now_us - since > _STALE_ALARM_US:
            log.error("finalize claim is stale", **facts.about(run), alarm="stale_claim")
        ended = await reconcile(self._priced, run)
        if not isinstance(ended, Unfinished):
            self._stale_since.pop(run.run_id, None)
        while len(self._stale_since) > _REMEMBERED_MAX:
            self._stale_since.pop(next(iter(self._stale_since)))
        return ended

    async def _reap(self, run: PricedRun) -> Ending:
        log.warning(
            "a run was not reaped in time: is a keeper's reaper running?", **facts.about(run), alarm="reconcile_action"
        )
        return await reap(self._priced, run, Actor.RECONCILE)

    async def _refund_orphans(self) -> None:
        await refund_orphans(self._priced)

    async def _log_disputes(self) -> None:
        disputed = await self._priced.ledger.read(lambda tx: tx.runs.scan(Scan.DISPUTED, JANITOR_BATCH))
        for run in disputed:
            log.error("a disputed run waits for an operator", **facts.about(run), **facts.money(run), alarm="disputed")

    async def _log_dead_letters(self) -> None:
        _, dead = await self._priced.queue.depth()
        if dead > self._dead_letters:
            log.error("priced runs have dead letters", dead_letters=dead, alarm="dead_letter")
        self._dead_letters = dead
