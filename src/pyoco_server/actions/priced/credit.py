"""Give a tenant money to spend."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced import journal
from pyoco_server.core.priced.money import check_amount
from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import AlreadyApplied, Credited
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["Credit", "credit"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Credit:
    balance_usd_micros: int
    #: False: this `ref` was credited before, and nothing changed.
    is_new: bool


async def credit(priced: Priced, tenant_id: str, amount_usd_micros: int, ref: str) -> Credit:
    """Once per `ref`. Makes the tenant when there is none.

    Joint: one transaction. Split: the journal first, then the budget under the same name (PRICED-58); a crash between
    them is repaired by asking for the same once more.

    Raises Conflict when `ref` stands for another credit, AmountError, DependencyUnavailable (ask again).
    """
    check_amount(amount_usd_micros, at_least=1)
    if priced.budget.joins_ledger:
        given = await priced.ledger.transact(lambda tx: _joint(tx, tenant_id, amount_usd_micros, ref))
    else:
        is_new = await priced.ledger.transact(lambda tx: _note(tx, tenant_id, amount_usd_micros, ref))
        answer = await priced.budget.credit(tenant_id, amount_usd_micros, ref)
        if isinstance(answer, Credited) and not is_new:
            log.warning("a credit that the journal had is in the budget now, too", tenant_id=tenant_id)
        balance = answer.balance_usd_micros if isinstance(answer, Credited) else await priced.budget.balance(tenant_id)
        given = Credit(balance, is_new or isinstance(answer, Credited))
    if given.is_new:
        log.info(
            "a tenant is credited",
            tenant_id=tenant_id,
            credited_usd_micros=amount_usd_micros,
            balance_usd_micros=given.balance_usd_micros,
        )
    return given


def _joint(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> Credit:
    answer = tx.money.credit(tenant_id, amount_usd_micros, ref)
    if isinstance(answer, AlreadyApplied):
        _check_same(tx, tenant_id, amount_usd_micros, ref)
        return Credit(tx.money.balance(tenant_id), is_new=False)
    return Credit(answer.balance_usd_micros, is_new=True)


def _note(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> bool:
    tx.tenants.ensure(tenant_id)
    if tx.journal.post(journal.topup(tenant_id, ref, amount_usd_micros)):
        return True
    _check_same(tx, tenant_id, amount_usd_micros, ref)
    return False


def _check_same(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> None:
    """Else the budget would be credited with what the journal never said."""
    fact = journal.topup(tenant_id, ref, amount_usd_micros)
    line = tx.journal.find(fact.op_key)
    if line is None or (line.tenant_id, line.available_usd_micros) != (tenant_id, amount_usd_micros):
        raise Conflict("this ref was used for another credit")
