"""Apply changes of runs to the index, in batches."""
# ruff: noqa: S608  (statements are built from constants in this file; user input is always bound)

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.run import PACK, Run
from pyoco_server.core.states import TERMINAL
from pyoco_server.ports.index.port import Mark
from pyoco_server.ports.index.sqlite_counts import TENANT_REVISIONS, TENANT_RUNS
from pyoco_server.ports.index.sqlite_lines import COLUMNS, Row, labels_of, money_of, rows_of, run_id_of, unknown_row
from pyoco_server.ports.index.sqlite_programs import bounded, counted, note_corrupt
from pyoco_server.ports.index.sqlite_search_feed import Documents
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["MOVES_MAX", "apply"]

#: The number of moves that are kept at least. A walk that began before the oldest of them may skip runs.
MOVES_MAX = 100_000

# A batch goes in as one JSON text, and is unpacked by one statement. Row by row, SQLite would release and retake the
# GIL each time, which would cost the event loop of a busy gateway a third of its time.


def _columns(count: int) -> str:
    return ", ".join(f"value ->> {number}" for number in range(count))


_UPDATE = "ON CONFLICT (run_id) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
_UPSERT_ALL = f"INSERT INTO runs SELECT {_columns(len(COLUMNS))} FROM json_each(?) WHERE true {_UPDATE}"
#: For values that SQLite's JSON cannot hold, such as a null character.
_UPSERT_ONE = f"INSERT INTO runs VALUES ({', '.join('?' * len(COLUMNS))}) {_UPDATE}"
_REMOVE = "DELETE FROM runs WHERE run_id IN (SELECT value FROM json_each(?))"
_KNOWN = """
SELECT json_group_array(json_array(run_id, rev, tenant_id, status, tag, at, tags,
    CASE kind WHEN 'pack' THEN coalesce(more ->> '$[5].money_state', '') END, kind, grp, flow_name,
    CASE kind WHEN 'exec' THEN json(more -> '$[6]') END, waits, words, facets, doc)) FROM runs
WHERE run_id IN (SELECT value FROM json_each(?))
"""
_MOVED = f"INSERT INTO moves SELECT {_columns(4)} FROM json_each(?)"
_LABEL_ALL = f"INSERT INTO labels SELECT {_columns(5)} FROM json_each(?)"
_LABEL_ONE = "INSERT INTO labels VALUES (?, ?, ?, ?, ?)"
_LABEL_KEY = ("tenant_id", "label", "status", "at", "run_id")
#: Joined with itself, so that both sides have the same types: otherwise only three columns of the key would be used.
_UNLABEL_ALL = f"""
DELETE FROM labels WHERE ({", ".join(_LABEL_KEY)}) IN (
    SELECT {", ".join(f"l.{name}" for name in _LABEL_KEY)} FROM json_each(?) CROSS JOIN labels AS l
    ON {" AND ".join(f"l.{name} = value ->> {number}" for number, name in enumerate(_LABEL_KEY))})
"""
_UNLABEL_ONE = f"DELETE FROM labels WHERE {' AND '.join(f'{name} = ?' for name in _LABEL_KEY)}"
_COUNT = """
INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (what, name) DO UPDATE SET number = number + excluded.number
"""
_COUNTED_OUT = "DELETE FROM counts WHERE what = ? AND name = ? AND number = 0"

_encode = msgspec.json.Encoder().encode
_ENDS = frozenset(state.value for state in TERMINAL)


@dataclass(frozen=True)
class _Effects:
    """What a batch changes in addition to the rows."""

    #: New revision, run id, previous revision, previous position.
    moves: list[tuple[int, str, int, int]] = field(default_factory=list)
    unlabelled: list[tuple[Any, ...]] = field(default_factory=list)
    labelled: list[tuple[Any, ...]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Counters that never decrease.
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)

    def leaves(self, before: list[Any]) -> None:
        run_id, revision, tenant_id, status, tag, at, tags_text, money, kind, group, flow_name = before[:11]
        self.counts["status", status] -= 1
        is_delayed = before[12] != ""
        self._version(tenant_id, -1, -revision)
        if is_delayed:
            self.counts["delayed", ""] -= 1
        elif money is not None:
            self.counts["pack", f"{status}/{money}"] -= 1
        elif kind == EXEC:
            self.counts["exec", f"{status}/{group}/{flow_name}"] -= 1
        elif status == "PENDING":
            self.counts["waiting", tag] -= 1
        for label in labels_of(tag, tags_text):
            self.unlabelled.append((tenant_id, label, status, at, run_id))

    def counts_of(self, run: Run, before: list[Any] | None) -> None:
        """Count what happened to a program's run, each event once. These counts stay."""
        was_terminal = before is not None and before[3] in _ENDS
        self.totals.update(counted(run, was_terminal, before[11] if before is not None else None))

    def comes(self, row: Row) -> None:
        run_id, revision, tenant_id, status, kind, flow_name, tag, _, at, _, tags_text, more, _, _, group, waits = row[
            :16
        ]
        self.counts["status", status] += 1
        self._version(tenant_id, 1, revision)
        if waits:
            self.counts["delayed", ""] += 1
        elif kind == PACK:
            self.counts["pack", f"{status}/{money_of(more)}"] += 1
        elif kind == EXEC:
            self.counts["exec", f"{status}/{group}/{flow_name}"] += 1
        elif status == "PENDING":
            self.counts["waiting", tag] += 1
        for label in labels_of(tag, tags_text):
            self.labelled.append((tenant_id, label, status, at, run_id))

    def _version(self, tenant_id: str, number: int, revisions: int) -> None:
        """Update the number of the tenant's runs, and the sum of their revisions.

        Every revision exceeds all earlier ones, so these two never return to earlier values unless the runs do (see
        `SqliteIndex.version`).
        """
        if tenant_id:
            self.counts[TENANT_RUNS, tenant_id] += number
            self.counts[TENANT_REVISIONS, tenant_id] += revisions


