"""Change which ledger a deployment uses, as a deliberate decision of an operator (SAFE-12)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.known_ledger.port import KnownLedger, Remembered

__all__ = ["Adoption", "adopt_ledger", "plan_adoption"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Adoption:
    """A planned change. Nothing has been written yet."""

    remembered: Remembered
    #: None: there is no ledger. The next gateway that starts creates an empty one.
    ledger_id: str | None

    @property
    def before(self) -> str | None:
        return self.remembered.ledger_id

    @property
    def changes(self) -> bool:
        return self.before != self.ledger_id


async def plan_adoption(known: KnownLedger, ledger_id: str | None) -> Adoption:
    """Plan the change. Raises DependencyUnavailable."""
    return Adoption(await known.get(), ledger_id)


async def adopt_ledger(known: KnownLedger, plan: Adoption) -> None:
    """Store the new ledger id: one conditional write; the ledgers themselves stay as they are.

    Processes that run with the old ledger stop priced runs within 10 s. Raises Conflict if another id was stored since
    the plan, DependencyUnavailable.
    """
    if not plan.changes:
        return
    if plan.ledger_id is None:
        is_written = await known.forget(plan.remembered)
    else:
        is_written = await known.remember(plan.ledger_id, plan.remembered)
    if not is_written:
        raise Conflict("another ledger was remembered a moment ago: look again")
    log.warning("the deployment now uses another ledger", before=plan.before, after=plan.ledger_id)
