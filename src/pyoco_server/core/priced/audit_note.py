"""A summary of the last audit, stored for readers that only need to know whether all is well."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["AuditNote"]

_TENANTS_MAX = 1000


@dataclass(frozen=True)
class AuditNote:
    """The time of the audit, and the number of differences by tenant; None: differences that belong to no tenant."""

    at_us: int
    differences: dict[str | None, int]

    @classmethod
    def of(cls, at_us: int, tenants: Iterable[str | None]) -> AuditNote:
        """Build the note; `tenants` has one entry per difference. A thousand tenants at most are kept: more detail
        is useless."""
        return cls(at_us, dict(Counter(tenants).most_common(_TENANTS_MAX)))

    def seen_by(self, tenant_id: str | None) -> int:
        """Return the number of a tenant's own differences and those of the ledger as such; None: all differences."""
        if tenant_id is None:
            return sum(self.differences.values())
        return self.differences.get(tenant_id, 0) + self.differences.get(None, 0)

    def text(self) -> str:
        ledger_count = self.differences.get(None, 0)
        tenants = {name: count for name, count in self.differences.items() if name is not None}
        return json.dumps({"at_us": self.at_us, "ledger": ledger_count, "tenants": tenants})

    @classmethod
    def read(cls, text: str | None) -> AuditNote | None:
        """Parse a stored note. Returns None if there is none, or if another version wrote it."""
        try:
            found = json.loads(text or "")
            counts: dict[str | None, int] = {str(name): int(count) for name, count in found["tenants"].items()}
            if found["ledger"]:
                counts[None] = int(found["ledger"])
            return cls(int(found["at_us"]), counts)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
