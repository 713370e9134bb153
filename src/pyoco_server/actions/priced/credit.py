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
    #: Split mode, and the budget took nothing: by how much it has more than the journal. Not 0: money is on its way, or
    #: Redis or the ledger has lost some, and the budget has to be rebuilt.
    off_usd_micros: int = 0


@dataclass(frozen=True)
class _Noted:
    """The credit is in the journal."""

    is_new: bool
    #: The budget is known to have it.
    is_confirmed: bool
    available_usd_micros: int


async def credit(priced: Priced, tenant_id: str, amount_usd_micros: int, ref: str) -> Credit:
    """Once per `ref`, whatever Redis forgets. Makes the tenant when there is none.

    Joint: one transaction. Split: the journal first, then the budget under the same name (PRICED-58), then a note in
    the ledger that the budget has it; a crash between them is repaired by asking for the same once more. A credit with
    that note never goes to the budget again, and one without it only as far as the journal has more than the budget:
    a Redis that lost its data is rebuilt, and not filled by repeating old credits (PRICED-42).

    Raises Conflict when `ref` stands for another credit, Refused for what cannot be a tenant, AmountError,
    DependencyUnavailable (ask again).
    """
    check_amount(amount_usd_micros, at_least=1)
    if priced.budget.joins_ledger:
        given = await priced.ledger.transact(lambda tx: _joint(tx, tenant_id, amount_usd_micros, ref))
    else:
        given = await _split(priced, tenant_id, amount_usd_micros, ref)
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


async def _split(priced: Priced, tenant_id: str, amount_usd_micros: int, ref: str) -> Credit:
    noted = await priced.ledger.transact(lambda tx: _note(tx, tenant_id, amount_usd_micros, ref))
    if not noted.is_new:
        balance = await priced.budget.balance(tenant_id)
        off = balance - noted.available_usd_micros
        if noted.is_confirmed or off + amount_usd_micros > 0:
            return Credit(balance, is_new=False, off_usd_micros=off)
    answer = await priced.budget.credit(tenant_id, amount_usd_micros, ref)
    await priced.ledger.transact(lambda tx: tx.journal.confirm([journal.topup_key(ref)]))
    if isinstance(answer, Credited):
        if not noted.is_new:
            log.warning("a credit that the journal had is in the budget now, too", tenant_id=tenant_id)
        return Credit(answer.balance_usd_micros, is_new=True)
    # It had been given. Where the journal did not know of it, the ledger is older than Redis, and a budget that was
    # rebuilt since has it no more.
    sums = await priced.ledger.read(lambda tx: tx.journal.balances(tenant_id))
    balance = await priced.budget.balance(tenant_id)
    return Credit(balance, is_new=noted.is_new, off_usd_micros=balance - sums.available_usd_micros)


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
    """Else the budget would be credited with what the journal never said."""
    fact = journal.topup(tenant_id, ref, amount_usd_micros)
    line = tx.journal.find(fact.op_key)
    if line is None or (line.tenant_id, line.available_usd_micros) != (tenant_id, amount_usd_micros):
        raise Conflict("this ref was used for another credit")
