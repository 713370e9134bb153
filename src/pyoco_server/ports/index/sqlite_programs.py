"""Counters of program events: each event counts once and is never subtracted (GRID-171).

Unlike the counts of what is stored, they stay when a run expires. They belong to this index: if it is rebuilt, they
restart with what is stored then, like any counter that is reset.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pyoco_server.core.programs.names import flow_name_of, is_exec_name, is_group
from pyoco_server.core.programs.record import Program
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL
from pyoco_server.ports.index.port import OTHER, RUN_SECONDS_BOUNDS, ProgramTotals

__all__ = ["Known", "bounded", "counted", "note_corrupt", "recent_seconds", "seen", "totals"]

#: Limit of distinct programs and of distinct groups: clients choose the names, and each is kept for ever.
_NAMES_MAX = 1_000
_MICROS = 1_000_000
_SUM = "sum"

#: What has been counted of a run, as stored in its row: the newest attempt that was requeued, and whether a dead letter
#: was written.
Known = tuple[int, bool]

Counts = Counter[tuple[str, str]]


def seen(run: Run) -> Known:
    """Return what will have been counted of this run after this change."""
    program = run.program
    return max(_attempts(run), default=0), program is not None and program.dlq_done


def _attempts(run: Run) -> Iterable[int]:
    return (past["attempt"] for past in run.earlier_attempts if type(past.get("attempt")) is int)


def counted(run: Run, was_terminal: bool, before: Known | None) -> Counts:
    """Return what this version of a run adds to what was counted before. O(its attempts)."""
    program = run.program
    found: Counts = Counter()
    if program is None:
        return found
    group, exec_name = _names(program)
    last, had_dead_letter = before or (0, False)
    for past in run.earlier_attempts:
        attempt, why = past.get("attempt"), past.get("why")
        if type(attempt) is int and attempt > last and isinstance(why, str) and why.isidentifier():
            found["exec_retry", f"{group}/{exec_name}/{why}"] += 1
    if run.status in TERMINAL and not was_terminal:
        found["exec_end", f"{group}/{exec_name}/{run.status.value}"] += 1
        seconds = program.run_seconds
        if isinstance(seconds, float | int) and 0 <= seconds < 1e9:
            found["exec_seconds", f"{exec_name}/{bisect_left(RUN_SECONDS_BOUNDS, seconds)}"] += 1
            found["exec_seconds", f"{exec_name}/{_SUM}"] += round(seconds * _MICROS)
    if program.dlq_done and not had_dead_letter and isinstance(run.reason, str):
        found["exec_letter", f"{group}/{exec_name}/{run.reason}"] += 1
    return found


def _names(program: Program) -> tuple[str, str]:
    """Return group and program. Malformed names, which another program may have written, become OTHER."""
    group = program.group if is_group(program.group) else OTHER
    return group, program.exec_name if is_exec_name(program.exec_name) else OTHER


def bounded(connection: sqlite3.Connection, found: Mapping[tuple[str, str], int]) -> Counts:
    """Replace names beyond the limit by OTHER.

    Permanently, since counts must not move between names. O(known names).
    """
    execs, groups = _known_names(connection, "exec_name"), _known_names(connection, "exec_group")
    result: Counts = Counter()
    for (what, name), number in found.items():
        *names, last = name.split("/")
        admitted = [_admitted(connection, execs, "exec_name", names[-1]), last]
        if what != "exec_seconds":
            admitted.insert(0, _admitted(connection, groups, "exec_group", names[0]))
        result[what, "/".join(admitted)] += number
    return result


def _known_names(connection: sqlite3.Connection, what: str) -> set[str]:
    (text,) = connection.execute("SELECT json_group_array(name) FROM counts WHERE what = ?", (what,)).fetchone()
    return set(json.loads(text))


def _admitted(connection: sqlite3.Connection, known: set[str], what: str, name: str) -> str:
    if name in known or name == OTHER:
        return name
    if len(known) >= _NAMES_MAX:
        return OTHER
    known.add(name)
    connection.execute("INSERT INTO counts VALUES (?, ?, 1)", (what, name))
    return name


def note_corrupt(connection: sqlite3.Connection, corrupt_by_run: Mapping[str, bool]) -> None:
    """Record which records became unreadable, and which are readable again or deleted.

    Nearly free while there are none.
    """
    if not any(corrupt_by_run.values()) and not _known_names(connection, "corrupt"):
        return
    connection.executemany("INSERT OR IGNORE INTO counts VALUES ('corrupt', ?, 1)", _chosen(corrupt_by_run, True))
    connection.executemany("DELETE FROM counts WHERE what = 'corrupt' AND name = ?", _chosen(corrupt_by_run, False))


def _chosen(corrupt_by_run: Mapping[str, bool], which: bool) -> list[tuple[str]]:
    return [(run_id,) for run_id, is_corrupt in corrupt_by_run.items() if is_corrupt is which]


def totals(connection: sqlite3.Connection) -> ProgramTotals:
    query = "SELECT json_group_array(json_array(what, name, number)) FROM counts WHERE what IN (?, ?, ?, ?)"
    what = ("exec_end", "exec_retry", "exec_letter", "exec_seconds")
    (text,) = connection.execute(query, what).fetchone()
    tables: dict[str, dict[tuple[str, str, str], int]] = {name: {} for name in what[:3]}
    seconds: dict[str, tuple[list[int], float]] = {}
    for table, name, number in json.loads(text):
        first, *rest = name.split("/")
        if table != "exec_seconds":
            tables[table][first, rest[0], rest[1]] = number
            continue
        counts, total = seconds.get(first, ([0] * (len(RUN_SECONDS_BOUNDS) + 1), 0.0))
        if rest[0] == _SUM:
            total = number / _MICROS
        else:
            counts[int(rest[0])] = number
        seconds[first] = counts, total
    (corrupt,) = connection.execute("SELECT count(*) FROM counts WHERE what = 'corrupt'").fetchone()
    return ProgramTotals(
        ended=tables["exec_end"],
        retries=tables["exec_retry"],
        dead_letters=tables["exec_letter"],
        seconds={name: (tuple(counts), total) for name, (counts, total) in sorted(seconds.items())},
        corrupt=corrupt,
    )


def recent_seconds(connection: sqlite3.Connection, exec_name: str, limit: int) -> list[float]:
    query = """SELECT json_group_array(more ->> '$[5].run_seconds') FROM (
        SELECT more FROM runs INDEXED BY programs_ended
        WHERE kind = 'exec' AND status IN ('CANCELLED', 'COMPLETED', 'FAILED') AND flow_name = ?
        ORDER BY at DESC LIMIT ?)"""
    (text,) = connection.execute(query, (flow_name_of(exec_name), limit)).fetchone()
    found: list[Any] = json.loads(text)
    return [float(each) for each in found if isinstance(each, float | int)]
