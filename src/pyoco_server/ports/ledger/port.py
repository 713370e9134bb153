"""The truth about priced runs and their money: one SQL database, one transaction at a time.

A transaction is a plain function of a `LedgerTx`: it runs in a thread, whole or not at all, and may be run again from
the beginning when the database asks for that. So it does nothing but what its argument offers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from pyoco_server.core.priced.journal import Closing, Txn
from pyoco_server.core.priced.run import Intent, NewRun, PricedRun, Tenant, TenantStatus
from pyoco_server.core.priced.upload import NewUpload, Upload
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    OpenReservation,
    Outcome,
    Reserved,
)

__all__ = [
    "LOST",
    "AuditReport",
    "Balances",
    "BudgetMode",
    "BudgetModes",
    "CreditNote",
    "Difference",
    "Ends",
    "Exists",
    "Final",
    "Full",
    "Identity",
    "Journal",
    "JournalLine",
    "Leases",
    "Ledger",
    "LedgerRefused",
    "LedgerTx",
    "Lost",
    "MoneyTables",
    "Notes",
    "Rate",
    "Rates",
    "RunRows",
    "Scan",
    "Spans",
    "Spend",
    "Tenants",
    "Uploads",
]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Spans:
    """What scans and guards measure with: the settings of the same names."""

    lease_seconds: int
    reservation_seconds: int
    submit_abandon_seconds: int
    resend_after_seconds: int
    reconcile_after_seconds: int
    retention_seconds: int


class LedgerRefused(Exception):
    """The database did not take a statement: a defect of ours, never of the user. Nothing was changed."""


class Lost:
    """The guard did not hold: somebody was faster, or it is too late. The row is as it was."""

    def __repr__(self) -> str:
        return "LOST"


LOST = Lost()


@dataclass(frozen=True)
class Exists:
    """The tenant has a run under this key already."""

    run: PricedRun


@dataclass(frozen=True, kw_only=True)
class Final:
    """What a commit writes: the intent, as the money answer made it true."""

    #: T7, T8, T10 or T14; T18 for an operator.
    step: str
    intent: Intent
    #: What was really charged.
    charge_usd_micros: int
    #: The run's idempotency key may be used again (SUBMIT_ABANDONED, QUEUE_ENQUEUE_FAILED).
    releases_key: bool = False


class Scan(StrEnum):
    """What a keeper looks for; the oldest first."""

    EXPIRED_LEASES = "expired_leases"  # PROCESSING, OPEN, lease over
    AGED = "aged"  # QUEUED, RESERVED, OPEN, older than the reservation may be
    ABANDONED = "abandoned"  # QUEUED, NONE, OPEN, older than a submit takes
    UNSENT = "unsent"  # QUEUED, RESERVED, OPEN, never confirmed as sent, old enough and not too old
    STALE_CLAIMS = "stale_claims"  # CLAIMED, not DISPUTED, for too long
    LONG_EXPIRED_LEASES = "long_expired_leases"  # as the first, but nobody has reaped it for `reconcile_after`
    PAST_RETENTION = "past_retention"  # ended, retention over
    DISPUTED = "disputed"  # waits for an operator


@dataclass(frozen=True)
class Rate:
    """A token bucket after one request asked for a token."""

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
    """One money fact as it is shown: what it did to the tenant's two accounts."""

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
    """What was charged, and how many runs were closed, from `start_at` on for one step of time."""

    start_at: int
    charged_usd_micros: int
    runs: int


@dataclass(frozen=True)
class CreditNote:
    """A credit as the journal names it."""

    op_key: str
    amount_usd_micros: int


class BudgetMode(StrEnum):
    """Where the money of one ledger's tenants is. All processes agree on it, or money is spent twice."""

    JOINT = "joint"  # in the ledger's own tables
    SPLIT = "split"  # in Redis


@dataclass(frozen=True)
class Difference:
    """Something that does not add up. `check` is the number of the rule in the audit's list."""

    check: int
    tenant_id: str | None
    run_id: str | None
    detail: str


