"""Counts that are maintained with each change, and the queries on waiting and unfinished runs."""
# ruff: noqa: S608  (statements are built from constants in this file; user input is always bound)

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyoco_server.core.programs.names import exec_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.index.port import (
    EVERYBODY,
    Ahead,
    Counts,
    DelayedRun,
    ProgramCounts,
    RunInProgress,
    Summary,
    Waiting,
)
from pyoco_server.ports.index.sqlite_lines import LINE, instant_of, number_of, read_lines

__all__ = [
    "TENANT_REVISIONS",
    "TENANT_RUNS",
    "ahead",
    "counts",
    "delayed",
    "held",
    "open_programs",
    "packs_ahead",
    "programs",
    "programs_ahead",
    "quiet",
    "unfinished",
    "version_of_tenant",
]

#: In `counts`, by tenant: the number of runs, and the sum of their revisions.
TENANT_RUNS, TENANT_REVISIONS = "tenant", "tenant_revisions"

_TAGS_MAX = 1000
#: In the order in which the index of open programs lists them: otherwise SQLite does not use it.
_OPEN = sorted(state.value for state in RunState if state not in TERMINAL)

_COUNTS = f"""
SELECT (SELECT json_group_object(name, number) FROM counts WHERE what = 'status'), (
    SELECT json_group_array(json_array(tag, number, (
        SELECT submitted FROM runs INDEXED BY runs_waiting
        WHERE status = 'PENDING' AND waits = '' AND kind NOT IN ('exec', 'pack') AND runs.tag = longest.tag
        ORDER BY submitted LIMIT 1)))
    FROM (SELECT name AS tag, number FROM counts WHERE what = 'waiting'
          ORDER BY number DESC, name LIMIT {_TAGS_MAX}) AS longest),
    (SELECT json_group_object(name, number) FROM counts WHERE what = 'pack'),
    (SELECT submitted FROM runs INDEXED BY packs_waiting WHERE status = 'PENDING' AND waits = '' AND kind = 'pack'
     ORDER BY submitted LIMIT 1)
"""

_EARLIER = """
runs INDEXED BY runs_waiting
WHERE status = 'PENDING' AND waits = '' AND kind NOT IN ('exec', 'pack') AND tag = :tag
    AND (submitted, run_id) < (:submitted, :run_id)
"""
_EARLIER_PACKS = """
runs INDEXED BY packs_waiting
WHERE status = 'PENDING' AND waits = '' AND kind = 'pack' AND (submitted, run_id) < (:submitted, :run_id)
"""
_EARLIER_JOBS = """
runs INDEXED BY programs_waiting
WHERE status = 'PENDING' AND waits = '' AND kind = 'exec' AND grp = :grp AND flow_name = :flow
    AND client_id = :client_id AND tenant_id = :tenant_id AND (submitted, run_id) < (:submitted, :run_id)
"""


def _ahead_in(earlier: str) -> str:
    return f"""
    SELECT (SELECT count(*) FROM (SELECT 1 FROM {earlier} LIMIT :limit)), (
        SELECT {LINE} FROM (SELECT submitted AS at, run_id FROM {earlier} ORDER BY submitted, run_id LIMIT 1) AS k
        CROSS JOIN runs AS r USING (run_id)), (SELECT tenant_id FROM {earlier} ORDER BY submitted, run_id LIMIT 1)
    """


_AHEAD, _PACKS_AHEAD, _JOBS_AHEAD = map(_ahead_in, (_EARLIER, _EARLIER_PACKS, _EARLIER_JOBS))


def version_of_tenant(connection: sqlite3.Connection, tenant_id: str) -> str:
    (epoch,) = connection.execute("SELECT epoch FROM mark").fetchone()
    query = "SELECT what, number FROM counts WHERE what IN (?, ?) AND name = ?"
    found = dict(connection.execute(query, (TENANT_RUNS, TENANT_REVISIONS, tenant_id)).fetchall())
    return f"{epoch}:{found.get(TENANT_RUNS, 0)}:{found.get(TENANT_REVISIONS, 0)}"


