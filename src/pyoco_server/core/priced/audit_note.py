"""What the last audit found, as it is kept for who only wants to know whether all is well."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["AuditNote"]

_TENANTS_MAX = 1000


@dataclass(frozen=True)
class AuditNote:
    """When it was, and how many differences each tenant has; None: those that are nobody's own."""

    at_us: int
    differences: dict[str | None, int]

    @classmethod
    def of(cls, at_us: int, tenants: Iterable[str | None]) -> AuditNote:
        """`tenants`: whose each difference is. A thousand tenants at most are kept: by then it does not matter."""
        return cls(at_us, dict(Counter(tenants).most_common(_TENANTS_MAX)))

    def seen_by(self, tenant_id: str | None) -> int:
        """A tenant's own and those of the ledger as a whole; None sees all."""
        if tenant_id is None:
            return sum(self.differences.values())
        return self.differences.get(tenant_id, 0) + self.differences.get(None, 0)

    def text(self) -> str:
        whole = self.differences.get(None, 0)
        tenants = {name: count for name, count in self.differences.items() if name is not None}
        return json.dumps({"at_us": self.at_us, "ledger": whole, "tenants": tenants})

    @classmethod
    def read(cls, text: str | None) -> AuditNote | None:
        """None: there is none, or it is not of this version."""
        try:
            found = json.loads(text or "")
            counts: dict[str | None, int] = {str(name): int(count) for name, count in found["tenants"].items()}
            if found["ledger"]:
                counts[None] = int(found["ledger"])
            return cls(int(found["at_us"]), counts)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