@dataclass(frozen=True)
class AuditReport:
    tenants: int
    differences: tuple[Difference, ...]
    #: Each tenant's available money as the journal has it: what a budget elsewhere is compared with.
    available: dict[str, int]


@dataclass(frozen=True)
class Full:
    """The tenant's files take as much as they may, or would with one more."""

    #: As `Uploads.used_bytes` counts.
    used_bytes: int
    #: When the first of them goes, in microseconds; None: there is none.
    first_expires_at: int | None


class Tenants(Protocol):
    def get(self, tenant_id: str) -> Tenant | None: ...

    def with_balance(self, tenant_id: str) -> tuple[Tenant | None, int]:
        """And what it may spend by the tables of this database (joint mode). One look."""

    def ensure(self, tenant_id: str, display_name: str | None = None) -> Tenant:
        """Make the tenant, and a budget of nothing, unless they are there."""

    def set_status(self, tenant_id: str, status: TenantStatus) -> bool:
        """False: there is no such tenant."""

    def set_rate_limit(self, tenant_id: str, per_minute: int | None) -> bool: ...

    def all(self, after: str = "", limit: int = 1000) -> list[Tenant]:
        """By id."""


class RunRows(Protocol):
    """Reading rows, and the first steps of a submit."""

    def create(self, ask: NewRun) -> PricedRun | Exists:
        """T1: QUEUED, NONE, version 0, with its inputs. `Exists`: the tenant has used the key; nothing changed.

        Another transaction that is writing the same key is waited for; after 5 s that raises `KeyBusy`.
        Makes the tenant when the ledger has never heard of it.
        """

    def create_reserved(self, ask: NewRun) -> PricedRun | Exists:
        """T1 and T2 in one write: QUEUED, RESERVED, version 1. For a caller that reserves in the same transaction, so
        that nobody ever sees the one without the other (joint mode)."""

    def delete_unreserved(self, run_id: str) -> bool:
        """T3."""

    def mark_reserved(self, run_id: str, version: int) -> PricedRun | Lost:
        """T2."""

    def mark_enqueued(self, run_id: str) -> None:
        """The message is known to be sent. No step: the version stays."""

    def forget_sent(self, before: int) -> int:
        """Runs that wait and were sent before that instant count as not sent: what held their messages is gone. No
        step, as above. How many; O(runs that are queued)."""

    def get(self, run_id: str) -> PricedRun | None: ...

    def get_owned(self, run_id: str, tenant_id: str) -> PricedRun | None:
        """One query; a foreign run is as a missing one. A malformed id is as a missing one, too."""

    def find_by_key(self, tenant_id: str, idempotency_key: str) -> PricedRun | None: ...

    def inputs(self, run_id: str) -> dict[str, Any] | None: ...

    def scan(self, kind: Scan, limit: int) -> list[PricedRun]:
        """Rows that qualify now, the oldest first, by an index: O(limit). One that cannot be read is told as an alarm,
        and left out."""

    def unsettled(self, tenant_id: str) -> list[PricedRun]:
        """The tenant's runs whose money is not closed: NONE, RESERVED or DISPUTED. O(runs that have not ended)."""

    def changed_since(self, updated_at: int, run_id: str, limit: int) -> list[PricedRun]:
        """Rows by (updated_at, run_id) after that place, in that order: for the projection. As in `scan`, without those
        that cannot be read."""


class Leases(Protocol):
    def start(self, run_id: str, version: int, lease_token: str) -> PricedRun | Lost:
        """T4."""

    def heartbeat(self, run_id: str, version: int, lease_token: str) -> bool:
        """T5. False: the lease is lost, and cannot be had again."""


