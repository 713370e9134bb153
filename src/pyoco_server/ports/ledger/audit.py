"""The audit: checks the invariants between journal, runs and budgets, and reports every violation (PRICED-60).

It is a single statement, so that it reads one consistent snapshot even where every statement has its own. It repairs
nothing.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, TextClause, text

from pyoco_server.core.priced.journal import CORRECTION, FUNDING, REVENUE
from pyoco_server.ports.ledger.port import AuditReport, Difference
from pyoco_server.ports.ledger.quick import Quick
from pyoco_server.ports.ledger.sums import sum_of, written_sum
from pyoco_server.ports.ledger.types import is_postgres

__all__ = ["audit"]


#: Common table expressions: the effect of each fact on each account, runs with their facts, tenants with their sums.
#: Each is computed once.
def _facts(*, on_postgres: bool) -> str:
    def total(amount: str) -> str:
        return sum_of(amount, on_postgres=on_postgres)

    held = "CASE WHEN money_state IN ('RESERVED', 'DISPUTED') THEN reservation_max_cost_usd_micros ELSE 0 END"
    charged = "CASE WHEN money_state = 'SETTLED' THEN actual_cost_usd_micros ELSE 0 END"
    return f"""
WITH txns AS MATERIALIZED (
    SELECT t.txn_id, t.op_key, t.kind, t.tenant_id, t.run_id,
        count(e.entry_id) AS legs,
        coalesce(sum(e.amount_usd_micros), 0) AS total,
        sum(CASE WHEN e.account = 'tenant:' || t.tenant_id || '\\:available' THEN e.amount_usd_micros ELSE 0 END)
            AS available,
        sum(CASE WHEN e.account = 'tenant:' || t.tenant_id || '\\:held' THEN e.amount_usd_micros ELSE 0 END) AS held,
        sum(CASE WHEN e.account = '{REVENUE}' THEN e.amount_usd_micros ELSE 0 END) AS revenue,
        sum(CASE WHEN e.account = '{FUNDING}' THEN e.amount_usd_micros ELSE 0 END) AS funding,
        sum(CASE WHEN e.account = '{CORRECTION}' THEN e.amount_usd_micros ELSE 0 END) AS correction
    FROM ledger_txns t LEFT JOIN ledger_entries e ON e.txn_id = t.txn_id
    GROUP BY t.txn_id, t.op_key, t.kind, t.tenant_id, t.run_id
), facts AS MATERIALIZED (
    SELECT run_id, tenant_id,
        sum(CASE WHEN kind = 'RESERVE' THEN 1 ELSE 0 END) AS reserves,
        sum(CASE WHEN kind = 'SETTLE' THEN 1 ELSE 0 END) AS settles,
        sum(CASE WHEN kind = 'REFUND' THEN 1 ELSE 0 END) AS refunds,
        sum(CASE WHEN kind = 'RESERVE' THEN held ELSE 0 END) AS held_first,
        sum(held) AS held_still,
        sum(revenue) AS revenue
    FROM txns WHERE run_id IS NOT NULL GROUP BY run_id, tenant_id
), sums AS MATERIALIZED (
    SELECT account, {total("amount_usd_micros")} AS total FROM ledger_entries GROUP BY account
), earned AS MATERIALIZED (
    SELECT tenant_id, {total("revenue")} AS total FROM txns GROUP BY tenant_id
), owed AS MATERIALIZED (
    SELECT tenant_id, {total(held)} AS held, {total(charged)} AS charged FROM runs GROUP BY tenant_id
), known AS MATERIALIZED (
    SELECT tenant_id FROM tenants UNION SELECT tenant_id FROM ledger_txns
), each_tenant AS MATERIALIZED (
    SELECT k.tenant_id,
        coalesce(a.total, 0) AS available, coalesce(h.total, 0) AS held, coalesce(n.total, 0) AS earned,
        coalesce(o.held, 0) AS held_by_runs, coalesce(o.charged, 0) AS charged_to_runs
    FROM known k
    LEFT JOIN sums a ON a.account = 'tenant:' || k.tenant_id || '\\:available'
    LEFT JOIN sums h ON h.account = 'tenant:' || k.tenant_id || '\\:held'
    LEFT JOIN earned n ON n.tenant_id = k.tenant_id
    LEFT JOIN owed o ON o.tenant_id = k.tenant_id
)
"""  # noqa: S608  (names of our own)


#: Columns: number of the check, tenant, run, description, expected and found value. Number 0 is no difference. A fact
#: must have exactly the number of entries (legs) of its kind, each on an account of its tenant or of the platform.
_EVERYWHERE: Final = """
SELECT 0 AS rule, tenant_id, CAST(NULL AS TEXT) AS run_id, CAST(NULL AS TEXT) AS what, 0 AS expected,
    available AS found
