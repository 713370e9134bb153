"""Conversion between rows of `runs` and runs. No other module depends on the content of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyoco_server.core.priced.run import Intent, NewRun, PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor, At, Money, Stage, Status
from pyoco_server.errors import Corrupt
from pyoco_server.ports.ledger.schema import runs

__all__ = ["COLUMNS", "NEW_COLUMNS", "new_row", "pointer_columns", "run_of", "stage_column"]

#: The columns that a statement must return for `run_of`, in this order.
COLUMNS = tuple(runs.c)

_NAMES = tuple(column.name for column in COLUMNS)
#: Columns with the same name and value as the run's attribute.
_SAME = (
    "run_id",
    "tenant_id",
    "pack_type",
    "profile_version",
    "idempotency_key",
    "payload_hash",
    "version",
    "actual_cost_usd_micros",
    "minimum_fee_usd_micros",
    "timebox_sec",
    "min_reliability_e4",
    "inline",
    "tokens_consumed",
    "retention_until",
    "lease_token",
    "lease_expires_at",
    "finalize_token",
    "finalize_claimed_at",
    "enqueued_at",
    "trace_id",
    "api_key_id",
    "started_at",
    "created_at",
    "updated_at",
    "not_before",
)


#: The columns that `new_row` returns.
NEW_COLUMNS = (
    "run_id",
    "tenant_id",
    "pack_type",
    "profile_version",
    "status",
    "money_state",
    "finalize_stage",
    "idempotency_key",
    "payload_hash",
    "version",
    "reservation_max_cost_usd_micros",
    "minimum_fee_usd_micros",
    "timebox_sec",
    "min_reliability_e4",
    "inline",
    "artifacts_json",
    "tokens_consumed",
    "trace_id",
    "api_key_id",
    "not_before",
    "schedule_json",
)


def run_of(values: Sequence[Any]) -> PricedRun:
    """Convert a row. Raises Corrupt for an invalid row, naming the run but none of the row's content."""
    row = dict(zip(_NAMES, values, strict=True))
    try:
        return _run_of(row)
    except (AssertionError, TypeError, ValueError):
        raise Corrupt(f"the row of the run {row['run_id']} cannot be read") from None


def _run_of(row: dict[str, Any]) -> PricedRun:
    actor, intent = row["finalize_actor"], row["finalize_intent"]
    if not isinstance(row["artifacts_json"], dict):
        raise TypeError("no object")
    return PricedRun(
        status=Status(row["status"]),
        money=Money(row["money_state"]),
        stage=Stage(row["finalize_stage"] or Stage.OPEN),
        reserved_usd_micros=row["reservation_max_cost_usd_micros"],
        artifacts=row["artifacts_json"],
        result=_pointer(row),
        finalize_actor=Actor(actor) if actor is not None else None,
        intent=Intent.of(intent) if intent is not None else None,
        reason_code=row["last_error_reason_code"],
        error_detail=row["last_error_detail"],
        schedule=row["schedule_json"] if isinstance(row["schedule_json"], dict) else None,  # shown only
        **{name: row[name] for name in _SAME},
    )


def new_row(ask: NewRun, at: At, version: int) -> dict[str, Any]:
    """All columns of a new row but its instants, which the ledger's clock provides: the values of `NEW_COLUMNS`."""
    return {
        "run_id": ask.run_id,
        "tenant_id": ask.tenant_id,
        "pack_type": ask.pack_type,
        "profile_version": ask.profile_version,
        "status": at.status.value,
        "money_state": at.money.value,
        "finalize_stage": stage_column(at.stage),
        "idempotency_key": ask.idempotency_key,
        "payload_hash": ask.payload_hash,
        "version": version,
        "reservation_max_cost_usd_micros": ask.reserved_usd_micros,
        "minimum_fee_usd_micros": ask.minimum_fee_usd_micros,
        "timebox_sec": ask.timebox_sec,
        "min_reliability_e4": ask.min_reliability_e4,
        "inline": ask.inline,
        "artifacts_json": ask.artifacts,
        "tokens_consumed": 0,
        "trace_id": ask.trace_id,
        "api_key_id": ask.api_key_id,
        "not_before": ask.not_before,
        "schedule_json": ask.schedule,
    }


def stage_column(stage: Stage) -> str | None:
    return None if stage is Stage.OPEN else stage.value


def pointer_columns(pointer: ResultPointer | None) -> dict[str, Any]:
    """Either all of them are set, or none (PRICED-12)."""
    document = pointer.document() if pointer is not None else dict.fromkeys(("bucket", "key", "sha256", "bytes"))
    return {
        "result_bucket": document["bucket"],
        "result_key": document["key"],
        "result_sha256": document["sha256"],
        "result_bytes": document["bytes"],
        "result_artifacts_json": document.get("artifacts"),
    }


def _pointer(row: dict[str, Any]) -> ResultPointer | None:
    if row["result_bucket"] is None:
        return None
    return ResultPointer(
        bucket=row["result_bucket"],
        key=row["result_key"],
        sha256=row["result_sha256"],
        size_bytes=row["result_bytes"],
        artifacts=tuple(row["result_artifacts_json"] or ()),
    )
