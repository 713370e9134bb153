"""Audit, and leave for others what was found."""

from __future__ import annotations

from typing import Final

from pyoco_server.actions.priced.audit import audit
from pyoco_server.core.priced.audit_note import AuditNote
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import AuditReport, LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["audit_and_note", "last_audit"]

log = get_logger(__name__)

_NAME: Final = "last_audit"


async def audit_and_note(priced: Priced) -> AuditReport:
    """As `audit`. That the note cannot be written takes nothing from what was found. Raises DependencyUnavailable."""
    report = await audit(priced)
    try:
        await priced.ledger.transact(lambda tx: _leave(tx, report))
    except DependencyUnavailable as error:
        log.warning("what the audit found could not be left for others", error=error)
    return report


def last_audit(tx: LedgerTx) -> AuditNote | None:
    """None: there was none yet."""
    return AuditNote.read(tx.notes.get(_NAME))


def _leave(tx: LedgerTx, report: AuditReport) -> None:
    note = AuditNote.of(tx.now_us(), (each.tenant_id for each in report.differences))
    tx.notes.put(_NAME, note.text())
