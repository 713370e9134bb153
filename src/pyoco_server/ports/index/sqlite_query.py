"""The pages of a list: which table and which SQL index serves which query."""
# ruff: noqa: S608  (queries are built from constants in this file; user input is always bound)

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, replace
from operator import itemgetter

from pyoco_server.core.programs.names import exec_of
from pyoco_server.core.states import UNKNOWN, RunState
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, Page, RunFilter
from pyoco_server.ports.index.sqlite_lines import LINE, instant_of, number_of, read_lines
from pyoco_server.ports.index.sqlite_search import Search, search_of
from pyoco_server.ports.index.sqlite_search_feed import IN_PROGRESS

__all__ = ["count_by_status", "group_seconds", "page"]

#: For EVERYBODY, the lists of up to this many tenants are merged. With more tenants, the complete list, or that of the
#: group, is scanned and filtered.
_TENANTS_MAX = 4
#: How far to count when choosing the most selective filter: about 0.1 ms per filter.
_PROBE_MAX = 2000
#: Up to this many moves are filtered and then sorted. With more, the index below the position is scanned instead.
_SORT_MAX = 2000
_STATUSES = (*(state.value for state in RunState), UNKNOWN)


@dataclass(frozen=True)
class _Filter:
    """One criterion, and the index that contains exactly the runs that match it."""

    #: A condition that is true for a matching row `r` of runs.
    holds: str
    #: The source to scan: an index of runs as `r`, or the table of labels as `k`.
    source: str = ""
    #: The columns that follow the tenant in that index, as a condition.
    prefix: str = ""
    #: The alias that is in list order: `r` or `k`.
    order: str = "r"


_FLOW = _Filter("r.flow_name = :flow", "runs AS r INDEXED BY runs_flow", "r.flow_name = :flow")
_SHA256 = _Filter(
    "r.sha256 = :sha256", "runs AS r INDEXED BY runs_sha256", "r.sha256 = :sha256 AND r.sha256 IS NOT NULL"
)
_ROUTED = _Filter("r.tag = :tag", "runs AS r INDEXED BY runs_tag", "r.tag = :tag")
_LABELLED = _Filter(
    """EXISTS (SELECT 1 FROM labels AS l WHERE l.tenant_id = r.tenant_id AND l.label = :tag AND l.status = r.status
        AND l.at = r.at AND l.run_id = r.run_id)""",
    "labels AS k CROSS JOIN runs AS r ON r.run_id = k.run_id",
    "k.label = :tag",
    "k",
)
_TAGGED = _Filter(f"({_ROUTED.holds} OR {_LABELLED.holds})")
_KIND = _Filter("r.kind = :kind", "runs AS r INDEXED BY runs_kind", "r.kind = :kind AND r.kind <> 'flow'")
_TENANT = _Filter("", "runs AS r INDEXED BY runs_tenant", "r.tenant_id <> ''")
_PREFIX = _Filter(
    "r.run_id >= :prefix AND r.run_id < :prefix_end",
    "runs AS r INDEXED BY sqlite_autoindex_runs_1",  # SQLite's own name of the primary key
    "r.run_id >= :prefix AND r.run_id < :prefix_end",
)
_JOB = _Filter("r.job_id = :job_id", "runs AS r INDEXED BY runs_job", "r.job_id = :job_id AND r.job_id IS NOT NULL")
_CLIENT = _Filter(
    "r.client_id = :client_id",
    "runs AS r INDEXED BY runs_client",
    "r.client_id = :client_id AND r.client_id IS NOT NULL",
)
_GROUP = _Filter("r.grp = :grp", "runs AS r INDEXED BY runs_group", "r.grp = :grp AND r.grp IS NOT NULL")
_WAITS = _Filter("r.waits = :waits", "runs AS r INDEXED BY runs_waits", "r.waits = :waits AND r.waits <> ''")
_EVERYBODYS_GROUP = "runs AS r INDEXED BY groups_all"
#: Nearly every run is a flow, so flows have no index.
_FLOWS = _Filter("r.kind = :kind")


