"""Credit money to a tenant."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced import journal
from pyoco_server.core.priced.money import check_amount
from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import AlreadyApplied, Credited
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["CreditResult", "credit"]

log = get_logger(__name__)


@dataclass(frozen=True)
class CreditResult:
    balance_usd_micros: int
    #: False: this `ref` was credited before, and nothing changed.
    is_new: bool
    #: Split mode, if the budget was not changed: by how much it exceeds the journal. Not 0: money is in transit, or
    #: Redis or the ledger has lost data and the budget has to be rebuilt.
    off_usd_micros: int = 0


@dataclass(frozen=True)
class _Noted:
    """The credit is in the journal."""

    is_new: bool
    #: The budget is known to contain it.
    is_confirmed: bool
    available_usd_micros: int


async def credit(priced: Priced, tenant_id: str, amount_usd_micros: int, ref: str) -> CreditResult:
    """Credit the amount once per `ref`, even if Redis loses data. Creates the tenant if it does not exist.

    Joint: one transaction. Split: first the journal, then the budget under the same name (PRICED-58), then a note in
    the ledger that the budget contains it; after a crash in between, repeat the same call. A credit with that note is
    never sent to the budget again, and one without it only as far as the journal exceeds the budget: a Redis that lost
    its data is rebuilt, and not filled by repeating old credits (PRICED-42).

    Raises Conflict if `ref` stands for another credit, Refused for an invalid tenant id, AmountError,
    DependencyUnavailable (repeat the call).
    """
    check_amount(amount_usd_micros, at_least=1)
    if priced.budget.joins_ledger:
        given = await priced.ledger.transact(lambda tx: _joint(tx, tenant_id, amount_usd_micros, ref))
    else:
        given = await _split(priced, tenant_id, amount_usd_micros, ref)
    if given.is_new:
        log.info(
            "tenant credited",
            tenant_id=tenant_id,
            credited_usd_micros=amount_usd_micros,
            balance_usd_micros=given.balance_usd_micros,
        )
    return given


def _joint(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> CreditResult:
    answer = tx.money.credit(tenant_id, amount_usd_micros, ref)
    if isinstance(answer, AlreadyApplied):
        _check_same(tx, tenant_id, amount_usd_micros, ref)
        return CreditResult(tx.money.balance(tenant_id), is_new=False)
    return CreditResult(answer.balance_usd_micros, is_new=True)


async def _split(priced: Priced, tenant_id: str, amount_usd_micros: int, ref: str) -> CreditResult:
    noted = await priced.ledger.transact(lambda tx: _note(tx, tenant_id, amount_usd_micros, ref))
    if not noted.is_new:
        balance = await priced.budget.balance(tenant_id)
        off = balance - noted.available_usd_micros
        if noted.is_confirmed or off + amount_usd_micros > 0:
            return CreditResult(balance, is_new=False, off_usd_micros=off)
    answer = await priced.budget.credit(tenant_id, amount_usd_micros, ref)
    await priced.ledger.transact(lambda tx: tx.journal.confirm([journal.topup_key(ref)]))
    if isinstance(answer, Credited):
        if not noted.is_new:
            log.warning("the budget now contains a credit that only the journal had", tenant_id=tenant_id)
        return CreditResult(answer.balance_usd_micros, is_new=True)
    # The budget had it already. If the journal did not, the ledger is older than Redis, and a budget that was rebuilt
    # since no longer contains it.
    sums = await priced.ledger.read(lambda tx: tx.journal.balances(tenant_id))
    balance = await priced.budget.balance(tenant_id)
    return CreditResult(balance, is_new=noted.is_new, off_usd_micros=balance - sums.available_usd_micros)


def _note(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> _Noted:
    tx.tenants.ensure(tenant_id)
    if tx.journal.post(journal.topup(tenant_id, ref, amount_usd_micros)):
        return _Noted(is_new=True, is_confirmed=False, available_usd_micros=0)
    _check_same(tx, tenant_id, amount_usd_micros, ref)
    available = tx.journal.balances(tenant_id).available_usd_micros
    return _Noted(
        is_new=False, is_confirmed=tx.journal.is_confirmed(journal.topup_key(ref)), available_usd_micros=available
    )


def _check_same(tx: LedgerTx, tenant_id: str, amount_usd_micros: int, ref: str) -> None:
    """Raise Conflict if the journal has another credit under `ref`; otherwise the budget would get a credit that is
    not in the journal."""
    fact = journal.topup(tenant_id, ref, amount_usd_micros)
    line = tx.journal.find(fact.op_key)
    if line is None or (line.tenant_id, line.available_usd_micros) != (tenant_id, amount_usd_micros):
        raise Conflict("this ref was used for another credit")
