"""A priced run as a record among all other runs. For display only, never read back as truth: that is the ledger's
row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.priced.money import usd_exact, usd_up
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.run import ERROR_LENGTH_MAX, GATEWAY, KEEPER, OPERATOR, PACK, Caller, Run
from pyoco_server.core.schedules.ids import schedule_label
from pyoco_server.core.states import RunState
from pyoco_server.core.states.priced import Actor, At, Money, Stage, Status

__all__ = ["TAG", "is_delayed", "is_over", "is_withheld", "line_of", "project", "redacted", "version_of"]

#: Priced runs have their own queue; no worker takes them by tag, and a flow may use the same tag.
TAG = "packs"

#: A submit whose money is not reserved yet may still be withdrawn without a trace (T3): it is not shown.
_UNSURE = At(Status.QUEUED, Money.NONE, Stage.OPEN)

_READY = At(Status.QUEUED, Money.RESERVED, Stage.OPEN)

#: An expired run is no longer shown.
_STATES = {
    Status.QUEUED: RunState.PENDING,
    Status.PROCESSING: RunState.RUNNING,
    Status.COMPLETED: RunState.COMPLETED,
    Status.FAILED: RunState.FAILED,
}

#: Which process ended the run, if not its worker.
_ENDED_BY = {
    Actor.API: GATEWAY,
    Actor.REAPER: KEEPER,
    Actor.SWEEPER: KEEPER,
    Actor.RECONCILE: KEEPER,
    Actor.OPERATOR: OPERATOR,
}


def _seconds(at_us: int) -> float:
    return at_us / 1_000_000


def project(row: PricedRun) -> Run | None:
    """Build what lists, watchers and the dashboard show. Returns None if the run is not shown yet or not any more."""
    state = _STATES.get(row.status)
    if state is None or row.at == _UNSURE:
        return None
    updated_at = _seconds(row.updated_at)
    return Run(
        run_id=row.run_id,
        kind=PACK,
        flow_name=row.pack_type,
        tag=TAG,
        tags=() if row.schedule is None else (schedule_label(str(row.schedule.get("name"))),),
        schedule=row.schedule,
        status=state,
        submitted_at=_seconds(row.created_at),
        updated_at=updated_at,
        heartbeat_at=updated_at,
        attempt=0 if row.started_at is None else 1,
        start_time=None if row.started_at is None else _seconds(row.started_at),
        end_time=updated_at if row.has_ended else None,
        error=_error(row),
        ended_by=_ENDED_BY.get(row.finalize_actor) if row.has_ended and row.finalize_actor is not None else None,
        tenant_id=row.tenant_id,
        api_key_id=row.api_key_id,
        not_before=None if row.not_before is None else _seconds(row.not_before),
        waits_for=WaitsFor.SCHEDULED if is_delayed(row) else None,
        extra=_priced(row),
    )


def is_delayed(row: PricedRun) -> bool:
    """Return whether the message of the run is still to be sent when the run is due. Independent of any clock."""
    return row.not_before is not None and row.enqueued_at is None and row.at == _READY


def _error(row: PricedRun) -> str | None:
    if row.reason_code is None:
        return None
    return f"{row.reason_code}: {row.error_detail}"[:ERROR_LENGTH_MAX] if row.error_detail else row.reason_code


def _priced(row: PricedRun) -> dict[str, Any]:
    """Return the members that other kinds do not have. Amounts as integer micros, and as text for display."""
    return {
        "pack_type": row.pack_type,
        "priced_status": row.status.value,
        "money_state": row.money.value,
        "finalizing": row.stage is Stage.CLAIMED,
        "reason_code": row.reason_code,
        "cost": {
            "reserved_usd_micros": row.reserved_usd_micros,
            "used_usd_micros": row.used_usd_micros,
            "minimum_fee_usd_micros": row.minimum_fee_usd_micros,
            "reserved_usd": usd_exact(row.reserved_usd_micros),
            "used_usd": usd_up(row.used_usd_micros),
            "minimum_fee_usd": usd_up(row.minimum_fee_usd_micros),
        },
        "tokens_consumed": row.tokens_consumed,
        "timebox_sec": row.timebox_sec,
        "min_reliability_score": row.min_reliability_e4 / 10_000,
        "trace_id": row.trace_id,
        "ledger_version": row.version,
    }


def is_over(row: PricedRun) -> bool:
    """Whether the row is in its last state, so that its record has to be removed."""
    return row.status is Status.EXPIRED


_WORDS = ("pack_type", "priced_status", "money_state", "reason_code")
_AMOUNTS = ("reserved_usd_micros", "used_usd_micros", "minimum_fee_usd_micros")
_TEXTS = ("reserved_usd", "used_usd", "minimum_fee_usd")
_WORD_LENGTH_MAX = 64


def line_of(shown: Run) -> dict[str, Any]:
    """Return the additional members of a pack's list line. Small, even if a foreign process wrote the record."""
    line: dict[str, Any] = {name: word for name in _WORDS if _is_word(word := shown.extra.get(name))}
    cost = shown.extra.get("cost")
    if isinstance(cost, dict):
        amounts = {name: amount for name in _AMOUNTS if _is_amount(amount := cost.get(name))}
        line["cost"] = amounts | {name: text for name in _TEXTS if _is_word(text := cost.get(name))}
    return line


def _is_word(value: Any) -> bool:
    return type(value) is str and len(value) <= _WORD_LENGTH_MAX and value.isascii() and value.isprintable()


def _is_amount(value: Any) -> bool:
    return type(value) is int and value.bit_length() < 64


#: What a list shows of a priced run to a caller without a key of its tenant (SAFE-5).
_PUBLIC = ("run_id", "kind", "status", "submitted_at", "updated_at", "heartbeat_at", "start_time", "end_time")


def is_withheld(caller: Caller, kind: str, tenant_id: str | None) -> bool:
    """Whether this is a priced run and the caller has no key of its tenant, in every authentication mode (SAFE-5).

    Such a run is not found by its id; lists show it `redacted`.
    """
    return kind == PACK and (caller.tenant_id is None or caller.tenant_id != tenant_id)


def redacted(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public members of a priced run; `shown` is its snapshot or its line in a list."""
    public = {name: shown[name] for name in _PUBLIC if shown.get(name) is not None}
    pack_type = shown.get("pack_type")
    if _is_word(pack_type):
        public["pack_type"] = pack_type
    return public | {"redacted": True}


def version_of(shown: Run) -> int:
    """Return which version of the row is shown; -1: unknown."""
    version = shown.extra.get("ledger_version")
    return version if type(version) is int else -1