@dataclass(frozen=True)
class _Question:
    """A filter and a position, as parts of a query."""

    wanted: RunFilter
    after: ListPosition | None
    #: True: use the positions at the beginning of the walk. False: use the current ones.
    frozen: bool
    #: The tenants to scan one by one. Empty: scan all tenants together.
    tenants: tuple[str, ...]
    #: True: so few runs match the run id prefix that all of them are read and sorted.
    by_prefix: bool = False
    search: Search | None = None

    def values(self, limit: int) -> dict[str, object]:
        wanted, (revision, at, run_id) = self.wanted, self.start or (0, 0, "")
        tenants = {f"tenant_{number}": tenant for number, tenant in enumerate(self.tenants)}
        return (
            tenants
            | {
                "status": wanted.status,
                "flow": wanted.flow,
                "tag": wanted.tag,
                "kind": wanted.kind,
                "sha256": wanted.workflow_yaml_sha256,
                "job_id": wanted.job_id,
                "client_id": wanted.client_id,
                "grp": wanted.group,
                "waits": wanted.waits,
                "since": number_of(wanted.updated_after or 0.0),
                "until": number_of(wanted.updated_before or 0.0),
                "revision": revision,
                "at": at,
                "run_id": run_id,
                "limit": limit,
            }
            | _prefix_values(wanted)
            | (self.search.values if self.search is not None else {})
        )

    @property
    def finds_nothing(self) -> bool:
        """Whether it is a search without a word."""
        return self.search is not None and not self.search.terms

    @property
    def start(self) -> tuple[int, int, str] | None:
        """Return the upper end of the list for SQL: the end of the last page, or `updated_before`, whichever is lower.

        As two conditions, SQLite might start its scan at the wrong one.
        """
        after, before = self.after, self.wanted.updated_before
        starts = [(number_of(after.updated_at), after.run_id)] if after is not None else []
        starts += [(number_of(before), "")] if before is not None else []
        return (after.revision if after is not None else 0, *min(starts)) if starts else None

    @property
    def filters(self) -> list[_Filter]:
        """The criteria other than tenant, status and tag."""
        wanted = self.wanted
        given = {
            _FLOW: wanted.flow is not None,
            _SHA256: wanted.workflow_yaml_sha256 is not None,
            _KIND: wanted.kind not in {None, "flow"},
            _FLOWS: wanted.kind == "flow",
            _PREFIX: wanted.run_id_prefix is not None,
            _JOB: wanted.job_id is not None,
            _CLIENT: wanted.client_id is not None,
            _GROUP: wanted.group is not None,
            _WAITS: wanted.waits is not None,
        }
        search = [_Filter(self.search.holds)] if self.search is not None else []
        return [each for each, is_given in given.items() if is_given] + search

    @property
    def statuses(self) -> list[str]:
        """The statuses that may be shown, as SQL."""
        return [":status"] if self.wanted.status is not None else [f"'{status}'" for status in _STATUSES]

    def within(self, order: str) -> list[str]:
        """Return the conditions for the range: below the start of the page, and after `updated_after`."""
        terms = [f"({order}.at, {order}.run_id) < (:at, :run_id)"] if self.start is not None else []
        terms += [f"{order}.at > :since"] if self.wanted.updated_after is not None else []
        return terms + (["r.rev <= :revision"] if self.frozen else [])


def page(connection: sqlite3.Connection, wanted: RunFilter, limit: int, after: ListPosition | None) -> Page:
    """Return one page of the list. Uses several statements, so the caller's transaction must provide one snapshot.

    With a tenant: O(limit * log runs) for any single filter, with or without a status; for several, at most O(runs that
    match the most selective one). The same for EVERYBODY while there are few tenants; with more, only for a status and
    a group: other filters cost at most O(runs that match those two). The log of moves adds O(changes since the walk
    began). A run id prefix costs O(runs with this prefix), whatever the other criteria: about fifteen of a million for
    four characters. If thousands match, the ids are not random, and the other filters lead.
    """
    revision, floor = connection.execute("SELECT revision, floor FROM mark").fetchone()
    frozen = after is not None and floor is not None and after.revision >= floor
    question = _question(connection, wanted, after, frozen)
    if question.finds_nothing:
        return Page([], None)
    query = _query(connection, question, f"group_concat({LINE})")
    (text,) = connection.execute(query, _values(connection, question, limit + 1)).fetchone()
    found = sorted(read_lines(text), key=lambda line: (line[0], line[1].run_id), reverse=True)
    items = [line for _, line in found[:limit]]
    if len(found) <= limit or not items:
        return Page(items, None)
    began = revision if after is None else after.revision
    return Page(items, ListPosition(began, instant_of(found[limit - 1][0]), items[-1].run_id))


