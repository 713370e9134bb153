"""The authoritative store of priced runs and their money: one SQL database, accessed in transactions.

A transaction is a plain function of a `LedgerTx`: it runs in a thread, completely or not at all, and may be run again
from the beginning if the database requires that. So it must do nothing but what its argument offers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from pyoco_server.ports.ledger.values import (
    LOST,
    AuditReport,
    Balances,
    BudgetMode,
    CreditNote,
    Difference,
    Exists,
    Final,
    JournalLine,
    LedgerRefused,
    Lost,
    Rate,
    Scan,
    Spans,
    Spend,
    StorageFull,
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
    "Journal",
    "JournalLine",
    "Leases",
    "Ledger",
    "LedgerIdentity",
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
    "StorageFull",
    "Tenants",
    "Uploads",
]

T = TypeVar("T")


class Tenants(Protocol):
    def get(self, tenant_id: str) -> Tenant | None: ...

    def with_balance(self, tenant_id: str) -> tuple[Tenant | None, int]:
        """The tenant, and its available balance according to this database (joint mode). One query."""

    def ensure(self, tenant_id: str, display_name: str | None = None) -> Tenant:
        """Create the tenant with an empty budget if it does not exist."""

    def set_status(self, tenant_id: str, status: TenantStatus) -> bool:
        """Returns False if there is no such tenant."""

    def set_rate_limit(self, tenant_id: str, per_minute: int | None) -> bool: ...

    def all(self, after: str = "", limit: int = 1000) -> list[Tenant]:
        """Tenants ordered by id."""


class RunRows(Protocol):
    """Reading rows, and the first steps of a submit."""

    def create(self, ask: NewRun) -> PricedRun | Exists:
        """T1: QUEUED, NONE, version 0, with its inputs. Returns `Exists` if the tenant has used the key; then nothing
        changed.

        Waits for another transaction that is writing the same key; after 5 s this raises `KeyBusy`. Creates the tenant
        if it does not exist.
        """

    def create_reserved(self, ask: NewRun) -> PricedRun | Exists:
        """T1 and T2 in one write: QUEUED, RESERVED, version 1. For a caller that reserves in the same transaction, so
        that no other transaction ever sees one without the other (joint mode)."""

    def delete_unreserved(self, run_id: str) -> bool:
        """T3."""

    def mark_reserved(self, run_id: str, version: int) -> PricedRun | Lost:
        """T2."""

    def mark_enqueued(self, run_id: str) -> None:
        """Record that the message was sent. Not a step: the version stays the same."""

    def mark_sent(self, run_id: str) -> PricedRun | Lost:
        """Record that a delayed run was sent, as a new version. LOST: it was recorded, or started, before."""

    def release(self, run_id: str) -> PricedRun | Lost:
        """Make a delayed run due now. LOST: it is not delayed, or does not wait any more."""

    def forget_sent(self, before: int) -> int:
        """Mark waiting runs that were sent before that instant as not sent: the queue that held their messages was
        lost. Not a step, as above. Returns the number of runs; O(queued runs)."""

    def get(self, run_id: str) -> PricedRun | None: ...

    def get_owned(self, run_id: str, tenant_id: str) -> PricedRun | None:
        """One query. Returns None for another tenant's run and for a malformed id, as for a missing run."""

    def find_by_key(self, tenant_id: str, idempotency_key: str) -> PricedRun | None: ...

    def inputs(self, run_id: str) -> dict[str, Any] | None: ...

    def scan(self, kind: Scan, limit: int) -> list[PricedRun]:
        """Rows that match now, oldest first, by an index: O(limit). An unreadable row is reported as an alarm and
        skipped."""

    def unsettled(self, tenant_id: str) -> list[PricedRun]:
        """The tenant's runs whose money is not closed: NONE, RESERVED or DISPUTED. O(runs that have not ended)."""

    def changed_since(self, updated_at: int, run_id: str, limit: int) -> list[PricedRun]:
        """Rows after that position, ordered by (updated_at, run_id): for the projection. Skips unreadable rows, like
        `scan`."""


