"""The values that the operations of the ledger take and return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.core.priced.run import Intent, PricedRun

__all__ = [
    "LOST",
    "AuditReport",
    "Balances",
    "BudgetMode",
    "CreditNote",
    "Difference",
    "Exists",
    "Final",
    "JournalLine",
    "LedgerRefused",
    "Lost",
    "Rate",
    "Scan",
    "Spans",
    "Spend",
    "StorageFull",
]


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The time spans that scans and guards use: the settings of the same names."""

    lease_seconds: int
    reservation_seconds: int
    submit_abandon_seconds: int
    resend_after_seconds: int
    reconcile_after_seconds: int
    retention_seconds: int


class LedgerRefused(Exception):
    """The database rejected a statement: a defect in our code, never the user's fault. Nothing was changed."""


class Lost:
    """The guard failed: another process was faster, or it is too late. The row is unchanged."""

    def __repr__(self) -> str:
        return "LOST"


LOST = Lost()


@dataclass(frozen=True)
class Exists:
    """The tenant already has a run with this key."""

    run: PricedRun


@dataclass(frozen=True, kw_only=True)
class Final:
    """What a commit writes: the intent, with the amounts that the budget confirmed."""

    #: T7, T8, T10 or T14; T18 for an operator.
    step: str
    intent: Intent
    #: The amount that was actually charged.
    charge_usd_micros: int
    #: Whether the run's idempotency key may be used again (SUBMIT_ABANDONED, QUEUE_ENQUEUE_FAILED).
    releases_key: bool = False


class Scan(StrEnum):
    """A keeper's query; results are ordered oldest first."""

    EXPIRED_LEASES = "expired_leases"  # PROCESSING, OPEN, lease expired
    AGED = "aged"  # QUEUED, RESERVED, OPEN, older than the maximum age of a reservation
    ABANDONED = "abandoned"  # QUEUED, NONE, OPEN, older than the maximum duration of a submit
    UNSENT = "unsent"  # QUEUED, RESERVED, OPEN, sending never confirmed, within the age range
    STALE_CLAIMS = "stale_claims"  # CLAIMED, not DISPUTED, for too long
    LONG_EXPIRED_LEASES = "long_expired_leases"  # as EXPIRED_LEASES, but expired for longer than `reconcile_after`
    PAST_RETENTION = "past_retention"  # ended, retention over
    DISPUTED = "disputed"  # waits for an operator


@dataclass(frozen=True)
class Rate:
    """The state of a token bucket after one request for a token."""

    allowed: bool
    limit: int
    remaining: int
    #: When the bucket is full again, unix seconds.
    reset_at: int


@dataclass(frozen=True, kw_only=True)
class Balances:
    """One tenant's money, from the journal's entries alone."""

    tenant_id: str
    available_usd_micros: int
    held_usd_micros: int
    charged_usd_micros: int
    credited_usd_micros: int
    corrected_usd_micros: int


@dataclass(frozen=True, kw_only=True)
class JournalLine:
    """One money fact as it is displayed: its effect on the tenant's two accounts."""

    txn_id: int
    op_key: str
    kind: str
    tenant_id: str
    run_id: str | None
    actor: str
    memo: str | None
    created_at: int
    available_usd_micros: int
    held_usd_micros: int
    charged_usd_micros: int


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The amount charged, and the number of runs closed, in the time step that begins at `start_at`."""

    start_at: int
    charged_usd_micros: int
    runs: int


@dataclass(frozen=True)
class CreditNote:
    """A credit as recorded in the journal."""

    op_key: str
    amount_usd_micros: int


class BudgetMode(StrEnum):
    """Where the budgets of one ledger's tenants are. All processes must agree on it, or money would be spent twice."""

    JOINT = "joint"  # in the ledger's own tables
    SPLIT = "split"  # in Redis


@dataclass(frozen=True)
class Difference:
    """A violated invariant. `check` is the number of the rule in the audit's list."""

    check: int
    tenant_id: str | None
    run_id: str | None
    detail: str


@dataclass(frozen=True)
class AuditReport:
    tenants: int
    differences: tuple[Difference, ...]
    #: Each tenant's available money according to the journal; a budget stored elsewhere is compared with it.
    available: dict[str, int]


@dataclass(frozen=True)
class StorageFull:
    """The tenant's files use all of its storage limit, or would exceed it with one more."""

    #: Counted like `Uploads.used_bytes`.
    used_bytes: int
    #: When the first of them expires, in microseconds; None: there is none.
    first_expires_at: int | None