def counts(connection: sqlite3.Connection) -> Counts:
    by_status, waiting, packs, oldest_pack = connection.execute(_COUNTS).fetchone()
    return Counts(
        by_status=json.loads(by_status),
        waiting={tag: Waiting(number, instant_of(oldest)) for tag, number, oldest in json.loads(waiting)},
        packs=(by_state := {_pack_state(name): number for name, number in json.loads(packs).items()}),
        packs_waiting=None
        if oldest_pack is None
        else Waiting(
            sum(number for (status, _), number in by_state.items() if status == RunState.PENDING),
            instant_of(oldest_pack),
        ),
    )


#: Unfinished jobs as counted by the feed, and the submission time of the oldest PENDING one.
_PROGRAMS = f"""
SELECT json_group_array(json_array(name, number, CASE WHEN name GLOB 'PENDING/*' THEN (
    SELECT submitted FROM runs INDEXED BY programs_oldest
    WHERE status = 'PENDING' AND waits = '' AND kind = 'exec' AND grp = substr(name, 9, instr(substr(name, 9), '/') - 1)
        AND flow_name = substr(name, 9 + instr(substr(name, 9), '/')) ORDER BY submitted LIMIT 1) END))
FROM (SELECT name, number FROM counts WHERE what = 'exec' AND (name GLOB 'PENDING/*' OR name GLOB 'RUNNING/*'
      OR name GLOB 'CANCELLING/*') ORDER BY name LIMIT {3 * _TAGS_MAX})
"""


def programs(connection: sqlite3.Connection) -> list[ProgramCounts]:
    (text,) = connection.execute(_PROGRAMS).fetchone()
    found: dict[tuple[str, str], ProgramCounts] = {}
    for name, number, oldest in json.loads(text):
        status, _, rest = name.partition("/")
        group, _, flow_name = rest.partition("/")
        exec_name = exec_of(flow_name) or flow_name
        known = found.get((group, exec_name), ProgramCounts(group, exec_name, 0, None, 0))
        if status == RunState.PENDING:
            known = replace(known, queued=number, oldest_at=None if oldest is None else instant_of(oldest))
        else:
            known = replace(known, inflight=known.inflight + number)
        found[group, exec_name] = known
    return [found[key] for key in sorted(found)][:_TAGS_MAX]


def _pack_state(name: str) -> tuple[str, str]:
    """Split a name as composed by the feed."""
    status, _, money = name.partition("/")
    return status, money


