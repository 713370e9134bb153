"""Tenants, who pay for runs. Every tenant has a budget from its creation, initially empty."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Integer, Select, Update, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.core.priced.names import is_tenant
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.errors import Refused
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.schema import budgets, tenants

__all__ = ["SqlTenants"]


@cache
def _add(on_postgres: bool) -> Any:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return keep(
        insert(tenants)
        .values(
            tenant_id=bindparam("_tenant"),
            display_name=bindparam("_name"),
            status=TenantStatus.ACTIVE.value,
            created_at=clock("_now", on_postgres=on_postgres),
        )
        .on_conflict_do_nothing()
    )


@cache
def _add_budget(on_postgres: bool) -> Any:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return keep(
        insert(budgets)
        .values(
            tenant_id=bindparam("_tenant"),
            balance_usd_micros=0,
            updated_at=clock("_now", on_postgres=on_postgres),
        )
        .on_conflict_do_nothing()
    )


_GET: Select[Any] = keep(select(tenants).where(tenants.c.tenant_id == bindparam("_tenant")))
#: One query for everything that a request needs of its tenant.
_WITH_BALANCE: Select[Any] = keep(
    select(tenants, budgets.c.balance_usd_micros)
    .outerjoin(budgets, budgets.c.tenant_id == tenants.c.tenant_id)
    .where(tenants.c.tenant_id == bindparam("_tenant"))
)
_PAGE: Select[Any] = (
    select(tenants)
    .where(tenants.c.tenant_id > bindparam("_after"))
    .order_by(tenants.c.tenant_id)
    .limit(bindparam("_limit", type_=Integer))
)


def _set(column: Any) -> Update:
    return (
        update(tenants)
        .where(tenants.c.tenant_id == bindparam("_tenant"))
        .values({column.name: bindparam("_value", type_=column.type)})
    )


_SET_STATUS, _SET_RATE_LIMIT = _set(tenants.c.status), _set(tenants.c.rate_limit_per_min)


class SqlTenants:
    """See `port.Tenants`."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def get(self, tenant_id: str) -> Tenant | None:
        row = self._sql.connection.execute(_GET, {"_tenant": tenant_id}).first()
        return _tenant(row) if row is not None else None

    def with_balance(self, tenant_id: str) -> tuple[Tenant | None, int]:
        row = self._sql.connection.execute(_WITH_BALANCE, {"_tenant": tenant_id}).first()
        return (_tenant(row), row.balance_usd_micros or 0) if row is not None else (None, 0)

    def ensure(self, tenant_id: str, display_name: str | None = None) -> Tenant:
        self.add(tenant_id, display_name)
        found = self.get(tenant_id)
        assert found is not None  # tenants are never deleted
        return found

    def add(self, tenant_id: str, display_name: str | None = None) -> None:
        """Like `ensure`, without reading the tenant: no statement at all if this process has seen the tenant before."""
        sql = self._sql
        if tenant_id in sql.known_tenants or tenant_id in sql.seen_tenants:
            return
        if not is_tenant(tenant_id):  # part of the keys of caches and objects, so it is validated on creation
            raise Refused("a tenant has 1 to 64 letters, digits, '_' and '-'")
        parameters = {"_tenant": tenant_id, "_name": display_name or tenant_id, "_now": sql.shift()}
        sql.connection.execute(_add(sql.is_postgres), parameters)
        sql.connection.execute(_add_budget(sql.is_postgres), parameters)
        sql.seen_tenants.add(tenant_id)

    def set_status(self, tenant_id: str, status: TenantStatus) -> bool:
        return self._change(_SET_STATUS, tenant_id, status.value)

    def set_rate_limit(self, tenant_id: str, per_minute: int | None) -> bool:
        return self._change(_SET_RATE_LIMIT, tenant_id, per_minute)

    def all(self, after: str = "", limit: int = 1000) -> list[Tenant]:
        return [_tenant(row) for row in self._sql.connection.execute(_PAGE, {"_after": after, "_limit": limit})]

    def _change(self, statement: Update, tenant_id: str, value: str | int | None) -> bool:
        return self._sql.connection.execute(statement, {"_tenant": tenant_id, "_value": value}).rowcount == 1


def _tenant(row: Any) -> Tenant:
    return Tenant(
        tenant_id=row.tenant_id,
        display_name=row.display_name,
        status=TenantStatus(row.status),
        rate_limit_per_min=row.rate_limit_per_min,
        created_at=row.created_at,
    )