FROM each_tenant
UNION ALL
SELECT 1, tenant_id, CAST(run_id AS TEXT), 'the sum of ' || op_key, 0, total FROM txns WHERE total <> 0
UNION ALL
SELECT 1, tenant_id, CAST(run_id AS TEXT), 'the entries of ' || op_key || ' for a ' || kind, NULL, legs FROM txns
WHERE NOT CASE kind
    WHEN 'TOPUP' THEN legs = 2 AND available > 0 AND funding = -available
    WHEN 'RESERVE' THEN legs = 2 AND held > 0 AND available = -held AND op_key = 'reserve:' || CAST(run_id AS TEXT)
    WHEN 'REFUND' THEN legs = 2 AND held < 0 AND available = -held AND op_key = 'close:' || CAST(run_id AS TEXT)
    WHEN 'SETTLE' THEN legs = 1 + CASE WHEN revenue > 0 THEN 1 ELSE 0 END + CASE WHEN available > 0 THEN 1 ELSE 0 END
        AND held < 0 AND op_key = 'close:' || CAST(run_id AS TEXT)
    ELSE legs = 2 AND correction <> 0 AND correction = -(available + held) END
UNION ALL
SELECT 2, tenant_id, NULL, 'available money, which is never below nothing,', 0, available
FROM each_tenant WHERE available < 0
UNION ALL
SELECT 3, tenant_id, NULL, 'held money', held_by_runs, held FROM each_tenant WHERE held <> held_by_runs
UNION ALL
SELECT 4, tenant_id, NULL, 'revenue', charged_to_runs, earned FROM each_tenant WHERE earned <> charged_to_runs
UNION ALL
SELECT 5, r.tenant_id, CAST(r.run_id AS TEXT), 'journal facts of a run that is ' || r.money_state,
    CASE r.money_state WHEN 'NONE' THEN 0 WHEN 'RESERVED' THEN 1 WHEN 'DISPUTED' THEN 1 ELSE 2 END,
    coalesce(f.reserves + f.settles + f.refunds, 0)
FROM runs r LEFT JOIN facts f ON f.run_id = r.run_id AND f.tenant_id = r.tenant_id
WHERE NOT CASE r.money_state
    WHEN 'NONE' THEN f.run_id IS NULL
    WHEN 'SETTLED' THEN coalesce(f.reserves = 1 AND f.settles = 1 AND f.refunds = 0, FALSE)
    WHEN 'REFUNDED' THEN f.run_id IS NULL OR (f.reserves = 1 AND f.settles = 0 AND f.refunds = 1)
    ELSE coalesce(f.reserves = 1 AND f.settles = 0 AND f.refunds = 0, FALSE) END
UNION ALL
SELECT 5, r.tenant_id, CAST(r.run_id AS TEXT), 'reserved money', r.reservation_max_cost_usd_micros, f.held_first
FROM runs r JOIN facts f ON f.run_id = r.run_id AND f.tenant_id = r.tenant_id
WHERE f.reserves = 1 AND f.held_first <> r.reservation_max_cost_usd_micros
UNION ALL
SELECT 5, r.tenant_id, CAST(r.run_id AS TEXT), 'money still held for a closed run', 0, f.held_still
FROM runs r JOIN facts f ON f.run_id = r.run_id AND f.tenant_id = r.tenant_id
WHERE r.money_state IN ('SETTLED', 'REFUNDED') AND f.held_still <> 0
UNION ALL
SELECT 5, r.tenant_id, CAST(r.run_id AS TEXT), 'the charge', coalesce(r.actual_cost_usd_micros, 0), f.revenue
FROM runs r JOIN facts f ON f.run_id = r.run_id AND f.tenant_id = r.tenant_id
WHERE coalesce(r.actual_cost_usd_micros, 0) <> f.revenue
UNION ALL
SELECT 5, f.tenant_id, CAST(f.run_id AS TEXT), 'journal facts of a run that this tenant does not have', 0,
    f.reserves + f.settles + f.refunds
