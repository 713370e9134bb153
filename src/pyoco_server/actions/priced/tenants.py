"""List the tenants of the ledger, and change their terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyoco_server.core.priced.instants import iso
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["ShownTenant", "all_tenants", "limit_tenant", "set_tenant_status"]

_PAGE = 1000


@dataclass(frozen=True)
class ShownTenant:
    tenant: Tenant

    def document(self) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant.tenant_id,
            "display_name": self.tenant.display_name,
            "status": self.tenant.status.value,
            "rate_limit_per_min": self.tenant.rate_limit_per_min,
            "created_at": iso(self.tenant.created_at),
        }


async def all_tenants(priced: Priced) -> list[ShownTenant]:
    """Return all tenants by id. O(tenants), a thousand at a time."""
    found: list[Tenant] = []
    while True:
        after = found[-1].tenant_id if found else ""
        page = await priced.ledger.read(lambda tx, after=after: tx.tenants.all(after, _PAGE))  # type: ignore[misc]
        found += page
        if len(page) < _PAGE:
            return [ShownTenant(tenant) for tenant in found]


async def set_tenant_status(priced: Priced, tenant_id: str, status: TenantStatus) -> ShownTenant | None:
    """Change the status. Returns None if the ledger has no such tenant. Runs in progress continue and are settled."""

    def change(tx: LedgerTx) -> Tenant | None:
        return tx.tenants.get(tenant_id) if tx.tenants.set_status(tenant_id, status) else None

    changed = await priced.ledger.transact(change)
    return None if changed is None else ShownTenant(changed)


async def limit_tenant(priced: Priced, tenant_id: str, per_minute: int | None) -> ShownTenant | None:
    """Set the tenant's rate limit; None: the default. Returns None if the ledger has no such tenant."""

    def change(tx: LedgerTx) -> Tenant | None:
        return tx.tenants.get(tenant_id) if tx.tenants.set_rate_limit(tenant_id, per_minute) else None

    changed = await priced.ledger.transact(change)
    return None if changed is None else ShownTenant(changed)
