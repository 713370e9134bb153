"""Run an audit, and store its result for other processes."""

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
    """Run `audit` and store a note about it. Returns the report even if the note cannot be written. Raises
    DependencyUnavailable."""
    report = await audit(priced)
    try:
        await priced.ledger.transact(lambda tx: _leave(tx, report))
    except DependencyUnavailable as error:
        log.warning("could not store the result of the audit", error=error)
    return report


def last_audit(tx: LedgerTx) -> AuditNote | None:
    """Return the note of the last audit. Returns None if there was none yet."""
    return AuditNote.read(tx.notes.get(_NAME))


def _leave(tx: LedgerTx, report: AuditReport) -> None:
    note = AuditNote.of(tx.now_us(), (each.tenant_id for each in report.differences))
    tx.notes.put(_NAME, note.text())
