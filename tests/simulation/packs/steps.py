"""What is wrong with one change of a row: judged by the table of steps, and by what each step asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.states.priced import STEPS, At, Money, Stage, Status
from pyoco_server.ports.ledger.port import Spans
from simulation.packs.books import Row

__all__ = ["NEW", "READY", "step_of", "step_problems"]

(NEW,) = STEPS["T2"].sources
(READY,) = STEPS["T4"].sources
#: Columns that never change.
_FIXED = (
    "tenant_id",
    "pack_type",
    "payload_hash",
    "reservation_max_cost_usd_micros",
    "minimum_fee_usd_micros",
    "timebox_sec",
    "created_at",
    "retention_until",
)
_LEADING_TO: dict[tuple[At, At], list[str]] = {}
for _name, _step in STEPS.items():
    for _places in _step.arrivals():
        _LEADING_TO.setdefault(_places, []).append(_name)
_CLAIMS_BY = {"worker": "T6", "reaper": "T9", "api": "T13"}


def step_problems(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    """`now_us`: by the ledger's clock, at the commit."""
    for column in _FIXED:
        if getattr(before, column) != getattr(after, column):
            yield f"{column} has changed"
    step = step_of(before, after)
    if step is None:
        yield f"no step leads from {before.at} to {after.at}"
        return
    rise = after.version - before.version
    if rise != STEPS[step].counts:
        yield f"{step} changed the version by {rise}"
    if after.updated_at < before.updated_at:
        yield f"{step} set updated_at back"
    if step in _CHECKS:
        yield from (f"{step}: {problem}" for problem in _CHECKS[step](before, after, now_us, spans))


def step_of(before: Row, after: Row) -> str | None:
    """Places alone do not tell all steps apart: the actor and the token tell the others."""
    if before.version == after.version and before.at == after.at:
        return "T5"
    names = _LEADING_TO.get((before.at, after.at), [])
    if "T6" in names:
        return _CLAIMS_BY.get(after.finalize_actor, "T9")
    if "T11" in names:
        return "T13" if after.finalize_actor == "api" else "T11"
    if "T15" in names:
        return "T15" if before.finalize_token != after.finalize_token else "T19"
    if "T8" in names:
        return "T10" if after.last_error_reason_code == "WORKER_TIMEOUT" else "T8"
    return names[0] if names else None


def _beat(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    """A heartbeat, or a note that the message was sent."""
    if before.lease_token != after.lease_token:
        yield "the lease changed hands"
    if before.lease_expires_at == after.lease_expires_at:
        return
    if before.at.status is not Status.PROCESSING or before.at.stage is not Stage.OPEN:
        yield "a lease was renewed that nobody holds"
    elif before.lease_expires_at < now_us:
        yield "a lease was renewed that had ended"


def _start(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    if before.lease_token is not None or before.started_at is not None:
        yield "the run was started before"
    if after.lease_token is None or after.lease_expires_at <= now_us:
        yield "the run was started without a lease"
    if now_us - before.created_at >= spans.reservation_seconds * SECOND_US:
        yield "a run was started that may be given up"


def _reap(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    yield from _claim(before, after, now_us, spans)
    if before.lease_expires_at >= now_us:
        yield f"a run was reaped whose lease has {(before.lease_expires_at - now_us) / SECOND_US:.3f} s left"


def _claim(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    if before.finalize_token is not None:
        yield "the end was claimed before"
    if after.finalize_token is None or after.intent is None:
        yield "a claim without its token or intent"


def _aged(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    yield from _claim(before, after, now_us, spans)
    if now_us - before.created_at < spans.reservation_seconds * SECOND_US:
        yield "a run was given up too early"


def _abandoned(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    yield from _claim(before, after, now_us, spans)
    if now_us - before.created_at <= spans.submit_abandon_seconds * SECOND_US:
        yield "a submission was given up too early"


def _take_over(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    if before.finalize_claimed_at >= now_us - spans.reconcile_after_seconds * SECOND_US:
        yield "a claim was taken over that is not stale"
    if before.intent != after.intent:
        yield "a claim was taken over with another intent"


def _commit(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    if before.finalize_token != after.finalize_token:
        yield "the run was ended by somebody without the claim"
    intent = before.intent
    if intent is None:
        yield "the run was ended without an intent"
        return
    if intent["status"] != after.at.status:
        yield f"the intent was {intent['status']}"
    if after.actual_cost_usd_micros != min(intent["charge_usd_micros"], after.reservation_max_cost_usd_micros):
        yield f"the charge is {after.actual_cost_usd_micros}, the intent was {intent['charge_usd_micros']}"
    yield from _end_problems(after)


def _is_operators_fault(row: Row) -> bool:
    """SAFE-3"""
    return bool(row.last_error_reason_code == Reason.PACK_UNAVAILABLE)


def _end_problems(row: Row) -> Iterator[str]:
    """PRICED-8, PRICED-11 to PRICED-13."""
    charge, reserved = row.actual_cost_usd_micros, row.reservation_max_cost_usd_micros
    if charge is None or not 0 <= charge <= reserved:
        yield f"a charge of {charge} for a reservation of {reserved}"
    elif row.at.money is Money.REFUNDED and charge:
        yield "a run was refunded that was charged"
    elif row.at.money is Money.REFUNDED and row.started_at is not None and not _is_operators_fault(row):
        yield "a run was refunded that was started"
    elif row.at.money is Money.SETTLED and row.started_at is None:
        yield "a run was charged that was never started"
    elif (row.at.status, row.at.money) == (Status.FAILED, Money.SETTLED) and charge != min(
        row.minimum_fee_usd_micros, reserved
    ):
        yield f"a failure costs {charge} instead of the minimum fee"
    has_pointer = {row.result_bucket is not None, row.result_key is not None, row.result_sha256 is not None}
    if has_pointer != {row.at.status is Status.COMPLETED}:
        yield f"a {row.at.status} run and its result do not fit"


def _expire(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    if before.retention_until > now_us:
        yield "a run was removed before its retention had passed"


def _dispute(before: Row, after: Row, now_us: int, spans: Spans) -> Iterator[str]:
    yield "the money facts of a run contradict each other"


_CHECKS: dict[str, Callable[[Row, Row, int, Spans], Iterator[str]]] = {
    "T4": _start,
    "T5": _beat,
    "T6": _claim,
    "T7": _commit,
    "T8": _commit,
    "T9": _reap,
    "T10": _commit,
    "T11": _aged,
    "T12": _abandoned,
    "T13": _claim,
    "T14": _commit,
    "T15": _take_over,
    "T16": _expire,
    "T17": _dispute,
}
