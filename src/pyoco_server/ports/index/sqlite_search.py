"""Searches: what the full-text index is asked, and what is compared for runs in progress (see `sqlite_search_feed`)."""
# ruff: noqa: S608  (queries are built from constants in this file; user input is always bound)

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from pyoco_server.ports.index.port import EVERYBODY, RunFilter
from pyoco_server.ports.index.search_words import Alternative, facet, search_terms
from pyoco_server.ports.index.sqlite_search_feed import (
    DOCS_PER_MS,
    FACETS,
    IN_PROGRESS,
    LABEL,
    WORDS,
    WORDS_MAX,
    doc_of,
)

__all__ = ["Search", "search_of"]

#: A prefix that is the beginning of more words than this is searched in all documents instead.
_EXPANSIONS_MAX = 64
_LAST_DOC = 2**63 - 1
_EXPAND = f"""
SELECT json_group_array(word) FROM (
    SELECT word FROM words WHERE word >= :prefix AND word < :end ORDER BY word LIMIT {_EXPANSIONS_MAX + 1})
"""
_IN_PROGRESS = ", ".join(f"'{status}'" for status in IN_PROGRESS)


@dataclass(frozen=True)
class Search:
    """A search, as parts of queries."""

    terms: list[list[Alternative]]
    #: The query of the full-text index, with the filters.
    match: str

    @property
    def values(self) -> dict[str, object]:
        """Return what `holds` compares with. Words are enclosed by spaces; the end of a prefix is open."""
        return {
            f"word_{number}_{way}": f" {each.text}" if each.is_prefix else f" {each.text} "
            for number, term in enumerate(self.terms)
            for way, each in enumerate(term)
        }

    @property
    def holds(self) -> str:
        """Return a condition that is true for a matching row `r` of runs."""
        ways = (
            " OR ".join(f"instr(r.words, :word_{number}_{way})" for way in range(len(term)))
            for number, term in enumerate(self.terms)
        )
        return " AND ".join(f"({each})" for each in ways)

    def first(
        self,
        connection: sqlite3.Connection,
        terms: list[str],
        values: dict[str, object],
        since: float | None,
        newest: float | None,
    ) -> list[tuple[int, str]]:
        """Return the positions and ids of the newest runs, at least `limit` if there are so many.

        Documents are in list order only by their millisecond: that of the last one is read to its end.
        """
        low = 0 if since is None else doc_of(since)
        high = _LAST_DOC if newest is None else doc_of(newest) + DOCS_PER_MS - 1
        found = self._read(connection, terms, values | {"low": low, "high": high}, "LIMIT :limit")
        if found:
            last = found[-1][0]
            rest = {"low": max(low, last - last % DOCS_PER_MS), "high": last - 1}
            found += self._read(connection, terms, values | rest, "")
        return [(at, run_id) for _, at, run_id in found]

    def _read(
        self, connection: sqlite3.Connection, terms: list[str], values: dict[str, object], limit: str
    ) -> list[tuple[int, int, str]]:
        where = " AND ".join(["search MATCH :match", "search.rowid BETWEEN :low AND :high", *terms])
        query = f"""SELECT json_group_array(json_array(doc, at, run_id)) FROM (
            SELECT search.rowid AS doc, r.at AS at, r.run_id AS run_id
            FROM search CROSS JOIN runs AS r INDEXED BY runs_doc ON r.doc = search.rowid
            WHERE {where} AND r.status NOT IN ({_IN_PROGRESS}) ORDER BY search.rowid DESC {limit})"""
        (text,) = connection.execute(query, values | {"match": self.match}).fetchone()
        found: list[tuple[int, int, str]] = json.loads(text)
        return found


def search_of(connection: sqlite3.Connection, wanted: RunFilter) -> Search:
    """Without a tenant, the hidden words of priced runs are left out (SAFE-5)."""
    terms = search_terms(wanted.search or "", is_owner=wanted.tenant_id != EVERYBODY)
    parts = [f"({' OR '.join(_expression(connection, each) for each in term)})" for term in terms]
    return Search(terms, " AND ".join([*parts, *_facets(wanted)]))


def _facets(wanted: RunFilter) -> list[str]:
    values = {
        FACETS["tenant_id"]: wanted.tenant_id,
        FACETS["status"]: wanted.status,
        FACETS["kind"]: wanted.kind,
        FACETS["flow_name"]: wanted.flow,
        FACETS["sha256"]: wanted.workflow_yaml_sha256,
        FACETS["job_id"]: wanted.job_id,
        FACETS["client_id"]: wanted.client_id,
        FACETS["grp"]: wanted.group,
        FACETS["waits"]: wanted.waits,
        LABEL: wanted.tag,
    }
    return [f'"{facet(dead_letter, value)}"' for dead_letter, value in values.items() if value]


def _expression(connection: sqlite3.Connection, each: Alternative) -> str:
    """Return the expression for FTS5. It reads all documents of a prefix, but only the newest of words: so a prefix is
    replaced by the words that begin with it."""
    if not each.is_prefix:
        return f'"{each.text}"'
    start, _, last = each.text.rpartition(" ")
    words = None if each.is_id else _known_words(connection, last)  # ids are not among them
    if words is None:
        return f'"{each.text}" *'
    return " OR ".join(f'"{f"{start} {word}".strip()}"' for word in words or [last])


def _known_words(connection: sqlite3.Connection, prefix: str) -> list[str] | None:
    """Return the words with this prefix. None: too many, or not all of them are known."""
    number = connection.execute("SELECT number FROM counts WHERE what = ?", (WORDS,)).fetchone()
    if number is not None and number[0] >= WORDS_MAX:
        return None
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    (text,) = connection.execute(_EXPAND, {"prefix": prefix, "end": end}).fetchone()
    words: list[str] = json.loads(text)
    return words if len(words) <= _EXPANSIONS_MAX else None