class Ends(Protocol):
    """The right to end a run, and its use. Every call is one conditional UPDATE, by the ledger's clock."""

    def claim(
        self,
        run_id: str,
        version: int,
        basis: Basis,
        token: str,
        actor: Actor,
        intent: Intent,
        lease_token: str | None = None,
    ) -> PricedRun | Lost:
        """T6 (needs `lease_token`), T9, T11, T12 or T13."""

    def take_over(self, run_id: str, version: int, token: str, actor: Actor) -> PricedRun | Lost:
        """T15. The intent stays."""

    def replace_intent(self, run_id: str, version: int, token: str, intent: Intent) -> PricedRun | Lost:
        """T19."""

    def commit(self, run_id: str, version: int, token: str, final: Final) -> PricedRun | Lost:
        """T7, T8, T10 or T14. The row alone: money and journal are the caller's, in the same transaction."""

    def dispute(self, run_id: str, version: int, token: str) -> PricedRun | Lost:
        """T17."""

    def resolve(self, run_id: str, version: int, final: Final) -> PricedRun | Lost:
        """T18."""

    def expire(self, run_id: str, version: int) -> PricedRun | Lost:
        """T16: inputs, pointer, error detail and key go; the money facts stay."""


class MoneyTables(Protocol):
    """The budget in this database (joint mode): codes and numbers as `ports/budget`, and the journal written along.

    Every writing call locks the tenant's budget first. Raises `AmountError` and `TenantMismatch`, and changes nothing.
    """

    def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, trace_id: str | None = None
    ) -> Reserved | Insufficient | AlreadyReserved: ...

    def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve: ...

    def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve: ...

    def outcome(self, run_id: str) -> Outcome: ...

    def balance(self, tenant_id: str) -> int: ...

    def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied: ...

    def adjust(self, tenant_id: str, amount_usd_micros: int) -> int:
        """Add to the balance what a correction in the journal says; the new balance. For T18 alone."""

    def force_close(self, run_id: str, charge_usd_micros: int) -> bool:
        """Close an open reservation without a journal entry or a change of balance. For T18 alone."""

    def open_reservations(self, older_than_us: int, limit: int) -> list[OpenReservation]: ...


class Journal(Protocol):
    def post(self, txn: Txn) -> bool:
        """False: a fact with this `op_key` is written already, and nothing changed."""

    def find(self, op_key: str) -> JournalLine | None:
        """The fact of this key, whoever's it is."""

    def confirm(self, op_keys: Sequence[str]) -> None:
        """A budget elsewhere is known to have these credits. Said twice, it is said once."""

    def is_confirmed(self, op_key: str) -> bool: ...

    def unconfirmed_credits(self, tenant_id: str) -> list[CreditNote]:
        """The tenant's, the oldest first. O(credits of the tenant)."""

    def balances(self, tenant_id: str) -> Balances:
        """Recomputed from the entries: O(entries of the tenant)."""

    def lines(self, tenant_id: str | None, before: int | None, limit: int) -> list[JournalLine]:
        """The newest first; `before` is a `txn_id`. By an index: O(limit)."""

    def spend(self, tenant_id: str | None, since_us: int, step_us: int) -> list[Spend]:
        """Charges from `since_us` on, in steps of time; steps without any are left out. O(closings since)."""

    def audit(self, joins_ledger: bool = True) -> AuditReport:
        """Everything that can be checked inside this database, at one moment: O(journal).

        `joins_ledger` is the budget's: one that lives elsewhere is not in this database's budget tables.
        """


class BudgetModes(Protocol):
    """Which mode the ledger's budgets are in, and what a change of it needs."""

    def get(self) -> BudgetMode | None:
        """None: nobody has opened this ledger yet."""

    def begin(self, mode: BudgetMode) -> BudgetMode:
        """The mode that holds: `mode`, unless somebody was first."""

    def set(self, mode: BudgetMode) -> None: ...

    def running(self, limit: int) -> list[str]:
        """Runs whose money is not closed."""

    def set_balance(self, tenant_id: str, balance_usd_micros: int) -> None:
        """In this database's tables, whatever is there."""

    def add_closed_reservations(self, limit: int) -> int:
        """Of runs that ended while their money was elsewhere; how many were added. 0: none is missing."""


class Identity(Protocol):
    """The random id that tells this ledger from every other (SAFE-12)."""

    def get(self) -> str | None:
        """None: it was created by an older version, and has not been used by a gateway of this one yet."""

    def give(self, ledger_id: str) -> str:
        """The id that holds: `ledger_id`, unless the ledger has one already. It is never changed."""