def count_by_status(connection: sqlite3.Connection, wanted: RunFilter, limit: int) -> dict[str, int]:
    """Count matching runs by status, each up to `limit`. Statuses without runs are omitted.

    Without any filter the counts are exact, and those that every change maintains. Otherwise O(limit) entries of an
    index for each status.
    """
    if wanted == RunFilter():
        return dict(connection.execute("SELECT name, number FROM counts WHERE what = 'status'").fetchall())
    counted: dict[str, int] = {}
    for status in _STATUSES if wanted.status is None else (wanted.status,):
        question = _question(connection, replace(wanted, status=status))
        if question.finds_nothing:
            return {}
        query = f"SELECT count(*) FROM ({_positions(connection, question)} LIMIT :limit)"
        (number,) = connection.execute(query, _values(connection, question, limit)).fetchone()
        counted |= {status: number} if number else {}
    return counted


#: Only this much of a job's line: building and parsing complete lines is most of the cost of a page.
_SECONDS = "json_group_array(json_array(k.at, r.flow_name, r.more ->> '$[5].run_seconds'))"


def group_seconds(connection: sqlite3.Connection, tenant_id: str, group: str, limit: int) -> dict[str, list[float]]:
    found: list[tuple[int, str, float]] = []
    for status in (RunState.COMPLETED, RunState.FAILED):
        wanted = RunFilter(tenant_id=tenant_id, group=group, status=status.value)
        question = _Question(wanted, None, False, _tenants(connection, wanted))
        (text,) = connection.execute(_query(connection, question, _SECONDS), question.values(limit)).fetchone()
        found += json.loads(text)
    by_program: dict[str, list[float]] = {}
    for _, flow_name, seconds in sorted(found, key=itemgetter(0))[-limit:]:
        if isinstance(seconds, float | int):
            by_program.setdefault(exec_of(flow_name) or flow_name, []).append(float(seconds))
    return by_program


#: One index lookup per tenant.
_SOME_TENANTS = f"""
WITH RECURSIVE some (tenant) AS (
    SELECT min(tenant_id) FROM runs INDEXED BY runs_flow
    UNION ALL SELECT (SELECT min(tenant_id) FROM runs INDEXED BY runs_flow WHERE tenant_id > tenant) FROM some
    WHERE tenant IS NOT NULL LIMIT {_TENANTS_MAX + 2})
SELECT json_group_array(tenant) FROM some WHERE tenant IS NOT NULL
"""


def _tenants(connection: sqlite3.Connection, wanted: RunFilter) -> tuple[str, ...]:
    if wanted.tenant_id != EVERYBODY:
        return (wanted.tenant_id,)
    rest = replace(wanted, status=None, updated_after=None, updated_before=None, run_id_prefix=None, search=None)
    if rest == RunFilter():
        return ()
    (text,) = connection.execute(_SOME_TENANTS).fetchone()
    tenants = json.loads(text)
    return tuple(tenants) if len(tenants) <= _TENANTS_MAX else ()


def _question(
    connection: sqlite3.Connection, wanted: RunFilter, after: ListPosition | None = None, frozen: bool = False
) -> _Question:
    search = None if wanted.search is None else search_of(connection, wanted)
    few_begin_so = _few_begin_so(connection, wanted)
    return _Question(wanted, after, frozen, _tenants(connection, wanted), few_begin_so, search)


def _values(connection: sqlite3.Connection, question: _Question, limit: int) -> dict[str, object]:
    """Return the values of a query, with what the full-text index has found."""
    values = question.values(limit)
    if question.search is not None:
        values["found"] = _found(connection, question, question.search, values)
    return values


