"""The lists and counts of the index: which table and which SQL index serves which query."""
# ruff: noqa: S608  (queries are built from constants in this file; user input is always bound)

from __future__ import annotations

import sqlite3

from pyoco_server.core.dead_letter import read_dead_letter
from pyoco_server.ports.dead_letters.port import DeadLetterCount, DeadLetterFilter, DeadLetterPage, StoredDeadLetter
from pyoco_server.ports.index.port import EVERYBODY

__all__ = ["counts", "of_group", "page", "recent", "total"]

_GROUPS_MAX = 1000
#: Above every id: sequences of a stream have 64 bits, and no stream comes near this number.
_END = 2**63 - 1

_HAS_LABEL = "EXISTS (SELECT 1 FROM labels AS l WHERE l.tenant_id = '' AND l.label = :tag AND l.letter_id = {id})"


def page(connection: sqlite3.Connection, wanted: DeadLetterFilter, limit: int, before: int | None) -> DeadLetterPage:
    query, values = _query(wanted)
    values |= {"before": _END if before is None else before, "limit": limit + 1}
    rows = connection.execute(query, values).fetchall()
    items = [StoredDeadLetter(letter_id, read_dead_letter(data, "", 0.0)) for letter_id, data in rows[:limit]]
    return DeadLetterPage(items, items[-1].letter_id if len(rows) > limit else None)


def _query(wanted: DeadLetterFilter) -> tuple[str, dict[str, object]]:
    """Build the query.

    The planner has no statistics, so a plus sign disables every column index except the intended one.
    """
    tenant = wanted.tenant_id or None
    given = {"tenant_id": tenant, "reason": wanted.reason, "flow_name": wanted.flow, "run_id": wanted.run_id}
    given |= {"client_id": wanted.client_id, "grp": wanted.group}
    values: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    names = list(values)
    if wanted.tag is not None:
        values["tag"] = wanted.tag
    order = "ORDER BY letter_id DESC LIMIT :limit"
    if wanted.run_id is not None:  # a run has few dead letters: the other criteria filter them
        terms = _led_by(names, "run_id")
    elif wanted.client_id is not None:
        terms = _led_by(names, "tenant_id", "client_id")
    elif wanted.group is not None and wanted.reason is None and wanted.flow is None:
        terms = _led_by(names, "tenant_id", "grp")
    elif wanted.tag is not None and wanted.reason is None and wanted.flow is None:
        values["tenant_id"] = wanted.tenant_id
        below = "tenant_id = :tenant_id AND label = :tag AND letter_id < :before"
        some = f"SELECT letter_id FROM labels WHERE {below} {order}"
        return (
            f"SELECT letter_id, letter FROM ({some}) CROSS JOIN letters USING (letter_id) ORDER BY letter_id DESC",
            values,
        )
    else:  # tenant, reason and flow have an index for each of their combinations
        terms = _led_by(names, "tenant_id", "reason", "flow_name")
    if wanted.tag is not None:
        terms.append(_HAS_LABEL.format(id="letters.letter_id"))
    where = " AND ".join([*terms, "letter_id < :before"])
    return f"SELECT letter_id, letter FROM letters WHERE {where} {order}", values


def _led_by(names: list[str], *leading: str) -> list[str]:
    """Return the conditions: `leading` columns use their index, the others only filter."""
    return [f"{name} = :{name}" if name in leading else f"+{name} = :{name}" for name in names]


def counts(connection: sqlite3.Connection, tenant_id: str) -> list[DeadLetterCount]:
    """Count by reason and flow. The newest of a group has the highest id: one index lookup per group."""
    of_tenant = "" if tenant_id == EVERYBODY else "WHERE tenant_id = :tenant_id"
    also = "" if tenant_id == EVERYBODY else "n.tenant_id = :tenant_id AND"
    groups = f"SELECT reason, flow_name, SUM(count) AS many FROM counts {of_tenant} GROUP BY reason, flow_name"
    newest = (
        f"SELECT timestamp FROM letters AS n WHERE {also} n.reason = g.reason AND n.flow_name = g.flow_name "
        "ORDER BY letter_id DESC LIMIT 1"
    )
    some = f"SELECT * FROM ({groups}) ORDER BY many DESC, reason, flow_name LIMIT {_GROUPS_MAX}"
    rows = connection.execute(
        f"SELECT reason, flow_name, many, ({newest}) FROM ({some}) AS g", {"tenant_id": tenant_id}
    )
    return [DeadLetterCount(reason, flow or None, many, newest_at) for reason, flow, many, newest_at in rows]


def total(connection: sqlite3.Connection, tenant_id: str) -> int:
    of_tenant = "" if tenant_id == EVERYBODY else "WHERE tenant_id = ?"
    query = f"SELECT COALESCE(SUM(count), 0) FROM counts {of_tenant}"
    (found,) = connection.execute(query, (tenant_id,) if of_tenant else ()).fetchone()
    return int(found)


def of_group(connection: sqlite3.Connection, tenant_id: str, group: str) -> tuple[int, int | None]:
    of_tenant = "" if tenant_id == EVERYBODY else "AND tenant_id = :tenant_id"
    query = f"SELECT count(*), max(letter_id) FROM letters WHERE grp = :grp {of_tenant}"
    many, newest = connection.execute(query, {"grp": group, "tenant_id": tenant_id}).fetchone()
    return int(many), newest


def recent(connection: sqlite3.Connection, tenant_id: str, since: float, limit: int) -> int:
    """Count recent dead letters among the newest ids only.

    Ids are in order of insertion, nearly that of their times.
    """
    of_tenant = "" if tenant_id == EVERYBODY else "WHERE tenant_id = :tenant_id"
    newest = f"SELECT timestamp FROM letters {of_tenant} ORDER BY letter_id DESC LIMIT :limit"
    values = {"tenant_id": tenant_id, "since": since, "limit": limit}
    (found,) = connection.execute(f"SELECT count(*) FROM ({newest}) WHERE timestamp > :since", values).fetchone()
    return int(found)
