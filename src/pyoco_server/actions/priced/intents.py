"""What somebody who ends a run may decide: each is one line of the money rules (PRICED-38)."""

from __future__ import annotations

from pyoco_server.core.priced.money import charge_on_failure, charge_on_success
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun, ResultPointer
from pyoco_server.core.states.priced import Status

__all__ = ["failure", "refund", "success", "unavailable"]


def success(run: PricedRun, cost_usd_micros: int, result: ResultPointer, tokens_consumed: int = 0) -> Intent:
    """COMPLETED: what the pack cost is charged, at most what is reserved. Raises AmountError."""
    return Intent(
        status=Status.COMPLETED,
        money_op=MoneyOp.SETTLE,
        charge_usd_micros=charge_on_success(cost_usd_micros, run.reserved_usd_micros),
        tokens_consumed=tokens_consumed,
        result=result,
    )


def failure(run: PricedRun, reason: Reason, detail: str | None = None, tokens_consumed: int = 0) -> Intent:
    """FAILED after it was started: the minimum fee is charged, at most what is reserved."""
    return Intent(
        status=Status.FAILED,
        money_op=MoneyOp.SETTLE,
        charge_usd_micros=charge_on_failure(run.minimum_fee_usd_micros, run.reserved_usd_micros),
        reason_code=reason.value,
        error_detail=detail,
        tokens_consumed=tokens_consumed,
    )


def refund(reason: Reason) -> Intent:
    """FAILED without ever having been started: everything goes back (PRICED-11)."""
    return Intent(status=Status.FAILED, money_op=MoneyOp.REFUND, charge_usd_micros=0, reason_code=reason.value)


def unavailable(detail: str) -> Intent:
    """FAILED after it was started, by the operator's fault: everything goes back (SAFE-3)."""
    return Intent(
        status=Status.FAILED,
        money_op=MoneyOp.REFUND,
        charge_usd_micros=0,
        reason_code=Reason.PACK_UNAVAILABLE.value,
        error_detail=detail,
    )