class Leases(Protocol):
    def start(self, run_id: str, version: int, lease_token: str) -> PricedRun | Lost:
        """T4."""

    def heartbeat(self, run_id: str, version: int, lease_token: str) -> bool:
        """T5. Returns False if the lease is lost; it cannot be regained."""


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
        """T15. The intent stays the same."""

    def replace_intent(self, run_id: str, version: int, token: str, intent: Intent) -> PricedRun | Lost:
        """T19."""

    def commit(self, run_id: str, version: int, token: str, final: Final) -> PricedRun | Lost:
        """T7, T8, T10 or T14. Writes only the row: the caller writes money and journal in the same transaction."""

    def dispute(self, run_id: str, version: int, token: str) -> PricedRun | Lost:
        """T17."""

    def resolve(self, run_id: str, version: int, final: Final) -> PricedRun | Lost:
        """T18."""

    def expire(self, run_id: str, version: int) -> PricedRun | Lost:
        """T16: deletes inputs, pointer, error detail and key; the money facts stay."""


class MoneyTables(Protocol):
    """The budget in this database (joint mode): same codes and amounts as `ports/budget`, and it writes the journal
    too.

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
        """Add the amount of a journal correction to the balance; returns the new balance. Only for T18."""

    def force_close(self, run_id: str, charge_usd_micros: int) -> bool:
        """Close an open reservation without a journal entry or a change of balance. Only for T18."""

    def open_reservations(self, older_than_us: int, limit: int) -> list[OpenReservation]: ...


class Journal(Protocol):
    def post(self, txn: Txn) -> bool:
        """Write a fact. Returns False if one with this `op_key` exists; then nothing changed."""

    def find(self, op_key: str) -> JournalLine | None:
        """The fact with this key, of any tenant."""

    def confirm(self, op_keys: Sequence[str]) -> None:
        """Record that a budget stored elsewhere has applied these credits. Idempotent."""

    def is_confirmed(self, op_key: str) -> bool: ...

    def unconfirmed_credits(self, tenant_id: str) -> list[CreditNote]:
        """The tenant's credits without that record, oldest first. O(credits of the tenant)."""

    def balances(self, tenant_id: str) -> Balances:
        """Recomputed from the entries: O(entries of the tenant)."""

    def lines(self, tenant_id: str | None, before: int | None, limit: int) -> list[JournalLine]:
        """Newest first; `before` is a `txn_id`. By an index: O(limit)."""

    def spend(self, tenant_id: str | None, since_us: int, step_us: int) -> list[Spend]:
        """Charges from `since_us` on, by time step; steps without any are left out. O(closings since)."""

    def audit(self, joins_ledger: bool = True) -> AuditReport:
        """Run every check that is possible inside this database, on one snapshot: O(journal).

        `joins_ledger` is the budget's: a budget stored elsewhere is not in this database's budget tables.
        """


class BudgetModes(Protocol):
    """The mode of the ledger's budgets, and what changing it requires."""

    def get(self) -> BudgetMode | None:
        """Returns None if this ledger was never opened."""

    def begin(self, mode: BudgetMode) -> BudgetMode:
        """Set the mode unless one is set. Returns the mode in effect."""

    def set(self, mode: BudgetMode) -> None: ...

    def running(self, limit: int) -> list[str]:
        """Runs whose money is not closed."""

    def set_balance(self, tenant_id: str, balance_usd_micros: int) -> None:
        """Set the balance in this database's tables, replacing any previous one."""

    def add_closed_reservations(self, limit: int) -> int:
        """Add reservations of runs that ended while their money was elsewhere; returns the number added. 0: none is
        missing."""


class LedgerIdentity(Protocol):
    """The random id that distinguishes this ledger from every other (SAFE-12)."""

    def get(self) -> str | None:
        """Returns None if the ledger was created by an older version and no gateway of this version has used it yet."""

    def give(self, ledger_id: str) -> str:
        """Set the id unless the ledger has one. Returns the id in effect, which never changes."""


