"""The fields of log lines about a priced run (PRICED-176). Never anything a user sent, and no key."""

from __future__ import annotations

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Stage

__all__ = ["about", "failed", "money", "step"]


def about(run: PricedRun) -> dict[str, object]:
    return {"run_id": run.run_id, "tenant_id": run.tenant_id, "trace_id": run.trace_id}


def step(run: PricedRun, version_before: int | None) -> dict[str, object]:
    """Return the fields of a committed change of state; `run` is the row after it."""
    return {
        **about(run),
        "version_before": version_before,
        "version_after": run.version,
        "status": run.status.value,
        "money_state": run.money.value,
        "finalize_stage": None if run.stage is Stage.OPEN else run.stage.value,
    }


def money(run: PricedRun, *, charge_usd_micros: int = 0, refund_usd_micros: int = 0) -> dict[str, object]:
    return {
        "reserved_usd_micros": run.reserved_usd_micros,
        "charge_usd_micros": charge_usd_micros,
        "refund_usd_micros": refund_usd_micros,
    }


def failed(reason_code: str | None) -> dict[str, object]:
    return {} if reason_code is None else {"error.reason_code": reason_code}
