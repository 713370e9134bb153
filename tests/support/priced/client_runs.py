"""Priced runs as a scripted gateway answers with them, for tests of the clients."""

from __future__ import annotations

from typing import Any

__all__ = ["RUN_ID", "a_run"]

RUN_ID = "5b0c0000-0000-4000-8000-000000000000"


def a_run(status: str, result: Any = None) -> dict[str, Any]:
    cost = {
        "reserved_usd": "0.2500",
        "used_usd": "0.0000",
        "minimum_fee_usd": "0.0050",
        "budget_remaining_usd": "1.0000",
    }
    meta = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "trace_id": "t_1"}
    return {"run_id": RUN_ID, "status": status, "money_state": "X", "cost": cost, "result": result, "meta": meta}