class Notes(Protocol):
    """Information that one process leaves for others to read: no money, and nothing that a decision depends on."""

    def get(self, name: str) -> str | None: ...

    def put(self, name: str, text: str) -> None:
        """Write a note, replacing the previous one of this name."""


class Rates(Protocol):
    def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        """Take one token from the bucket `get` or `post`, if there is one."""


class Uploads(Protocol):
    """Files that tenants upload. The row is created before the file and deleted after it, so no file is ever untracked.

    An expired upload (`expires_at`) stays expired: it is never revived, and may be removed at any time.
    """

    def reserve(self, ask: NewUpload, tenant_bytes_max: int) -> Upload | StorageFull:
        """Reserve room for a file that is about to be stored, for `PENDING_SECONDS`. Serialized per tenant, so that all
        files together never use more than `tenant_bytes_max`. Returns `StorageFull` if they would, and changes nothing.
        Costs as much as `used_bytes`.
        """

    def confirm(self, upload_id: str, tenant_id: str) -> Upload | None:
        """Record that the file is stored: it stays for the retention. If the tenant has stored the same bytes
        meanwhile, that upload is returned, and this one expires. Returns None if it is expired or abandoned.
        Idempotent.
        """

    def abandon(self, upload_id: str) -> None:
        """Record that the file will not be stored, so it uses no room. The row stays until it expires, since bytes may
        still arrive. No effect on a confirmed upload. Idempotent."""

    def find(self, tenant_id: str, sha256: str) -> Upload | None:
        """A stored file of these bytes that has more than half of its retention left."""

    def lose(self, upload_id: str) -> None:
        """Expire an upload whose file does not exist any more, in whatever state it is."""

    def used_bytes(self, tenant_id: str) -> int:
        """Bytes used by the tenant's files, including uploads in progress: each counts its size, but at least
        `ROOM_BYTES_MIN`.

        Reads one index row per file. The room holds at most its size divided by `ROOM_BYTES_MIN` of them (16,384 in 1
        GiB, a few ms), plus the uploads abandoned within the hour, which the rate limit bounds.
        """

    def expired(self, limit: int) -> list[Upload]:
        """Expired uploads, oldest first. By an index: O(limit)."""

    def defer(self, upload_id: str) -> None:
        """Move an expired upload that could not be removed behind all others that are expired now. No effect on one
        that is not expired."""

    def remove(self, upload_id: str) -> bool:
        """Delete the row of a file that was removed. Returns False if there is none, or if it is not expired."""


@dataclass(frozen=True)
class LedgerTx:
    """One transaction, in a thread. Its operations, grouped by their users."""

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
    identity: LedgerIdentity
    rates: Rates
    uploads: Uploads


class Ledger(Protocol):
    """An outage raises DependencyUnavailable: the operation may have happened; read back before deciding.

    While the ledger is not the one that the deployment uses, everything but `stored_id` raises OtherLedger.
    """

    async def transact(self, work: Callable[[LedgerTx], T]) -> T:
        """Everything `work` does, or nothing: an exception rolls back and is raised to the caller. Durable on return.

        `work` may be run more than once, from the beginning. Transactions of one process may share one sync to disk.
        """

    async def transact_softly(self, work: Callable[[LedgerTx], T]) -> T:
        """Like `transact`, for hints that a power failure may lose: does not wait for a sync to disk."""

    async def read(self, question: Callable[[LedgerTx], T]) -> T:
        """Read committed rows, all from one snapshot where the database supports that. Does not wait for writers."""

    async def read_long(self, question: Callable[[LedgerTx], T]) -> T:
        """Like `read`, for queries that may take a minute: an audit."""

    async def stored_id(self) -> str | None:
        """The id of the ledger that the address refers to now. None: it has none. Raises OtherLedger if that is not the
        ledger this process has opened: a file was deleted or replaced."""

    async def ping(self) -> None:
        """Check that the database responds to a query. Raises DependencyUnavailable."""

    async def probe(self) -> None:
        """Like `ping`, with a small write: a full disk still answers queries but rejects writes."""