def _query(connection: sqlite3.Connection, question: _Question, shown: str) -> str:
    """Build the query that returns `shown` for rows `r` at positions `k`."""
    return f"""SELECT {shown} FROM ({_positions(connection, question)} ORDER BY at DESC, run_id DESC LIMIT :limit) AS k
        CROSS JOIN runs AS r USING (run_id)"""


def _positions(connection: sqlite3.Connection, question: _Question) -> str:
    """Merge short scans of indexes that are already in list order. Only moves must be sorted."""
    if question.by_prefix:
        walks = [_prefix_walk(question)]
    elif question.search is not None:
        walks = [_FOUND, *_walks_in_progress(question)]
    else:
        walks = [walk for group in _groups(question) for walk in _walks(connection, question, group)]
    if question.frozen:
        walks.append(_moved(connection, question))
    return " UNION ALL ".join(walks)


def _groups(question: _Question) -> list[list[_Filter]]:
    """Split a tag criterion into routing tag and label: two lists without a common run."""
    filters = question.filters
    if question.wanted.tag is None:
        return [filters]
    if not question.tenants:
        return [[*filters, _TAGGED]]
    return [[*filters, _ROUTED], [*filters, _LABELLED]]


def _walks(connection: sqlite3.Connection, question: _Question, filters: list[_Filter]) -> list[str]:
    usable = [each for each in filters if each.source and each is not _PREFIX] if question.tenants else []
    if not usable and question.wanted.tenant_id == EVERYBODY and question.wanted.group is not None:
        return _group_walks(question, filters)
    if not usable and question.wanted.tenant_id == EVERYBODY:
        return [_plain_walk(question, filters)]
    if not usable:
        return _index_walks(question, _TENANT, filters)
    first = usable[0] if len(usable) == 1 else _rarest(connection, question, usable)
    return _index_walks(question, first, [each for each in filters if each is not first])


def _few_begin_so(connection: sqlite3.Connection, wanted: RunFilter) -> bool:
    if wanted.run_id_prefix is None:
        return False
    such = f"SELECT 1 FROM {_PREFIX.source} WHERE {_PREFIX.prefix} LIMIT {_PROBE_MAX}"
    (number,) = connection.execute(f"SELECT count(*) FROM ({such})", _prefix_values(wanted)).fetchone()
    return bool(number < _PROBE_MAX)


def _prefix_values(wanted: RunFilter) -> dict[str, object]:
    """Return the range of ids with this prefix: from the prefix up to the first id after all of them."""
    prefix = wanted.run_id_prefix or ""
    return {"prefix": prefix, "prefix_end": f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}" if prefix else ""}


def _prefix_walk(question: _Question) -> str:
    """Scan by run id prefix. Not in list order: the result is sorted."""
    wanted = question.wanted
    terms = [_PREFIX.prefix]
    terms += ["r.tenant_id = :tenant_0"] if wanted.tenant_id != EVERYBODY else []
    terms += ["r.status = :status"] if wanted.status is not None else []
    filters = [each for each in question.filters if each is not _PREFIX]
    filters += [_TAGGED] if wanted.tag is not None else []
    return _walk(question, _PREFIX.source, "r", terms, filters)


#: What the full-text index has found.
_FOUND = "SELECT value ->> 0 AS at, value ->> 1 AS run_id FROM json_each(:found)"


def _found(connection: sqlite3.Connection, question: _Question, search: Search, values: dict[str, object]) -> str:
    """Return position and id of the first matches that are not in progress, as JSON."""
    if question.by_prefix:
        return "[]"
    start, since = question.start, question.wanted.updated_after
    newest = None if start is None else instant_of(start[1])
    wanted = question.wanted
    terms = [*question.within("r"), *(each.holds for each in question.filters)]
    terms += ["r.tenant_id = :tenant_0"] if wanted.tenant_id != EVERYBODY else []
    terms += ["r.status = :status"] if wanted.status is not None else []
    terms += [_TAGGED.holds] if wanted.tag is not None else []
    return json.dumps(search.first(connection, terms, values, since, newest))


