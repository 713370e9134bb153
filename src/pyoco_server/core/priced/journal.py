"""The journal's arithmetic: the entries and accounts of each money fact. Double entry; entries sum to zero."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.core.states.priced import Actor

__all__ = [
    "CORRECTION",
    "FUNDING",
    "REVENUE",
    "Closing",
    "JournalEntry",
    "Kind",
    "Txn",
    "available",
    "correction",
    "held",
    "refund",
    "reserve",
    "settle",
    "topup",
    "topup_key",
]

REVENUE = "platform:revenue"
FUNDING = "platform:funding"
CORRECTION = "platform:correction"


def available(tenant_id: str) -> str:
    return f"tenant:{tenant_id}:available"


def held(tenant_id: str) -> str:
    return f"tenant:{tenant_id}:held"


class Kind(StrEnum):
    TOPUP = "TOPUP"
    RESERVE = "RESERVE"
    SETTLE = "SETTLE"
    REFUND = "REFUND"
    CORRECTION = "CORRECTION"


@dataclass(frozen=True)
class JournalEntry:
    account: str
    amount_usd_micros: int


@dataclass(frozen=True, kw_only=True)
class Txn:
    """One money fact. Its `op_key` is unique, so the same fact cannot be written twice."""

    op_key: str
    kind: Kind
    tenant_id: str
    entries: tuple[JournalEntry, ...]
    actor: Actor
    run_id: str | None = None
    finalize_token: str | None = None
    trace_id: str | None = None
    #: Required for a correction; never contains anything a user sent.
    memo: str | None = None

    def __post_init__(self) -> None:
        assert sum(entry.amount_usd_micros for entry in self.entries) == 0
        assert all(entry.amount_usd_micros != 0 for entry in self.entries)
        assert self.kind is not Kind.CORRECTION or self.memo


def _entries(*legs: tuple[str, int]) -> tuple[JournalEntry, ...]:
    return tuple(JournalEntry(account, amount) for account, amount in legs if amount != 0)


def topup_key(ref: str) -> str:
    return f"topup:{ref}"


def topup(tenant_id: str, ref: str, amount: int, actor: Actor = Actor.OPERATOR, memo: str | None = None) -> Txn:
    return Txn(
        op_key=topup_key(ref),
        kind=Kind.TOPUP,
        tenant_id=tenant_id,
        entries=_entries((FUNDING, -amount), (available(tenant_id), amount)),
        actor=actor,
        memo=memo,
    )


def reserve(tenant_id: str, run_id: str, reserved: int, actor: Actor, trace_id: str | None = None) -> Txn:
    return Txn(
        op_key=f"reserve:{run_id}",
        kind=Kind.RESERVE,
        tenant_id=tenant_id,
        entries=_entries((available(tenant_id), -reserved), (held(tenant_id), reserved)),
        actor=actor,
        run_id=run_id,
        trace_id=trace_id,
    )


@dataclass(frozen=True, kw_only=True)
class Closing:
    """Who closes a reservation, for the journal."""

    actor: Actor
    finalize_token: str | None = None
    trace_id: str | None = None


def settle(tenant_id: str, run_id: str, reserved: int, charge: int, by: Closing) -> Txn:
    return _close(Kind.SETTLE, tenant_id, run_id, reserved, charge, by)


def refund(tenant_id: str, run_id: str, reserved: int, by: Closing) -> Txn:
    return _close(Kind.REFUND, tenant_id, run_id, reserved, 0, by)


def _close(kind: Kind, tenant_id: str, run_id: str, reserved: int, charge: int, by: Closing) -> Txn:
    assert 0 <= charge <= reserved
    return Txn(
        op_key=f"close:{run_id}",
        kind=kind,
        tenant_id=tenant_id,
        entries=_entries((held(tenant_id), -reserved), (REVENUE, charge), (available(tenant_id), reserved - charge)),
        actor=by.actor,
        run_id=run_id,
        finalize_token=by.finalize_token,
        trace_id=by.trace_id,
    )


def correction(tenant_id: str, ref: str, account: str, amount: int, memo: str) -> Txn:
    """Add `amount` (which may be negative) to `account`, of the tenant, and take it from `platform:correction`."""
    assert account in (available(tenant_id), held(tenant_id))
    return Txn(
        op_key=f"correct:{ref}",
        kind=Kind.CORRECTION,
        tenant_id=tenant_id,
        entries=_entries((account, amount), (CORRECTION, -amount)),
        actor=Actor.OPERATOR,
        memo=memo,
    )
