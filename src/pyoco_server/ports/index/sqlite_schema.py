"""The tables of the index, and the checks of its mark."""

from __future__ import annotations

import sqlite3

from pyoco_server.ports.index.search_words import MARKS
from pyoco_server.ports.sqlite.file import Layout

__all__ = ["LAYOUT", "mark_complete", "reset", "too_quiet"]

#: An expired run leaves a marker for a day. An index that was not fed for nearly that long may have missed one.
_QUIET_SECONDS_MAX = 20 * 3600

# `at`, `submitted` and `due` are instants as integers (see `sqlite_lines`). `tags`, `more` and `clock` are JSON, for
# display only. Every index of a filter has tenant and status before the list order. So any of these filters with a
# tenant and a status is one index scan, and without a status six of them, merged. The index of flows also contains
# the tag: two filters that match many runs each, but few together, are then combined without reading the rows.
# Keepers skip packs and programs: the index of statuses contains the kind, so that many waiting ones are not looked
# up one by one. It also contains what delayed runs wait for (`waits`): they have no job, so queues and the keepers of
# queues leave them out. `job_id`, `client_id` and `grp` belong to programs only, and so do their indexes (`grp`,
# because GROUP is an SQL keyword). Operators list a group across tenants: that list has an index without a tenant.
# `words`, `facets` and `doc` are for the search (see `sqlite_search_feed`); the full-text index stores no text itself.
# All indexes grow at their end: that fills their pages, and keeps the newest entries cached.
_SCHEMA = f"""
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, rev INTEGER NOT NULL, tenant_id TEXT NOT NULL, status TEXT NOT NULL, kind TEXT NOT NULL,
    flow_name TEXT NOT NULL, tag TEXT NOT NULL, sha256 TEXT, at INTEGER NOT NULL, submitted INTEGER NOT NULL,
    tags TEXT NOT NULL, more TEXT NOT NULL, job_id TEXT, client_id TEXT, grp TEXT,
    waits TEXT NOT NULL, due INTEGER, clock TEXT, rerun_of TEXT,
    words TEXT NOT NULL, facets TEXT NOT NULL, doc INTEGER
) WITHOUT ROWID;
CREATE INDEX runs_all ON runs (at, run_id);
CREATE INDEX runs_status ON runs (status, at, run_id, kind, waits);
CREATE INDEX runs_flow ON runs (tenant_id, flow_name, status, at, run_id, tag);
CREATE INDEX runs_tag ON runs (tenant_id, tag, status, at, run_id);
CREATE INDEX runs_tenant ON runs (tenant_id, status, at, run_id) WHERE tenant_id <> '';
CREATE INDEX runs_sha256 ON runs (tenant_id, sha256, status, at, run_id) WHERE sha256 IS NOT NULL;
CREATE INDEX runs_kind ON runs (tenant_id, kind, status, at, run_id) WHERE kind <> 'flow';
CREATE INDEX runs_job ON runs (tenant_id, job_id, status, at, run_id) WHERE job_id IS NOT NULL;
CREATE INDEX runs_client ON runs (tenant_id, client_id, status, at, run_id) WHERE client_id IS NOT NULL;
CREATE INDEX runs_group ON runs (tenant_id, grp, status, at, run_id) WHERE grp IS NOT NULL;
CREATE INDEX groups_all ON runs (grp, status, at, run_id) WHERE grp IS NOT NULL;
CREATE INDEX runs_waiting ON runs (tag, submitted, run_id, status, kind, waits)
    WHERE status = 'PENDING' AND waits = '' AND kind NOT IN ('exec', 'pack');
CREATE INDEX packs_waiting ON runs (kind, submitted, run_id, status, waits)
    WHERE status = 'PENDING' AND waits = '' AND kind = 'pack';
CREATE INDEX programs_waiting ON runs (grp, flow_name, client_id, tenant_id, submitted, run_id, status, kind, waits)
    WHERE status = 'PENDING' AND waits = '' AND kind = 'exec';
CREATE INDEX programs_oldest ON runs (grp, flow_name, submitted, status, kind, waits)
    WHERE status = 'PENDING' AND waits = '' AND kind = 'exec';
CREATE INDEX runs_delayed ON runs (due, run_id, kind, waits) WHERE waits <> '';
CREATE INDEX runs_waits ON runs (tenant_id, waits, status, at, run_id) WHERE waits <> '';
CREATE INDEX runs_repeats ON runs (rerun_of, submitted, run_id, tenant_id) WHERE rerun_of IS NOT NULL;
CREATE INDEX programs_ended ON runs (flow_name, at, status, kind)
    WHERE kind = 'exec' AND status IN ('CANCELLED', 'COMPLETED', 'FAILED');
CREATE INDEX programs_open ON runs (at, run_id, kind, status, waits)
    WHERE waits = '' AND kind = 'exec' AND status IN ('CANCELLING', 'PENDING', 'RUNNING');
CREATE INDEX runs_doc ON runs (doc, run_id) WHERE doc IS NOT NULL;
CREATE VIRTUAL TABLE search USING fts5 (text, content = '', columnsize = 0, tokenize = "ascii tokenchars '{MARKS}'");
CREATE TABLE words (word TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE labels (
    tenant_id TEXT NOT NULL, label TEXT NOT NULL, status TEXT NOT NULL, at INTEGER NOT NULL, run_id TEXT NOT NULL,
    PRIMARY KEY (tenant_id, label, status, at, run_id)
) WITHOUT ROWID;
CREATE TABLE moves (rev INTEGER PRIMARY KEY, run_id TEXT NOT NULL, old_rev INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE INDEX moves_at ON moves (at, run_id, old_rev);
CREATE TABLE counts (
    what TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (what, name)
) WITHOUT ROWID;
"""

LAYOUT = Layout(
    name="the index of runs",
    version=12,
    schema=_SCHEMA,
    tables=("runs", "labels", "moves", "counts", "words"),
    mark_columns=("floor INTEGER", "moves INTEGER NOT NULL DEFAULT 0", "applied_at REAL"),
)


def too_quiet(connection: sqlite3.Connection, now: float) -> str | None:
    """Return why an index that was last fed at the time of its mark can no longer be trusted. None: it can."""
    (applied_at,) = connection.execute("SELECT applied_at FROM mark").fetchone()
    if applied_at is None or abs(now - applied_at) <= _QUIET_SECONDS_MAX:
        return None
    return "it has not been fed for so long that runs may have expired unseen"


def mark_complete(connection: sqlite3.Connection) -> None:
    """From here on the log of moves contains every position a run had.

    Before, the store was being read for the first time.
    """
    connection.execute("UPDATE mark SET floor = revision WHERE floor IS NULL")


def reset(connection: sqlite3.Connection, epoch: str) -> None:
    for table in LAYOUT.tables:
        connection.execute(f"DELETE FROM {table}")  # noqa: S608  (a constant of this file)
    connection.execute("INSERT INTO search (search) VALUES ('delete-all')")
    connection.execute("UPDATE mark SET epoch = ?, revision = 0, floor = NULL, moves = 0, applied_at = NULL", (epoch,))
