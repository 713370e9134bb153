"""The tables of the index of dead letters, and the statements that feed them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import replace

from pyoco_server.core.dead_letter import encode_dead_letter
from pyoco_server.ports.dead_letters.port import DeadLetterChanges, StoredDeadLetter
from pyoco_server.ports.index.port import EVERYBODY, Mark
from pyoco_server.ports.sqlite.file import Layout, move_mark, read_mark

__all__ = ["LAYOUT", "apply", "forget", "reset"]

# `letter_id` is the rowid, so every index ends in it, in the order of the lists. An empty tenant or flow is unknown.
# Labels, including the routing tag, are stored twice: under their tenant, and under '' for queries over all tenants.
# Triggers maintain the counts, so that no insert or delete can miss them.
_SCHEMA = """
CREATE TABLE letters (
    letter_id INTEGER PRIMARY KEY, tenant_id TEXT NOT NULL, reason TEXT NOT NULL, flow_name TEXT NOT NULL,
    run_id TEXT, timestamp REAL NOT NULL, letter BLOB NOT NULL, client_id TEXT, grp TEXT
);
CREATE INDEX letters_run ON letters (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX letters_reason ON letters (reason);
CREATE INDEX letters_flow ON letters (flow_name);
CREATE INDEX letters_reason_flow ON letters (reason, flow_name);
CREATE INDEX letters_tenant ON letters (tenant_id);
CREATE INDEX letters_tenant_reason ON letters (tenant_id, reason);
CREATE INDEX letters_tenant_flow ON letters (tenant_id, flow_name);
CREATE INDEX letters_tenant_reason_flow ON letters (tenant_id, reason, flow_name);
CREATE INDEX letters_client ON letters (client_id) WHERE client_id IS NOT NULL;
CREATE INDEX letters_group ON letters (grp) WHERE grp IS NOT NULL;
CREATE INDEX letters_tenant_client ON letters (tenant_id, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX letters_tenant_group ON letters (tenant_id, grp) WHERE grp IS NOT NULL;
CREATE TABLE labels (
    tenant_id TEXT NOT NULL, label TEXT NOT NULL, letter_id INTEGER NOT NULL, PRIMARY KEY (tenant_id, label, letter_id)
) WITHOUT ROWID;
CREATE INDEX labels_letter ON labels (letter_id);
CREATE TABLE counts (
    tenant_id TEXT NOT NULL, reason TEXT NOT NULL, flow_name TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, reason, flow_name)
) WITHOUT ROWID;
CREATE TABLE forgotten (letter_id INTEGER PRIMARY KEY);
CREATE TRIGGER came AFTER INSERT ON letters BEGIN
    INSERT INTO counts VALUES (new.tenant_id, new.reason, new.flow_name, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER went AFTER DELETE ON letters BEGIN
    UPDATE counts SET count = count - 1
        WHERE tenant_id = old.tenant_id AND reason = old.reason AND flow_name = old.flow_name;
    DELETE FROM counts
        WHERE tenant_id = old.tenant_id AND reason = old.reason AND flow_name = old.flow_name AND count = 0;
    DELETE FROM labels WHERE letter_id = old.letter_id;
END;
"""

LAYOUT = Layout(
    name="the index of dead letters",
    version=2,
    schema=_SCHEMA,
    tables=("letters", "labels", "counts", "forgotten"),
)


def apply(connection: sqlite3.Connection, changes: DeadLetterChanges) -> None:
    """O((additions + deletions) * log letters)."""
    mark = read_mark(connection)
    done = mark.revision if mark.epoch == changes.epoch else 0
    fresh = [item for item in changes.items if item.letter_id > done]
    if fresh:
        forgotten = {letter_id for (letter_id,) in connection.execute("SELECT letter_id FROM forgotten")}
        _add(connection, [item for item in fresh if item.letter_id not in forgotten])
        done = max(item.letter_id for item in fresh)
    _remove(connection, changes.gone)
    connection.execute("DELETE FROM letters WHERE letter_id < ?", (changes.first_id,))
    # Anything reported from here on is newer than these.
    connection.execute("DELETE FROM forgotten WHERE letter_id <= ?", (done,))
    move_mark(connection, Mark(changes.epoch, done))


def forget(connection: sqlite3.Connection, letter_ids: Collection[int]) -> None:
    """Remove dead letters. Ids that the feed has not reported yet are remembered until it has passed them."""
    _remove(connection, letter_ids)
    done = read_mark(connection).revision
    early = [(letter_id,) for letter_id in letter_ids if letter_id > done]
    connection.executemany("INSERT OR IGNORE INTO forgotten VALUES (?)", early)


def reset(connection: sqlite3.Connection, epoch: str) -> None:
    connection.execute("DELETE FROM letters")
    connection.execute("DELETE FROM forgotten")
    move_mark(connection, Mark(epoch, 0))


def _add(connection: sqlite3.Connection, items: list[StoredDeadLetter]) -> None:
    connection.executemany("INSERT OR IGNORE INTO letters VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, items))
    labels = [row for item in items for row in _label_rows(item)]
    connection.executemany("INSERT OR IGNORE INTO labels VALUES (?, ?, ?)", labels)


def _remove(connection: sqlite3.Connection, letter_ids: Collection[int]) -> None:
    """One statement: with one per row, switching threads would stall the event loop."""
    if letter_ids:
        listed = json.dumps(list(letter_ids))
        connection.execute("DELETE FROM letters WHERE letter_id IN (SELECT value FROM json_each(?))", (listed,))


def _row(item: StoredDeadLetter) -> tuple[object, ...]:
    dead_letter = item.dead_letter
    names = (dead_letter.tenant_id or "", dead_letter.reason, dead_letter.flow_name or "", dead_letter.run_id)
    shown = encode_dead_letter(replace(dead_letter, job=None))  # lists do not show the job, and it may be large
    return (item.letter_id, *names, dead_letter.timestamp, shown, dead_letter.client_id, dead_letter.group)


def _label_rows(item: StoredDeadLetter) -> list[tuple[str, str, int]]:
    dead_letter = item.dead_letter
    tenants = {EVERYBODY, dead_letter.tenant_id or EVERYBODY}
    labels = {dead_letter.tag, *(dead_letter.tags or ())}
    return [(tenant, label, item.letter_id) for tenant in tenants for label in labels]
