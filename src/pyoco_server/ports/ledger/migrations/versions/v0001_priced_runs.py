"""Tenants, priced runs, budgets and the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyoco_server.ports.ledger.types import BigInt, InstantColumn, Json, Now, RunId, SmallInt

__all__ = ["branch_labels", "depends_on", "down_revision", "downgrade", "revision", "upgrade"]

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_JOURNAL = ("ledger_txns", "ledger_entries")
_REFUSAL = "the journal is append-only"


def upgrade() -> None:
    _make_tenants()
    _make_runs()
    _make_budgets()
    _make_journal()
    _make_credit_confirmations()
    _make_ledger_settings()
    _make_rate_buckets()
    _refuse_changes_of_the_journal()


def downgrade() -> None:
    for table in ("rate_buckets", "ledger_settings", "credit_confirmations", "ledger_entries", "ledger_txns"):
        op.drop_table(table)
    for table in ("reservations", "budgets", "run_inputs", "runs", "tenants"):
        op.drop_table(table)
    if _on_postgres():
        op.execute("DROP FUNCTION refuse_journal_change()")


def _on_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _table(name: str, *parts: sa.schema.SchemaItem) -> None:
    # STRICT: in SQLite, too, an amount must be an integer to be stored.
    op.create_table(name, *parts, sqlite_strict=True)


def _check(name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(rule, name=name)


def _make_tenants() -> None:
    _table(
        "tenants",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("display_name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="ACTIVE"),
        sa.Column("rate_limit_per_min", sa.Integer),
        sa.Column("created_at", InstantColumn, nullable=False, server_default=Now()),
        _check("ck_tenants_status", "status IN ('ACTIVE', 'SUSPENDED')"),
        _check("ck_tenants_rate_limit", "rate_limit_per_min > 0"),
    )


def _make_runs() -> None:
    _table(
        "runs",
        sa.Column("run_id", RunId, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.tenant_id"), nullable=False),
        sa.Column("pack_type", sa.Text, nullable=False),
        sa.Column("profile_version", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("money_state", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("payload_hash", sa.Text, nullable=False),
        sa.Column("version", BigInt, nullable=False, server_default=sa.text("0")),
        sa.Column("reservation_max_cost_usd_micros", BigInt, nullable=False),
        sa.Column("actual_cost_usd_micros", BigInt),
        sa.Column("minimum_fee_usd_micros", BigInt, nullable=False),
        sa.Column("timebox_sec", sa.Integer, nullable=False),
        sa.Column("min_reliability_e4", sa.Integer, nullable=False),
        sa.Column("inline", SmallInt, nullable=False, server_default=sa.text("0")),
        sa.Column("artifacts_json", Json, nullable=False, server_default="{}"),
        sa.Column("result_bucket", sa.Text),
        sa.Column("result_key", sa.Text),
        sa.Column("result_sha256", sa.Text),
        sa.Column("result_bytes", BigInt),
        sa.Column("result_artifacts_json", Json),
        sa.Column("tokens_consumed", BigInt, nullable=False, server_default=sa.text("0")),
        sa.Column("retention_until", InstantColumn, nullable=False),
        sa.Column("lease_token", sa.Text),
        sa.Column("lease_expires_at", InstantColumn),
        sa.Column("finalize_token", sa.Text),
        sa.Column("finalize_stage", sa.Text),
        sa.Column("finalize_claimed_at", InstantColumn),
        sa.Column("finalize_actor", sa.Text),
        sa.Column("finalize_intent", Json),
        sa.Column("enqueued_at", InstantColumn),
        sa.Column("last_error_reason_code", sa.Text),
        sa.Column("last_error_detail", sa.Text),
        sa.Column("trace_id", sa.Text),
        sa.Column("api_key_id", sa.Text),
        sa.Column("started_at", InstantColumn),
        sa.Column("created_at", InstantColumn, nullable=False, server_default=Now()),
        sa.Column("updated_at", InstantColumn, nullable=False, server_default=Now()),
        *_rules_of_runs(),
    )
    _index_runs()
    _table(
        "run_inputs",
        sa.Column("run_id", RunId, sa.ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("inputs_json", Json, nullable=False),
        sa.Column("inputs_bytes", sa.Integer, nullable=False),
        sa.Column("inputs_sha256", sa.Text, nullable=False),
    )


def _rules_of_runs() -> list[sa.CheckConstraint]:
    actors = "'api', 'worker', 'reaper', 'sweeper', 'reconcile', 'operator'"
    ended = "status IN ('COMPLETED', 'EXPIRED', 'FAILED')"
    return [
        _check("ck_runs_status", "status IN ('QUEUED', 'PROCESSING', 'COMPLETED', 'FAILED', 'EXPIRED')"),
        _check("ck_runs_money_state", "money_state IN ('NONE', 'RESERVED', 'SETTLED', 'REFUNDED', 'DISPUTED')"),
        _check("ck_runs_finalize_stage", "finalize_stage IN ('CLAIMED', 'COMMITTED')"),
        _check("ck_runs_finalize_actor", f"finalize_actor IN ({actors})"),
        _check("ck_runs_reservation", "reservation_max_cost_usd_micros > 0"),
        _check("ck_runs_actual_cost", "actual_cost_usd_micros >= 0"),
        _check("ck_runs_minimum_fee", "minimum_fee_usd_micros >= 0"),
        _check("ck_runs_timebox", "timebox_sec BETWEEN 1 AND 90"),
        _check("ck_runs_min_reliability", "min_reliability_e4 BETWEEN 0 AND 10000"),
        _check("ck_runs_inline", "inline IN (0, 1)"),
        _check("ck_runs_tokens", "tokens_consumed >= 0"),
        _check("ck_runs_version", "version >= 0"),
        _check("ck_runs_charge_within", "actual_cost_usd_micros <= reservation_max_cost_usd_micros"),  # PRICED-8
        _check("ck_runs_ended_money", f"NOT ({ended}) OR money_state IN ('SETTLED', 'REFUNDED')"),  # PRICED-9
        _check("ck_runs_ended_stage", f"({ended}) = (coalesce(finalize_stage, 'OPEN') = 'COMMITTED')"),  # PRICED-10
        _check(  # PRICED-14
            "ck_runs_lease",
            "status <> 'PROCESSING' OR (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)",
        ),
    ]


def _index_runs() -> None:
    op.create_index("uq_runs_idem", "runs", ["tenant_id", "idempotency_key"], unique=True)
    op.create_index("idx_runs_tenant_created", "runs", ["tenant_id", sa.text("created_at DESC")])
    op.create_index("idx_runs_status_lease", "runs", ["status", "lease_expires_at"])
    op.create_index("idx_runs_finalize", "runs", ["finalize_stage", "finalize_claimed_at"])
    op.create_index("idx_runs_status_created", "runs", ["status", "created_at"])
    op.create_index("idx_runs_updated", "runs", ["updated_at", "run_id"])
    for name, column, rows in (
        ("idx_runs_retention", "retention_until", "coalesce(status, '') IN ('COMPLETED', 'FAILED')"),
        ("idx_runs_unsent", "created_at", "coalesce(status, '') = 'QUEUED' AND enqueued_at IS NULL"),
    ):
        op.create_index(name, "runs", [column], sqlite_where=sa.text(rows), postgresql_where=sa.text(rows))


def _make_budgets() -> None:
    _table(
        "budgets",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.tenant_id"), primary_key=True),
        sa.Column("balance_usd_micros", BigInt, nullable=False),
        sa.Column("updated_at", InstantColumn, nullable=False),
        _check("ck_budgets_balance", "balance_usd_micros >= 0"),
    )
    _table(
        "reservations",
        sa.Column("run_id", RunId, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("reserved_usd_micros", BigInt, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("charge_usd_micros", BigInt),
        sa.Column("refund_usd_micros", BigInt),
        sa.Column("created_at", InstantColumn, nullable=False),
        sa.Column("closed_at", InstantColumn),
        _check("ck_reservations_state", "state IN ('OPEN', 'SETTLED', 'REFUNDED')"),
        _check("ck_reservations_reserved", "reserved_usd_micros > 0"),
        _check("ck_reservations_amounts", "charge_usd_micros >= 0 AND refund_usd_micros >= 0"),
        _check(
            "ck_reservations_open",
            "(state = 'OPEN') = (charge_usd_micros IS NULL) AND (state = 'OPEN') = (refund_usd_micros IS NULL)"
            " AND (state = 'OPEN') = (closed_at IS NULL)",
        ),
        _check(
            "ck_reservations_closed", "state = 'OPEN' OR charge_usd_micros + refund_usd_micros = reserved_usd_micros"
        ),
        _check("ck_reservations_refunded", "state <> 'REFUNDED' OR charge_usd_micros = 0"),
    )
    op.create_index("idx_reservations_state_created", "reservations", ["state", "created_at"])


def _make_journal() -> None:
    actors = "'api', 'worker', 'reaper', 'sweeper', 'reconcile', 'operator'"
    _table(
        "ledger_txns",
        sa.Column("txn_id", BigInt, sa.Identity(), primary_key=True),
        sa.Column("op_key", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("run_id", RunId),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("finalize_token", sa.Text),
        sa.Column("trace_id", sa.Text),
        sa.Column("memo", sa.Text),
        sa.Column("created_at", InstantColumn, nullable=False),
        _check("ck_ledger_txns_kind", "kind IN ('TOPUP', 'RESERVE', 'SETTLE', 'REFUND', 'CORRECTION')"),
        _check("ck_ledger_txns_actor", f"actor IN ({actors})"),
        _check("ck_ledger_txns_memo", "kind <> 'CORRECTION' OR memo IS NOT NULL"),
        _check("ck_ledger_txns_run", "NOT (kind IN ('RESERVE', 'SETTLE', 'REFUND')) OR run_id IS NOT NULL"),
    )
    op.create_index("uq_ledger_txns_op_key", "ledger_txns", ["op_key"], unique=True)
    op.create_index("idx_ledger_txns_tenant", "ledger_txns", ["tenant_id", "txn_id"])
    op.create_index("idx_ledger_txns_created", "ledger_txns", ["created_at"])
    _table(
        "ledger_entries",
        sa.Column("entry_id", BigInt, sa.Identity(), primary_key=True),
        sa.Column("txn_id", BigInt, sa.ForeignKey("ledger_txns.txn_id"), nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("amount_usd_micros", BigInt, nullable=False),
        _check("ck_ledger_entries_amount", "amount_usd_micros <> 0"),
    )
    op.create_index("idx_ledger_entries_account", "ledger_entries", ["account", "entry_id"])
    op.create_index("idx_ledger_entries_txn", "ledger_entries", ["txn_id"])


def _make_credit_confirmations() -> None:
    _table(
        "credit_confirmations",
        sa.Column("op_key", sa.Text, primary_key=True),
        sa.Column("confirmed_at", InstantColumn, nullable=False),
    )


def _make_ledger_settings() -> None:
    _table(
        "ledger_settings",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _make_rate_buckets() -> None:
    _table(
        "rate_buckets",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("bucket", sa.Text, primary_key=True),
        sa.Column("tokens", BigInt, nullable=False),
        sa.Column("updated_at", InstantColumn, nullable=False),
    )


def _refuse_changes_of_the_journal() -> None:
    """PRICED-56: not even the owner of the tables may change the history of money."""
    if _on_postgres():
        op.execute(
            "CREATE FUNCTION refuse_journal_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
        )
    for table in _JOURNAL:
        if _on_postgres():
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_journal_change()"
            )
            continue
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