class Notes(Protocol):
    """What one process leaves for others to read: no money, and nothing that a decision hangs on."""

    def get(self, name: str) -> str | None: ...

    def put(self, name: str, text: str) -> None:
        """In place of what was left under this name before."""


class Rates(Protocol):
    def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        """Ask for one token of the bucket `get` or `post`."""


class Uploads(Protocol):
    """Files that tenants bring. A row is there before the file is, and goes after it: so no file is ever forgotten.

    What is over (`expires_at`) stays over: nobody revives it, and it may be removed at any time.
    """

    def reserve(self, ask: NewUpload, tenant_bytes_max: int) -> Upload | Full:
        """Room for a file that is about to be stored, for `PENDING_SECONDS`. One at a time for each tenant, so that all
        together never take more than `tenant_bytes_max`. `Full`: nothing changed. The cost is that of `used_bytes`."""

    def confirm(self, upload_id: str, tenant_id: str) -> Upload | None:
        """The file is stored: it stays for the retention. When the tenant had stored the same bytes meanwhile, that
        upload is returned, and this one is over. None: it is over, or was abandoned. Repeatable."""

    def abandon(self, upload_id: str) -> None:
        """It will not be stored: it takes no room any more. The row stays, since bytes may still turn up, until it is
        over. Nothing for one that is confirmed. Repeatable."""

    def find(self, tenant_id: str, sha256: str) -> Upload | None:
        """A stored file of these bytes that has more than half of its time left."""

    def lose(self, upload_id: str) -> None:
        """Its file is not there any more: it is over, whatever it was."""

    def used_bytes(self, tenant_id: str) -> int:
        """What the tenant's files take, and those under way: each its size, and no less than `ROOM_BYTES_MIN`.

        By an index alone, a row for each of them: so there are no more than the room has `ROOM_BYTES_MIN`, 16,384 in
        1 GiB, a few ms; and what was abandoned within the hour, no more than the rate limit lets in."""

    def expired(self, limit: int) -> list[Upload]:
        """What is over, the oldest first. By an index: O(limit)."""

    def defer(self, upload_id: str) -> None:
        """It is over and could not be removed: all else that is over now comes before it. Nothing for one that is not
        over."""

    def remove(self, upload_id: str) -> bool:
        """The row of a file that is gone. False: there was none, or it is not over."""


@dataclass(frozen=True)
class LedgerTx:
    """One transaction, in a thread. What it offers, by who needs it."""

    #: By the ledger's clock, at the beginning of this transaction or later.
    now_us: Callable[[], int]
    tenants: Tenants
    runs: RunRows
    leases: Leases
    ends: Ends
    money: MoneyTables
    journal: Journal
    modes: BudgetModes
    notes: Notes
    identity: Identity
    rates: Rates
    uploads: Uploads


class Ledger(Protocol):
    """An outage raises DependencyUnavailable: what was asked for may have happened; read back before deciding.

    While the ledger is not the one that the deployment uses, everything but `stored_id` raises OtherLedger.
    """

    async def transact(self, work: Callable[[LedgerTx], T]) -> T:
        """Everything `work` does, or nothing: an exception rolls back and goes to the caller. Durable on return.

        `work` may be run more than once, from the beginning. Transactions of one process may share one sync to disk.
        """

    async def transact_softly(self, work: Callable[[LedgerTx], T]) -> T:
        """The same for hints that a power failure may take: no sync to disk is waited for."""

    async def read(self, question: Callable[[LedgerTx], T]) -> T:
        """Committed rows, all from one moment where the database has such a thing; waits for no writer."""

    async def read_long(self, question: Callable[[LedgerTx], T]) -> T:
        """The same for a question that may take a minute: an audit."""

    async def stored_id(self) -> str | None:
        """The id of what the address leads to now. None: it has none. Raises OtherLedger when that is not what this
        process has opened: a file was deleted or replaced."""

    async def ping(self) -> None:
        """Raises DependencyUnavailable."""

    async def probe(self) -> None:
        """As `ping`, by a small write: a full disk answers questions and takes nothing."""
