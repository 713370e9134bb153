"""The possible intents of a process that ends a run: each is one line of the money rules (PRICED-38)."""

from __future__ import annotations

from pyoco_server.core.priced.money import charge_on_failure, charge_on_success
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun, ResultPointer
from pyoco_server.core.states.priced import Status

__all__ = ["failure", "refund", "success", "unavailable"]


def success(run: PricedRun, cost_usd_micros: int, result: ResultPointer, tokens_consumed: int = 0) -> Intent:
    """COMPLETED: charge the cost of the pack, at most the reservation. Raises AmountError."""
    return Intent(
        status=Status.COMPLETED,
        money_op=MoneyOp.SETTLE,
        charge_usd_micros=charge_on_success(cost_usd_micros, run.reserved_usd_micros),
        tokens_consumed=tokens_consumed,
        result=result,
    )


def failure(run: PricedRun, reason: Reason, detail: str | None = None, tokens_consumed: int = 0) -> Intent:
    """FAILED after the start: charge the minimum fee, at most the reservation."""
    return Intent(
        status=Status.FAILED,
        money_op=MoneyOp.SETTLE,
        charge_usd_micros=charge_on_failure(run.minimum_fee_usd_micros, run.reserved_usd_micros),
        reason_code=reason.value,
        error_detail=detail,
        tokens_consumed=tokens_consumed,
    )


def refund(reason: Reason) -> Intent:
    """FAILED without a start: refund everything (PRICED-11)."""
    return Intent(status=Status.FAILED, money_op=MoneyOp.REFUND, charge_usd_micros=0, reason_code=reason.value)


def unavailable(detail: str) -> Intent:
    """FAILED after the start, through the operator's fault: refund everything (SAFE-3)."""
    return Intent(
        status=Status.FAILED,
        money_op=MoneyOp.REFUND,
        charge_usd_micros=0,
        reason_code=Reason.PACK_UNAVAILABLE.value,
        error_detail=detail,
    )