def _walks_in_progress(question: _Question) -> list[str]:
    """Runs in progress have no documents: their words are compared. O(runs in progress of the tenant)."""
    wanted = question.wanted
    source, of_tenant = "runs AS r INDEXED BY runs_status", []
    if wanted.tenant_id != EVERYBODY:
        source, of_tenant = _TENANT.source, ["r.tenant_id = :tenant_0", _TENANT.prefix]
    filters = [*question.filters, _TAGGED] if wanted.tag is not None else question.filters
    return [
        _walk(question, source, "r", [*of_tenant, f"r.status = '{status}'"], filters)
        for status in IN_PROGRESS
        if wanted.status in {None, status}
    ]


def _group_walks(question: _Question, filters: list[_Filter]) -> list[str]:
    """For EVERYBODY: one scan per status, as in `_index_walks`."""
    others = [each for each in filters if each is not _GROUP]
    return [
        _walk(question, _EVERYBODYS_GROUP, "r", [_GROUP.prefix, f"r.status = {status}"], others)
        for status in question.statuses
    ]


def _plain_walk(question: _Question, filters: list[_Filter]) -> str:
    if question.wanted.status is None:
        return _walk(question, "runs AS r INDEXED BY runs_all", "r", [], filters)
    return _walk(question, "runs AS r INDEXED BY runs_status", "r", ["r.status = :status"], filters)


def _index_walks(question: _Question, first: _Filter, others: list[_Filter]) -> list[str]:
    """One scan per tenant and per status that may be shown: the first columns of every index."""
    return [
        _walk(
            question,
            first.source,
            first.order,
            [f"{first.order}.tenant_id = :tenant_{number}", first.prefix, f"{first.order}.status = {status}"],
            others,
        )
        for number in range(len(question.tenants))
        for status in question.statuses
    ]


def _walk(question: _Question, source: str, order: str, prefix: list[str], sieve: list[_Filter]) -> str:
    terms = [*prefix, *question.within(order), *(each.holds for each in sieve)]
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    return f"SELECT {order}.at AS at, {order}.run_id AS run_id FROM {source} {where}"


def _moved(connection: sqlite3.Connection, question: _Question) -> str:
    """Select runs that have changed since the walk began, at the position they had then."""
    wanted = question.wanted
    since = f"SELECT count(*) FROM (SELECT 1 FROM moves WHERE rev > :revision LIMIT {_SORT_MAX})"
    (number,) = connection.execute(since, question.values(0)).fetchone()
    index = "NOT INDEXED" if number < _SORT_MAX else "INDEXED BY moves_at"
    terms = ["m.rev > :revision", "m.old_rev <= :revision", "(m.at, m.run_id) < (:at, :run_id)"]
    terms += ["r.tenant_id = :tenant_0"] if wanted.tenant_id != EVERYBODY else []
    terms += ["r.status = :status"] if wanted.status is not None else []
    terms += ["r.at > :since"] if wanted.updated_after is not None else []
    terms += ["r.at < :until"] if wanted.updated_before is not None else []
    terms += [_TAGGED.holds] if wanted.tag is not None else []
    terms += [each.holds for each in question.filters]
    return f"""SELECT m.at AS at, m.run_id AS run_id FROM moves AS m {index} CROSS JOIN runs AS r ON r.run_id = m.run_id
        WHERE {" AND ".join(terms)}"""


def _rarest(connection: sqlite3.Connection, question: _Question, filters: list[_Filter]) -> _Filter:
    """Return the filter that matches the fewest runs, according to a bounded count."""
    probes = [
        f"(SELECT count(*) FROM (SELECT 1 FROM ({' UNION ALL '.join(_probes(question, each))}) LIMIT {_PROBE_MAX}))"
        for each in filters
    ]
    found = connection.execute(f"SELECT {', '.join(probes)}", question.values(0)).fetchone()
    return min(zip(found, range(len(filters)), filters, strict=True))[2]


def _probes(question: _Question, one: _Filter) -> list[str]:
    """Omit conditions that need the rows themselves: counting in an index alone is fast."""
    source = one.source.partition(" CROSS JOIN ")[0]
    status = [f"{one.order}.status = :status"] if question.wanted.status is not None else []
    return [
        f"SELECT 1 FROM {source} WHERE "
        + " AND ".join([f"{one.order}.tenant_id = :tenant_{number}", one.prefix, *status])
        for number in range(len(question.tenants))
    ]
