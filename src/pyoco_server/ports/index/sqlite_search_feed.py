"""Keep the full-text index of runs current.

A document of the index is identified by a number that sorts like the list order: the millisecond of the run's last
update, and a number within it. So a search reads the newest matches first and stops when the page is full. `facets`
contains a word for each filter, so a search combined with filters is an intersection of the same index.

A run in progress is updated by every heartbeat, and would have to be indexed anew each time. So it has no document of
its own: one from before its start stays until it ends, and is ignored by searches, which compare the words of runs in
progress one by one.
"""
# ruff: noqa: S608  (statements are built from constants in this file; user input is always bound)

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyoco_server.core.states import RunState
from pyoco_server.ports.index.search_words import facet, is_known_by_prefix
from pyoco_server.ports.index.sqlite_lines import COLUMNS, Row, instant_of, labels_of

__all__ = ["DOCS_PER_MS", "FACETS", "IN_PROGRESS", "LABEL", "WORDS", "WORDS_MAX", "Documents", "doc_of"]

#: Their heartbeats change their place in lists.
IN_PROGRESS = (RunState.CANCELLING.value, RunState.RUNNING.value)
DOCS_PER_MS = 2**20
_MS_MAX = 2**42
#: The number of different words of letters that are remembered. With more, prefixes are searched in all documents.
WORDS_MAX = 100_000
#: Their number, in `counts`.
WORDS = "words"

_encode = msgspec.json.Encoder().encode
_NUMBERS = {name: number for number, name in enumerate(COLUMNS)}
_WORDS, _FACETS, _DOC = (_NUMBERS[name] for name in ("words", "facets", "doc"))
#: Columns that are filters, with the letter that marks their facets. Labels are filtered together with the tag.
FACETS = {
    "tenant_id": "t",
    "status": "s",
    "kind": "k",
    "flow_name": "f",
    "sha256": "h",
    "job_id": "j",
    "client_id": "c",
    "grp": "g",
    "waits": "w",
}
LABEL = "l"
_FACET_NUMBERS = tuple((dead_letter, _NUMBERS[name]) for name, dead_letter in FACETS.items())
_TAG, _TAGS = _NUMBERS["tag"], _NUMBERS["tags"]
_STATUS, _AT, _RUN_ID = _NUMBERS["status"], _NUMBERS["at"], _NUMBERS["run_id"]

_TAKEN = f"""
SELECT json_group_array(json_array(value, (
    SELECT max(doc) FROM runs INDEXED BY runs_doc WHERE doc >= value AND doc < value + {DOCS_PER_MS})))
FROM json_each(?)
"""
_FORGET = "INSERT INTO search (search, rowid, text) SELECT 'delete', value ->> 0, value ->> 1 FROM json_each(?)"
_ADD = "INSERT INTO search (rowid, text) SELECT value ->> 0, value ->> 1 FROM json_each(?)"
_LEARN = "INSERT OR IGNORE INTO words SELECT value FROM json_each(?)"
_LEARNT = (
    "INSERT INTO counts VALUES (?, '', ?) ON CONFLICT (what, name) DO UPDATE SET number = number + excluded.number"
)

#: Of a row that is replaced: its words, facets and document.
Known = Sequence[Any]


def doc_of(at: float) -> int:
    """Return the first document number of an instant's millisecond."""
    return int(min(max(at * 1000.0, 0.0), _MS_MAX - 1)) * DOCS_PER_MS


@dataclass
class Documents:
    """The changes that a batch makes to the full-text index. `place` may be called again with other rows."""

    connection: sqlite3.Connection
    #: By run id, of all rows of this batch that exist.
    known: Mapping[str, Known]
    removed: Iterable[str]
    _added: list[tuple[int, str]] = field(default_factory=list)
    _forgotten: list[tuple[int, str]] = field(default_factory=list)

    def place(self, rows: Sequence[Row]) -> None:
        """Fill in the facets and the document of each row."""
        self._added, self._forgotten = [], []
        moved = [row for row in rows if not self._stays(row)]
        taken = self._taken({doc_of(instant_of(row[_AT])) for row in moved if row[_STATUS] not in IN_PROGRESS})
        for row in moved:
            if row[_STATUS] in IN_PROGRESS:
                row[_DOC] = None
                continue
            first = doc_of(instant_of(row[_AT]))
            row[_DOC] = taken[first] = taken[first] + 1
            self._added.append((row[_DOC], row[_WORDS] + row[_FACETS]))
        for words, facets, doc in (self.known[run_id] for run_id in self.removed if run_id in self.known):
            self._forget(words, facets, doc)

    def write(self) -> None:
        """Apply the changes. In ascending order: otherwise FTS5 flushes its memory at every step back."""
        if self._forgotten:
            self.connection.execute(_FORGET, (_encode(sorted(self._forgotten)).decode(),))
        if not self._added:
            return
        self.connection.execute(_ADD, (_encode(sorted(self._added)).decode(),))
        words = {word for _, text in self._added for word in text.split(" ") if is_known_by_prefix(word)}
        self._learn(words)

    def _stays(self, row: Row) -> bool:
        """Return whether the document of a row remains as it is. If not, it is deleted."""
        row[_FACETS] = _facets_of(row)
        if row[_RUN_ID] not in self.known:
            return False
        words, facets, doc = self.known[row[_RUN_ID]]
        if row[_STATUS] in IN_PROGRESS:
            is_same = words == row[_WORDS]
        else:
            first = doc_of(instant_of(row[_AT]))
            is_same = (words, facets) == (row[_WORDS], row[_FACETS]) and first <= (doc or -1) < first + DOCS_PER_MS
        if is_same and doc is not None:
            row[_FACETS], row[_DOC] = facets, doc  # the facets as they are in the index: needed to delete them from it
            return True
        self._forget(words, facets, doc)
        return False

    def _forget(self, words: str, facets: str, doc: int | None) -> None:
        if doc is not None:
            self._forgotten.append((doc, words + facets))

    def _taken(self, firsts: Iterable[int]) -> dict[int, int]:
        """Return the last document in use of each of these milliseconds."""
        (text,) = self.connection.execute(_TAKEN, (json.dumps(sorted(firsts)),)).fetchone()
        return {first: first - 1 if last is None else last for first, last in json.loads(text)}

    def _learn(self, words: set[str]) -> None:
        found = self.connection.execute("SELECT number FROM counts WHERE what = ?", (WORDS,)).fetchone()
        if found is not None and found[0] >= WORDS_MAX:
            return
        number = self.connection.execute(_LEARN, (_encode(sorted(words)).decode(),)).rowcount
        self.connection.execute(_LEARNT, (WORDS, number))


def _facets_of(row: Row) -> str:
    values: list[tuple[str, Any]] = [(dead_letter, row[number]) for dead_letter, number in _FACET_NUMBERS]
    values += [(LABEL, label) for label in (row[_TAG], *sorted(labels_of(row[_TAG], row[_TAGS])))]
    return " ".join([facet(dead_letter, value) for dead_letter, value in values if value])
