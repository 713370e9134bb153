"""The tables of the ledger, as its statements use them. Migrations create and change them.

Names are those of the contract (sections 6 and 9), the same on both databases: operators query them with their own
tools. In SQLite tables are STRICT: there, too, an amount must be an integer to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import CheckConstraint, Column, ForeignKey, Identity, Index, Integer, MetaData, Table, Text, text

from pyoco_server.core.priced.journal import Kind
from pyoco_server.core.priced.run import TenantStatus
from pyoco_server.core.states.priced import ENDS, Actor, Money, Stage, Status
from pyoco_server.ports.ledger.types import BigInt, InstantColumn, Json, Now, RunId, SmallInt

__all__ = [
    "RETAINED",
    "UNSENT",
    "budgets",
    "credit_confirmations",
    "ledger_entries",
    "ledger_settings",
    "ledger_txns",
    "metadata",
    "rate_buckets",
    "reservations",
    "run_inputs",
    "runs",
    "tenants",
    "uploads",
]

metadata = MetaData()


def _one_of(column: str, members: Iterable[StrEnum]) -> str:
    listed = ", ".join(f"'{member.value}'" for member in members)
    return f"{column} IN ({listed})"


_ENDED = _one_of("status", sorted(ENDS))

#: Conditions of two partial indexes: a statement that should use one must contain the condition literally. `coalesce`
#: keeps SQLite from choosing another index, one that begins with the status, and reading every row of it.
RETAINED = f"coalesce(status, '') IN ('{Status.COMPLETED}', '{Status.FAILED}')"
UNSENT = f"coalesce(status, '') = '{Status.QUEUED}' AND enqueued_at IS NULL"

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=TenantStatus.ACTIVE.value),
    Column("rate_limit_per_min", Integer),
    Column("created_at", InstantColumn, nullable=False, server_default=Now()),
    CheckConstraint(_one_of("status", TenantStatus), name="ck_tenants_status"),
    CheckConstraint("rate_limit_per_min > 0", name="ck_tenants_rate_limit"),
    sqlite_strict=True,
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id"), nullable=False),
    Column("pack_type", Text, nullable=False),
    Column("profile_version", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("money_state", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("payload_hash", Text, nullable=False),
    Column("version", BigInt, nullable=False, server_default=text("0")),
    Column("reservation_max_cost_usd_micros", BigInt, nullable=False),
    Column("actual_cost_usd_micros", BigInt),
    Column("minimum_fee_usd_micros", BigInt, nullable=False),
    Column("timebox_sec", Integer, nullable=False),
    Column("min_reliability_e4", Integer, nullable=False),
    Column("inline", SmallInt, nullable=False, server_default=text("0")),
    Column("artifacts_json", Json, nullable=False, server_default="{}"),
    Column("result_bucket", Text),
    Column("result_key", Text),
    Column("result_sha256", Text),
    Column("result_bytes", BigInt),
    Column("result_artifacts_json", Json),
    Column("tokens_consumed", BigInt, nullable=False, server_default=text("0")),
    Column("retention_until", InstantColumn, nullable=False),
    Column("lease_token", Text),
    Column("lease_expires_at", InstantColumn),
    Column("finalize_token", Text),
    Column("finalize_stage", Text),
    Column("finalize_claimed_at", InstantColumn),
    Column("finalize_actor", Text),
    Column("finalize_intent", Json),
    Column("enqueued_at", InstantColumn),
    Column("last_error_reason_code", Text),
    Column("last_error_detail", Text),
    Column("trace_id", Text),
    Column("api_key_id", Text),
    Column("started_at", InstantColumn),
    Column("created_at", InstantColumn, nullable=False, server_default=Now()),
    Column("updated_at", InstantColumn, nullable=False, server_default=Now()),
    Column("not_before", InstantColumn),
    Column("schedule_json", Json),
    CheckConstraint(_one_of("status", Status), name="ck_runs_status"),
    CheckConstraint(_one_of("money_state", Money), name="ck_runs_money_state"),
    CheckConstraint(_one_of("finalize_stage", (Stage.CLAIMED, Stage.COMMITTED)), name="ck_runs_finalize_stage"),
    CheckConstraint(_one_of("finalize_actor", Actor), name="ck_runs_finalize_actor"),
    CheckConstraint("reservation_max_cost_usd_micros > 0", name="ck_runs_reservation"),
    CheckConstraint("actual_cost_usd_micros >= 0", name="ck_runs_actual_cost"),
    CheckConstraint("minimum_fee_usd_micros >= 0", name="ck_runs_minimum_fee"),
    CheckConstraint("timebox_sec BETWEEN 1 AND 90", name="ck_runs_timebox"),
    CheckConstraint("min_reliability_e4 BETWEEN 0 AND 10000", name="ck_runs_min_reliability"),
    CheckConstraint("inline IN (0, 1)", name="ck_runs_inline"),
    CheckConstraint("tokens_consumed >= 0", name="ck_runs_tokens"),
    CheckConstraint("version >= 0", name="ck_runs_version"),
    # PRICED-8
    CheckConstraint("actual_cost_usd_micros <= reservation_max_cost_usd_micros", name="ck_runs_charge_within"),
    # PRICED-9
    CheckConstraint(
        f"NOT ({_ENDED}) OR {_one_of('money_state', (Money.SETTLED, Money.REFUNDED))}", name="ck_runs_ended_money"
    ),
    # PRICED-10
    CheckConstraint(
        f"({_ENDED}) = (coalesce(finalize_stage, '{Stage.OPEN}') = '{Stage.COMMITTED}')", name="ck_runs_ended_stage"
    ),
    # PRICED-14
    CheckConstraint(
        f"status <> '{Status.PROCESSING}' OR (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)",
        name="ck_runs_lease",
    ),
    # PRICED-30: NULLs count as distinct, in both databases.
    Index("uq_runs_idem", "tenant_id", "idempotency_key", unique=True),
    Index("idx_runs_tenant_created", "tenant_id", text("created_at DESC")),
    Index("idx_runs_status_lease", "status", "lease_expires_at"),
    Index("idx_runs_finalize", "finalize_stage", "finalize_claimed_at"),
    Index("idx_runs_status_created", "status", "created_at"),
    Index("idx_runs_updated", "updated_at", "run_id"),
    # Partial: tombstones of all years have passed their retention too, and must not slow down the scan.
    Index("idx_runs_retention", "retention_until", sqlite_where=text(RETAINED), postgresql_where=text(RETAINED)),
    # Partial: a long queue must not slow down the scan for the few runs that were never sent.
    Index("idx_runs_unsent", "created_at", sqlite_where=text(UNSENT), postgresql_where=text(UNSENT)),
    sqlite_strict=True,
)

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("run_id", RunId, ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("inputs_json", Json, nullable=False),
    Column("inputs_bytes", Integer, nullable=False),
    Column("inputs_sha256", Text, nullable=False),
    sqlite_strict=True,
)

budgets = Table(
    "budgets",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("balance_usd_micros", BigInt, nullable=False),
    Column("updated_at", InstantColumn, nullable=False),
    CheckConstraint("balance_usd_micros >= 0", name="ck_budgets_balance"),
    sqlite_strict=True,
)

#: No foreign key: a budget can be used without runs.
reservations = Table(
    "reservations",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("reserved_usd_micros", BigInt, nullable=False),
    Column("state", Text, nullable=False),
    Column("charge_usd_micros", BigInt),
    Column("refund_usd_micros", BigInt),
    Column("created_at", InstantColumn, nullable=False),
    Column("closed_at", InstantColumn),
    CheckConstraint("state IN ('OPEN', 'SETTLED', 'REFUNDED')", name="ck_reservations_state"),
    CheckConstraint("reserved_usd_micros > 0", name="ck_reservations_reserved"),
    CheckConstraint("charge_usd_micros >= 0 AND refund_usd_micros >= 0", name="ck_reservations_amounts"),
    CheckConstraint(
        "(state = 'OPEN') = (charge_usd_micros IS NULL) AND (state = 'OPEN') = (refund_usd_micros IS NULL)"
        " AND (state = 'OPEN') = (closed_at IS NULL)",
        name="ck_reservations_open",
    ),
    CheckConstraint(
        "state = 'OPEN' OR charge_usd_micros + refund_usd_micros = reserved_usd_micros", name="ck_reservations_closed"
    ),
    CheckConstraint("state <> 'REFUNDED' OR charge_usd_micros = 0", name="ck_reservations_refunded"),
    Index("idx_reservations_state_created", "state", "created_at"),
    sqlite_strict=True,
)

#: Append-only, like the next table: triggers of the migration refuse UPDATE and DELETE (PRICED-56).
ledger_txns = Table(
    "ledger_txns",
    metadata,
    Column("txn_id", BigInt, Identity(), primary_key=True),
    Column("op_key", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("run_id", RunId),
    Column("actor", Text, nullable=False),
    Column("finalize_token", Text),
    Column("trace_id", Text),
    Column("memo", Text),
    Column("created_at", InstantColumn, nullable=False),
    CheckConstraint(_one_of("kind", Kind), name="ck_ledger_txns_kind"),
    CheckConstraint(_one_of("actor", Actor), name="ck_ledger_txns_actor"),
    CheckConstraint(f"kind <> '{Kind.CORRECTION}' OR memo IS NOT NULL", name="ck_ledger_txns_memo"),
    CheckConstraint(
        f"NOT ({_one_of('kind', (Kind.RESERVE, Kind.SETTLE, Kind.REFUND))}) OR run_id IS NOT NULL",
        name="ck_ledger_txns_run",
    ),
    Index("uq_ledger_txns_op_key", "op_key", unique=True),
    Index("idx_ledger_txns_tenant", "tenant_id", "txn_id"),
    Index("idx_ledger_txns_created", "created_at"),
    sqlite_strict=True,
)

ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("entry_id", BigInt, Identity(), primary_key=True),
    Column("txn_id", BigInt, ForeignKey("ledger_txns.txn_id"), nullable=False),
    Column("account", Text, nullable=False),
    Column("amount_usd_micros", BigInt, nullable=False),
    CheckConstraint("amount_usd_micros <> 0", name="ck_ledger_entries_amount"),
    Index("idx_ledger_entries_account", "account", "entry_id"),
    Index("idx_ledger_entries_txn", "txn_id"),
    sqlite_strict=True,
)

#: Credits that a budget outside this database has applied (split mode): none of them is requested again, even if that
#: budget loses its record. Not a column of the journal, which never changes.
credit_confirmations = Table(
    "credit_confirmations",
    metadata,
    Column("op_key", Text, primary_key=True),
    Column("confirmed_at", InstantColumn, nullable=False),
    sqlite_strict=True,
)

#: Settings that all processes of one ledger must agree on.
ledger_settings = Table(
    "ledger_settings",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_strict=True,
)

rate_buckets = Table(
    "rate_buckets",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("bucket", Text, primary_key=True),
    #: Millionths of a token, so integers are precise enough.
    Column("tokens", BigInt, nullable=False),
    Column("updated_at", InstantColumn, nullable=False),
    sqlite_strict=True,
)

#: Files that tenants have uploaded for their packs, or are uploading.
uploads = Table(
    "uploads",
    metadata,
    Column("upload_id", RunId, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id"), nullable=False),
    Column("key", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    #: The size that counts for the tenant: 0 once the upload was abandoned.
    Column("size_bytes", BigInt, nullable=False),
    Column("content_type", Text, nullable=False),
    #: 1: its bytes are in the store, and the client may have been notified.
    Column("stored", SmallInt, nullable=False, server_default=text("0")),
    Column("created_at", InstantColumn, nullable=False),
    #: From this time on the row and the object may be removed; nothing relies on them.
    Column("expires_at", InstantColumn, nullable=False),
    CheckConstraint("size_bytes >= 0", name="ck_uploads_size"),
    CheckConstraint("stored IN (0, 1)", name="ck_uploads_stored"),
    #: Covers the query for the bytes that a tenant uses.
    Index("idx_uploads_tenant", "tenant_id", "expires_at", "size_bytes"),
    Index("idx_uploads_digest", "tenant_id", "sha256"),
    Index("idx_uploads_expires", "expires_at"),
    sqlite_strict=True,
)
