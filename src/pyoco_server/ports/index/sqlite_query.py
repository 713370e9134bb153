"""The lists: which of the index's tables and indexes answers a question."""
# ruff: noqa: S608  (queries are put together from the words in this file; what users say is always bound)

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from typing import Any

from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.index.port import EVERYBODY, RunFilter, Summary

__all__ = ["page", "unfinished"]

_SHOWN = tuple(field.name for field in fields(Summary))


def page(connection: sqlite3.Connection, wanted: RunFilter, limit: int) -> list[Summary]:
    query, values = _query(wanted, limit)
    return [_summary(row) for row in connection.execute(query, values)]


def unfinished(connection: sqlite3.Connection, after: float, before: float, limit: int) -> list[Summary]:
    """One short walk for each state that is not an end: few runs are in them at a time."""
    shown = ", ".join(_SHOWN)
    between = "status = ? AND updated_at >= ? AND updated_at < ?"
    each = f"SELECT * FROM (SELECT {shown} FROM runs WHERE {between} ORDER BY updated_at LIMIT ?)"
    states = [state.value for state in RunState if state not in TERMINAL]
    query = " UNION ALL ".join([each] * len(states)) + " ORDER BY updated_at, run_id LIMIT ?"
    values = [value for state in states for value in (state, after, before, limit)]
    return [_summary(row) for row in connection.execute(query, [*values, limit])]


def _summary(row: tuple[Any, ...]) -> Summary:
    known = dict(zip(_SHOWN, row, strict=True))
    return Summary(**known | {"tags": tuple(json.loads(known["tags"]))})


#: The filters, most telling first: the first one that is set chooses the index, the others sieve what it brings.
#: The planner has no statistics, and would choose any of them.
_FILTERS = ("workflow_yaml_sha256", "tag", "flow_name", "tenant_id", "status", "kind")
_ORDER = "ORDER BY updated_at DESC, run_id DESC LIMIT :limit"
_HAS_LABEL = """EXISTS (
    SELECT 1 FROM labels AS l WHERE l.label = :tag AND l.updated_at = runs.updated_at AND l.run_id = runs.run_id)"""


def _query(wanted: RunFilter, limit: int) -> tuple[str, dict[str, object]]:
    """Every index and the table of labels are in the order of the list already, so nothing much is sorted."""
    given = {
        "workflow_yaml_sha256": wanted.workflow_yaml_sha256,
        "tag": wanted.tag,
        "flow_name": wanted.flow,
        "tenant_id": None if wanted.tenant_id == EVERYBODY else wanted.tenant_id,
        "status": wanted.status,
        "kind": wanted.kind,
    }
    names = [name for name in _FILTERS if given[name] is not None]
    if wanted.status is not None and wanted.status not in TERMINAL:
        names.sort(key=lambda name: name != "status")  # few runs are under way at a time, and many have ended
    values: dict[str, object] = {**{name: given[name] for name in names}, "limit": limit}
    # The plus keeps the planner from using that column's index.
    # Nearly every run is a flow: their kind has no index, and the planner has to be told that this is not about them.
    unusual = ["runs.kind <> 'flow'"] if names[:1] == ["kind"] and wanted.kind != "flow" else []
    sieve = [
        f"(+runs.tag = :tag OR {_HAS_LABEL})" if name == "tag" else f"+runs.{name} = :{name}" for name in names[1:]
    ]
    shown = ", ".join(f"runs.{name} AS {name}" for name in _SHOWN)
    if names[:1] != ["tag"]:
        first = [f"runs.{name} = :{name}" for name in names[:1]] + unusual
        return f"SELECT {shown} FROM runs {_where(*first, *sieve)} {_ORDER}", values
    routed = f"SELECT {shown} FROM runs {_where('runs.tag = :tag', *sieve)} {_ORDER}"
    labelled = (
        f"SELECT {shown} FROM labels CROSS JOIN runs USING (run_id) {_where('labels.label = :tag', *sieve)} "
        "ORDER BY labels.updated_at DESC, labels.run_id DESC LIMIT :limit"
    )
    return f"SELECT * FROM (SELECT * FROM ({routed}) UNION ALL SELECT * FROM ({labelled})) {_ORDER}", values


def _where(*terms: str) -> str:
    return "WHERE " + " AND ".join(terms) if terms else ""