FROM facts f WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = f.run_id AND r.tenant_id = f.tenant_id)
"""

#: If the budget is in this database. A run that an operator resolved may have no matching reservation: that was the
#: dispute.
_JOINED: Final = """
UNION ALL
SELECT 2, t.tenant_id, NULL, 'the balance', t.available, b.balance_usd_micros
FROM each_tenant t LEFT JOIN budgets b ON b.tenant_id = t.tenant_id
WHERE t.available <> coalesce(b.balance_usd_micros, 0)
UNION ALL
SELECT 3, r.tenant_id, CAST(r.run_id AS TEXT), 'the open reservation', r.reservation_max_cost_usd_micros,
    s.reserved_usd_micros
FROM runs r LEFT JOIN reservations s ON s.run_id = r.run_id AND s.tenant_id = r.tenant_id AND s.state = 'OPEN'
WHERE r.money_state IN ('RESERVED', 'DISPUTED')
    AND coalesce(s.reserved_usd_micros, 0) <> r.reservation_max_cost_usd_micros
UNION ALL
SELECT 3, s.tenant_id, CAST(s.run_id AS TEXT), 'the open reservation of a run that holds no money', 0,
    s.reserved_usd_micros
FROM reservations s LEFT JOIN runs r ON r.run_id = s.run_id AND r.tenant_id = s.tenant_id
WHERE s.state = 'OPEN' AND coalesce(r.money_state, 'NONE') NOT IN ('RESERVED', 'DISPUTED')
UNION ALL
SELECT 5, r.tenant_id, CAST(r.run_id AS TEXT), 'the charge in the closed reservation', r.actual_cost_usd_micros,
    s.charge_usd_micros
FROM facts f JOIN runs r ON r.run_id = f.run_id AND r.tenant_id = f.tenant_id
LEFT JOIN reservations s ON s.run_id = r.run_id AND s.tenant_id = r.tenant_id
WHERE r.money_state IN ('SETTLED', 'REFUNDED') AND coalesce(r.finalize_actor, '') <> 'operator'
    AND (s.charge_usd_micros IS NULL OR s.charge_usd_micros <> r.actual_cost_usd_micros
        OR s.reserved_usd_micros <> r.reservation_max_cost_usd_micros)
"""


def _statement(*, on_postgres: bool, joins_ledger: bool) -> TextClause:
    return text(_facts(on_postgres=on_postgres) + _EVERYWHERE + (_JOINED if joins_ledger else ""))


#: By database, and by whether the budget is in it.
_AUDITS: Final = {
    (on_postgres, joins_ledger): _statement(on_postgres=on_postgres, joins_ledger=joins_ledger)
    for on_postgres in (False, True)
    for joins_ledger in (False, True)
}


def audit(connection: Connection | Quick, *, joins_ledger: bool) -> AuditReport:
    """Run the audit. O(journal + runs) in the database, O(tenants + differences) here."""
    available: dict[str, int] = {}
    differences: list[Difference] = []
    statement = _AUDITS[is_postgres(connection.dialect), joins_ledger]
    for rule, tenant_id, run_id, what, expected, found in connection.execute(statement):
        if rule == 0:
            available[tenant_id] = written_sum(found)
        else:
            detail = f"{what} is {_written(found)}" + (
                f" instead of {_written(expected)}" if expected is not None else ""
            )
            differences.append(Difference(rule, tenant_id, run_id, detail))
    differences.sort(key=lambda each: (each.check, each.tenant_id or "", each.run_id or "", each.detail))
    return AuditReport(len(available), tuple(differences), available)


def _written(amount: object) -> str:
    return "missing" if amount is None else str(written_sum(amount))