def apply(connection: sqlite3.Connection, items: Iterable[Stored | Removed], mark: Mark, now: float) -> None:
    """Write rows, labels, moves, counts and the mark, within the caller's transaction. O(log runs) per item."""
    # Everything up to the mark has been applied, so a late older change cannot restore a deleted run.
    epoch, done, floor = connection.execute("SELECT epoch, revision, floor FROM mark").fetchone()
    done = done if epoch == mark.epoch else 0
    newest = {run_id_of(item): item for item in sorted(items, key=lambda item: item.revision)}
    (text,) = connection.execute(_KNOWN, (json.dumps(list(newest)),)).fetchone()
    known = {before[0]: before for before in json.loads(text)}
    stored, removed, corrupt_by_run, effects = [], [], {}, _Effects()
    unknown: list[Row] = []
    for run_id, item in newest.items():
        before = known.get(run_id)
        if item.revision <= done or (before is not None and item.revision <= before[1]):
            continue
        corrupt_by_run[run_id] = isinstance(item, Removed) and item.is_corrupt
        if before is not None:
            effects.leaves(before)
            if floor is not None and (isinstance(item, Stored) or item.is_corrupt):
                effects.moves.append((item.revision, run_id, before[1], before[5]))
        if isinstance(item, Stored):
            stored.append(item)
            if item.run.program is not None:
                effects.counts_of(item.run, before)
        elif item.is_corrupt:
            unknown.append(unknown_row(item, before, now))
        else:
            removed.append(run_id)
    note_corrupt(connection, corrupt_by_run)
    for row in unknown:
        effects.comes(row)
    documents = Documents(connection, {run_id: before[13:] for run_id, before in known.items()}, removed)
    rows, text = rows_of(stored, lambda rows: documents.place([*rows, *unknown]))
    for row in rows:
        effects.comes(row)
    _write(connection, rows, text, removed, effects)
    connection.executemany(_UPSERT_ONE, unknown)
    documents.write()
    connection.execute(
        "UPDATE mark SET epoch = ?, revision = ?, moves = moves + ?, applied_at = ?",
        (mark.epoch, max(done, mark.revision), len(effects.moves), now),
    )
    _forget_moves(connection)


def _write(
    connection: sqlite3.Connection, rows: list[Row], text: str | None, removed: list[str], effects: _Effects
) -> None:
    """`text`: the rows as JSON, if it can hold them."""
    _write_each(connection, _UNLABEL_ALL, _UNLABEL_ONE, effects.unlabelled)
    if removed:
        connection.execute(_REMOVE, (json.dumps(removed),))
    if text is None:
        connection.executemany(_UPSERT_ONE, rows)
    elif rows:
        connection.execute(_UPSERT_ALL, (text,))
    _write_each(connection, _LABEL_ALL, _LABEL_ONE, effects.labelled)
    if effects.moves:
        connection.execute(_MOVED, (_encode(effects.moves).decode(),))
    if effects.totals:
        effects.counts.update(bounded(connection, effects.totals))
    changed = [(what, name, number) for (what, name), number in effects.counts.items() if number]
    connection.executemany(_COUNT, changed)
    connection.executemany(_COUNTED_OUT, [(what, name) for what, name, number in changed if number < 0])


def _write_each(connection: sqlite3.Connection, all_of: str, one: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if not rows:
        return
    text = _encode(rows).decode()
    if "\\u0000" in text:
        connection.executemany(one, rows)
    else:
        connection.execute(all_of, (text,))


def _forget_moves(connection: sqlite3.Connection) -> None:
    """Delete the oldest moves in one go once a quarter more than MOVES_MAX have piled up. Amortized O(1) per move."""
    (number,) = connection.execute("SELECT moves FROM mark").fetchone()
    if number <= MOVES_MAX * 5 // 4:
        return
    newest = f"SELECT rev FROM moves ORDER BY rev DESC LIMIT 1 OFFSET {MOVES_MAX}"
    (last_to_go,) = connection.execute(newest).fetchone()
    gone = connection.execute("DELETE FROM moves WHERE rev <= ?", (last_to_go,)).rowcount
    connection.execute("UPDATE mark SET moves = moves - ?, floor = max(floor, ?)", (gone, last_to_go))