def ahead(connection: sqlite3.Connection, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
    tag = tag.encode("utf-8", "replace").decode()  # a foreign record may contain a lone surrogate
    place = {"tag": tag, "submitted": number_of(submitted_at), "run_id": run_id, "limit": limit}
    return _ahead_of(connection.execute(_AHEAD, place).fetchone())


def packs_ahead(connection: sqlite3.Connection, submitted_at: float, run_id: str, limit: int) -> Ahead:
    place = {"submitted": number_of(submitted_at), "run_id": run_id, "limit": limit}
    return _ahead_of(connection.execute(_PACKS_AHEAD, place).fetchone())


def programs_ahead(connection: sqlite3.Connection, run: Run, limit: int) -> Ahead:
    if run.program is None:
        return Ahead(0, None)
    client_queue = {"grp": run.program.group, "flow": run.flow_name, "client_id": run.program.client_id}
    client_queue["tenant_id"] = run.tenant_id or ""
    place = client_queue | {"submitted": number_of(run.submitted_at), "run_id": run.run_id, "limit": limit}
    return _ahead_of(connection.execute(_JOBS_AHEAD, place).fetchone())


def _ahead_of(found: tuple[int, str | None, str | None]) -> Ahead:
    count, first, tenant_id = found
    return Ahead(count, next((line for _, line in read_lines(first)), None), tenant_id or None)


def unfinished(connection: sqlite3.Connection, after: float, before: float, limit: int) -> list[Summary]:
    """One short index scan per non-terminal state, merged."""
    each = """SELECT at, run_id FROM runs INDEXED BY runs_status
        WHERE status = '{}' AND at >= :after AND at < :before AND kind NOT IN ('exec', 'pack') AND waits = ''"""
    walks = " UNION ALL ".join(each.format(state) for state in _OPEN)
    return _oldest(connection, walks, after, before, limit)


def open_programs(connection: sqlite3.Connection, after: float, before: float, limit: int) -> list[Summary]:
    """One scan of an index that contains nothing else."""
    walk = f"""SELECT at, run_id FROM runs INDEXED BY programs_open
        WHERE waits = '' AND kind = 'exec' AND status IN ({", ".join(f"'{state}'" for state in _OPEN)})
        AND at >= :after AND at < :before"""
    return _oldest(connection, walk, after, before, limit)


def _oldest(connection: sqlite3.Connection, walks: str, after: float, before: float, limit: int) -> list[Summary]:
    query = f"""SELECT group_concat({LINE}) FROM ({walks} ORDER BY at, run_id LIMIT :limit) AS k
        CROSS JOIN runs AS r USING (run_id)"""
    values = {"after": number_of(after), "before": number_of(before), "limit": limit}
    (text,) = connection.execute(query, values).fetchone()
    return [line for _, line in read_lines(text)]


def delayed(connection: sqlite3.Connection, after: DelayedRun | None, before: float, limit: int) -> list[DelayedRun]:
    """One scan of an index that contains nothing else."""
    query = """SELECT run_id, kind, due FROM runs INDEXED BY runs_delayed
        WHERE waits <> '' AND (due, run_id) > (:after, :run_id) AND due < :before ORDER BY due, run_id LIMIT :limit"""
    place = {"after": -1, "run_id": ""} if after is None else {"after": number_of(after.due_at), "run_id": after.run_id}
    rows = connection.execute(query, place | {"before": number_of(before), "limit": limit})
    return [DelayedRun(run_id, kind, instant_of(due)) for run_id, kind, due in rows]


def repeats(connection: sqlite3.Connection, run_id: str, tenant_id: str, limit: int) -> list[str]:
    """One scan of an index that contains nothing else."""
    query = """SELECT run_id FROM runs INDEXED BY runs_repeats WHERE rerun_of = :run_id AND rerun_of IS NOT NULL
        AND :tenant_id IN (tenant_id, :everybody) ORDER BY submitted DESC, run_id DESC LIMIT :limit"""
    values = {"run_id": run_id, "tenant_id": tenant_id, "everybody": EVERYBODY, "limit": limit}
    return [found for (found,) in connection.execute(query, values)]


#: The columns of `runs` that make a RunInProgress.
_HELD = "run_id, more ->> 3, tenant_id, tag, at"


def _held_of(rows: Iterable[tuple[str, str | None, str, str, int]]) -> list[RunInProgress]:
    return [
        RunInProgress(run_id, worker_id, tenant_id or None, tag, instant_of(at))
        for run_id, worker_id, tenant_id, tag, at in rows
    ]


def quiet(connection: sqlite3.Connection, tenant_id: str, before: float, limit: int) -> list[RunInProgress]:
    """One scan of the index in this order, for one tenant or for all."""
    source = "INDEXED BY runs_status WHERE"
    if tenant_id != EVERYBODY:
        source = "INDEXED BY runs_tenant WHERE tenant_id = :tenant_id AND tenant_id <> '' AND"
    query = f"""SELECT {_HELD} FROM runs {source} status = '{RunState.RUNNING.value}' AND at < :before
        AND kind NOT IN ('exec', 'pack') ORDER BY at, run_id LIMIT :limit"""
    values = {"tenant_id": tenant_id, "before": number_of(before), "limit": limit}
    return _held_of(connection.execute(query, values))


def held(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[RunInProgress]:
    query = f"""SELECT {_HELD}
        FROM json_each(?) AS wanted CROSS JOIN runs ON run_id = wanted.value
        WHERE status IN ('{RunState.RUNNING.value}', '{RunState.CANCELLING.value}') AND kind <> 'pack'"""
    return _held_of(connection.execute(query, (json.dumps(list(run_ids)),)))
