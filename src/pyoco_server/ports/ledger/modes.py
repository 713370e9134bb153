"""The location of the ledger's budgets, as recorded in the ledger, and the rows that changing it requires."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Insert, Integer, bindparam, case, func, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.core.states.priced import ENDS, Money, Status
from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.port import BudgetMode
from pyoco_server.ports.ledger.schema import budgets, ledger_settings, reservations, runs
from pyoco_server.ports.ledger.tenants import SqlTenants

__all__ = ["SqlBudgetModes"]

_NAME: Final = "budget_mode"
_S, _R = ledger_settings.c, runs.c

_GET = select(_S.value).where(_S.name == _NAME)
_RUNNING = (
    select(_R.run_id)
    .where(_R.status.in_([status.value for status in Status if status not in ENDS]))
    .order_by(_R.created_at)
    .limit(bindparam("_limit", type_=Integer))
)


def _writing(mode: BudgetMode, *, on_postgres: bool) -> Any:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return insert(ledger_settings).values(name=_NAME, value=mode.value)


def _missing_reservations() -> Insert:
    """Insert reservations of runs that ended while the budget was elsewhere, as this database would have closed
    them."""
    charge = func.coalesce(_R.actual_cost_usd_micros, 0)
    state = case(
        (_R.money_state == Money.SETTLED.value, literal_column("'SETTLED'")), else_=literal_column("'REFUNDED'")
    )
    is_there = select(reservations.c.run_id).where(reservations.c.run_id == _R.run_id).exists()
    missing = (
        select(
            _R.run_id,
            _R.tenant_id,
            _R.reservation_max_cost_usd_micros,
            state,
            charge,
            _R.reservation_max_cost_usd_micros - charge,
            _R.created_at,
            _R.updated_at,
        )
        .where(_R.money_state.in_([Money.SETTLED.value, Money.REFUNDED.value]), ~is_there)
        .limit(bindparam("_limit", type_=Integer))
    )
    columns = (
        "run_id",
        "tenant_id",
        "reserved_usd_micros",
        "state",
        "charge_usd_micros",
        "refund_usd_micros",
        "created_at",
        "closed_at",
    )
    return reservations.insert().from_select(columns, missing)


_ADD_RESERVATIONS = _missing_reservations()


class SqlBudgetModes:
    """See `port.BudgetModes`."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def get(self) -> BudgetMode | None:
        found = self._sql.connection.execute(_GET).scalar()
        return None if found is None else BudgetMode(found)

    def begin(self, mode: BudgetMode) -> BudgetMode:
        """Two statements. Waits for another transaction that is writing the mode."""
        first = _writing(mode, on_postgres=self._sql.is_postgres).on_conflict_do_nothing()
        self._sql.connection.execute(first)
        stands = self.get()
        assert stands is not None  # it is never deleted
        return stands

    def set(self, mode: BudgetMode) -> None:
        written = _writing(mode, on_postgres=self._sql.is_postgres)
        self._sql.connection.execute(written.on_conflict_do_update(index_elements=["name"], set_={"value": mode.value}))

    def running(self, limit: int) -> list[str]:
        return list(self._sql.connection.execute(_RUNNING, {"_limit": limit}).scalars())

    def set_balance(self, tenant_id: str, balance_usd_micros: int) -> None:
        SqlTenants(self._sql).add(tenant_id)
        change = (
            update(budgets)
            .where(budgets.c.tenant_id == tenant_id)
            .values(balance_usd_micros=balance_usd_micros, updated_at=self._sql.now())
        )
        self._sql.connection.execute(change)

    def add_closed_reservations(self, limit: int) -> int:
        return self._sql.connection.execute(_ADD_RESERVATIONS, {"_limit": limit}).rowcount
