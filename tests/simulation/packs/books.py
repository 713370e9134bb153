"""Reads what a commit has changed: rows of runs, facts of the journal, and the tables of money."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.priced.audit_note import AuditNote
from pyoco_server.core.states.priced import At, Money, Stage, Status
from pyoco_server.ports.ledger.memory import MemoryDatabase

__all__ = ["Books", "Fact", "Row"]

#: Notes which rows were written, so that a commit costs a look at those alone.
_WATCH = """
CREATE TABLE changed_runs (number INTEGER PRIMARY KEY, run_id TEXT NOT NULL);
CREATE TRIGGER watch_insert AFTER INSERT ON runs BEGIN INSERT INTO changed_runs (run_id) VALUES (NEW.run_id); END;
CREATE TRIGGER watch_update AFTER UPDATE ON runs BEGIN INSERT INTO changed_runs (run_id) VALUES (NEW.run_id); END;
CREATE TRIGGER watch_delete AFTER DELETE ON runs BEGIN INSERT INTO changed_runs (run_id) VALUES (OLD.run_id); END;
"""


@dataclass(frozen=True)
class Row:
    """A row of `runs`, by the names of its columns."""

    at: At
    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def intent(self) -> dict[str, Any] | None:
        text = self.values["finalize_intent"]
        return None if text is None else json.loads(text)

    @property
    def has_ended(self) -> bool:
        return self.at.stage is Stage.COMMITTED


@dataclass(frozen=True)
class Fact:
    """A transaction of the journal. `entries`: amounts by account."""

    op_key: str
    kind: str
    tenant_id: str
    run_id: str | None
    entries: dict[str, int]


class Books:
    def __init__(self, database: MemoryDatabase) -> None:
        self._connection = database.connect()
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript(_WATCH)
        self._connection.commit()
        self._change = self._txn = 0

    def close(self) -> None:
        self._connection.close()

    def changed_runs(self) -> list[str]:
        """Since the last call, in the order of their first changes."""
        found = self._all("SELECT number, run_id FROM changed_runs WHERE number > ? ORDER BY number", self._change)
        if found:
            self._change = found[-1]["number"]
        return list(dict.fromkeys(each["run_id"] for each in found))

    def row(self, run_id: str) -> Row | None:
        found = self._all("SELECT * FROM runs WHERE run_id = ?", run_id)
        if not found:
            return None
        values = dict(found[0])
        stage = values["finalize_stage"] or Stage.OPEN
        return Row(At(Status(values["status"]), Money(values["money_state"]), Stage(stage)), values)

    def new_facts(self) -> list[Fact]:
        """Since the last call."""
        txns = self._all("SELECT * FROM ledger_txns WHERE txn_id > ? ORDER BY txn_id", self._txn)
        if not txns:
            return []
        entries: dict[int, dict[str, int]] = defaultdict(dict)
        for each in self._all("SELECT * FROM ledger_entries WHERE txn_id > ? ORDER BY entry_id", self._txn):
            of_txn = entries[each["txn_id"]]
            of_txn[each["account"]] = of_txn.get(each["account"], 0) + each["amount_usd_micros"]
        self._txn = txns[-1]["txn_id"]
        return [
            Fact(each["op_key"], each["kind"], each["tenant_id"], each["run_id"], entries[each["txn_id"]])
            for each in txns
        ]

    def balances(self) -> dict[str, int]:
        """Joint mode."""
        return {each["tenant_id"]: each["balance_usd_micros"] for each in self._all("SELECT * FROM budgets")}

    def open_reservations(self) -> dict[str, int]:
        """Sums by tenant; joint mode."""
        sql = "SELECT tenant_id, sum(reserved_usd_micros) AS held FROM reservations WHERE state = 'OPEN' GROUP BY 1"
        return {each["tenant_id"]: each["held"] for each in self._all(sql)}

    def last_audit(self) -> AuditNote | None:
        found = self._all("SELECT value FROM ledger_settings WHERE name = 'note:last_audit'")
        return AuditNote.read(found[0]["value"]) if found else None

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()
