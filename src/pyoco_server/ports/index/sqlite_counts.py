"""What is counted as it changes, and what waits."""
# ruff: noqa: S608  (statements are put together from the words in this file; what users say is always bound)

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.index.port import EVERYBODY, Ahead, Counts, Held, Summary, Waiting
from pyoco_server.ports.index.sqlite_lines import LINE, instant_of, number_of, read_lines

__all__ = ["ahead", "counts", "held", "packs_ahead", "quiet", "unfinished"]

_TAGS_MAX = 1000

_COUNTS = f"""
SELECT (SELECT json_group_object(name, number) FROM counts WHERE what = 'status'), (
    SELECT json_group_array(json_array(tag, number, (
        SELECT submitted FROM runs INDEXED BY runs_waiting
        WHERE status = 'PENDING' AND kind <> 'pack' AND runs.tag = longest.tag ORDER BY submitted LIMIT 1)))
    FROM (SELECT name AS tag, number FROM counts WHERE what = 'waiting'
          ORDER BY number DESC, name LIMIT {_TAGS_MAX}) AS longest),
    (SELECT json_group_object(name, number) FROM counts WHERE what = 'pack'),
    (SELECT submitted FROM runs INDEXED BY packs_waiting WHERE status = 'PENDING' AND kind = 'pack'
     ORDER BY submitted LIMIT 1)
"""

_EARLIER = """
runs INDEXED BY runs_waiting
WHERE status = 'PENDING' AND kind <> 'pack' AND tag = :tag AND (submitted, run_id) < (:submitted, :run_id)
"""
_EARLIER_PACKS = """
runs INDEXED BY packs_waiting
WHERE status = 'PENDING' AND kind = 'pack' AND (submitted, run_id) < (:submitted, :run_id)
"""


def _ahead_in(earlier: str) -> str:
    return f"""
    SELECT (SELECT count(*) FROM (SELECT 1 FROM {earlier} LIMIT :limit)), (
        SELECT {LINE} FROM (SELECT submitted AS at, run_id FROM {earlier} ORDER BY submitted, run_id LIMIT 1) AS k
        CROSS JOIN runs AS r USING (run_id)), (SELECT tenant_id FROM {earlier} ORDER BY submitted, run_id LIMIT 1)
    """


_AHEAD, _PACKS_AHEAD = _ahead_in(_EARLIER), _ahead_in(_EARLIER_PACKS)


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


def _pack_state(name: str) -> tuple[str, str]:
    """As the feed has put it together."""
    status, _, money = name.partition("/")
    return status, money


def ahead(connection: sqlite3.Connection, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
    place = {"tag": tag, "submitted": number_of(submitted_at), "run_id": run_id, "limit": limit}
    return _ahead_of(connection.execute(_AHEAD, place).fetchone())


def packs_ahead(connection: sqlite3.Connection, submitted_at: float, run_id: str, limit: int) -> Ahead:
    place = {"submitted": number_of(submitted_at), "run_id": run_id, "limit": limit}
    return _ahead_of(connection.execute(_PACKS_AHEAD, place).fetchone())


def _ahead_of(found: tuple[int, str | None, str | None]) -> Ahead:
    count, first, tenant_id = found
    return Ahead(count, next((line for _, line in read_lines(first)), None), tenant_id or None)


def unfinished(connection: sqlite3.Connection, after: float, before: float, limit: int) -> list[Summary]:
    """One short walk for each state that is not an end, merged."""
    states = [state.value for state in RunState if state not in TERMINAL]
    each = """SELECT at, run_id FROM runs INDEXED BY runs_status
        WHERE status = '{}' AND at >= :after AND at < :before AND kind <> 'pack'"""
    walks = " UNION ALL ".join(each.format(state) for state in states)
    query = f"""SELECT group_concat({LINE}) FROM ({walks} ORDER BY at, run_id LIMIT :limit) AS k
        CROSS JOIN runs AS r USING (run_id)"""
    values = {"after": number_of(after), "before": number_of(before), "limit": limit}
    (text,) = connection.execute(query, values).fetchone()
    return [line for _, line in read_lines(text)]


#: A row of `runs` as a Held.
_HELD = "run_id, more ->> 3, tenant_id, tag, at"


def _held_of(rows: Iterable[tuple[str, str | None, str, str, int]]) -> list[Held]:
    return [
        Held(run_id, worker_id, tenant_id or None, tag, instant_of(at))
        for run_id, worker_id, tenant_id, tag, at in rows
    ]


def quiet(connection: sqlite3.Connection, tenant_id: str, before: float, limit: int) -> list[Held]:
    """One walk down the index that is in this order, whoever asks."""
    source = "INDEXED BY runs_status WHERE"
    if tenant_id != EVERYBODY:
        source = "INDEXED BY runs_tenant WHERE tenant_id = :tenant_id AND tenant_id <> '' AND"
    query = f"""SELECT {_HELD} FROM runs {source} status = '{RunState.RUNNING.value}' AND at < :before
        AND kind <> 'pack' ORDER BY at, run_id LIMIT :limit"""
    values = {"tenant_id": tenant_id, "before": number_of(before), "limit": limit}
    return _held_of(connection.execute(query, values))


def held(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[Held]:
    query = f"""SELECT {_HELD}
        FROM json_each(?) AS wanted CROSS JOIN runs ON run_id = wanted.value
        WHERE status IN ('{RunState.RUNNING.value}', '{RunState.CANCELLING.value}') AND kind <> 'pack'"""
    return _held_of(connection.execute(query, (json.dumps(list(run_ids)),)))
