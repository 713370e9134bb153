"""Checks periodically that all money adds up (contract 17.4)."""

from __future__ import annotations

from contextlib import aclosing

from pyoco_server.actions.priced.note_audit import audit_and_note
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.ports.priced import Priced

__all__ = ["Auditor"]

log = get_logger(__name__)

#: PRICED-50
_OPEN_ALARM_US = 86_400 * SECOND_US


class Auditor(Duty):
    """Logs every difference, and every reservation that is open for more than a day, as an alarm; and stores the number
    of differences in the ledger, for gateways to show.

    It never repairs anything. A difference is a defect or a manipulation, and must not be hidden.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(priced, every_seconds=priced.config.priced_audit_interval_sec)

    async def turn(self) -> None:
        report = await audit_and_note(self._priced)
        for each in report.differences:
            log.error(
                "money does not add up",
                alarm="audit_difference",
                check=each.check,
                tenant_id=each.tenant_id,
                run_id=each.run_id,
                detail=each.detail,
            )
        log.info("journal audited", tenants=report.tenants, differences=len(report.differences))
        await self._log_old_reservations()

    async def _log_old_reservations(self) -> None:
        now_us = await self._priced.ledger.read(lambda tx: tx.now_us())
        logged = 0
        async with aclosing(self._priced.budget.open_reservations(now_us - _OPEN_ALARM_US)) as reservations:
            async for each in reservations:
                log.error(
                    "money has been set aside for more than a day",
                    alarm="old_reservation",
                    run_id=each.run_id,
                    tenant_id=each.tenant_id,
                    reserved_usd_micros=each.reserved_usd_micros,
                )
                logged += 1
                if logged == JANITOR_BATCH:
                    return
