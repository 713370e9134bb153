"""The tables of the index: how they are made and fed."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyoco_server.core.run import Run
from pyoco_server.logs import get_logger
from pyoco_server.ports.index.port import Mark
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["apply", "begin", "connect", "end", "open_or_make", "reset", "throw_away"]

log = get_logger(__name__)

_encode = msgspec.json.Encoder().encode

#: Raise it with every change of the schema: a file of another version is thrown away and built anew.
_VERSION = 2

_SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, kind TEXT NOT NULL, status TEXT NOT NULL, flow_name TEXT NOT NULL, tag TEXT NOT NULL,
    tags TEXT NOT NULL, submitted_at REAL NOT NULL, updated_at REAL NOT NULL, heartbeat_at REAL NOT NULL,
    start_time REAL, end_time REAL, worker_id TEXT, error TEXT,
    rev INTEGER NOT NULL, tenant_id TEXT, workflow_yaml_sha256 TEXT
) WITHOUT ROWID;
CREATE INDEX runs_all ON runs (updated_at DESC, run_id DESC);
CREATE INDEX runs_status ON runs (status, updated_at DESC, run_id DESC);
CREATE INDEX runs_flow ON runs (flow_name, updated_at DESC, run_id DESC);
CREATE INDEX runs_kind ON runs (kind, updated_at DESC, run_id DESC) WHERE kind <> 'flow';
CREATE INDEX runs_tag ON runs (tag, updated_at DESC, run_id DESC);
CREATE INDEX runs_tenant ON runs (tenant_id, updated_at DESC, run_id DESC) WHERE tenant_id IS NOT NULL;
CREATE INDEX runs_sha ON runs (workflow_yaml_sha256, updated_at DESC, run_id DESC)
    WHERE workflow_yaml_sha256 IS NOT NULL;
CREATE TABLE labels (
    label TEXT NOT NULL, updated_at REAL NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (label, updated_at, run_id)
) WITHOUT ROWID;
CREATE TABLE mark (epoch TEXT NOT NULL, revision INTEGER NOT NULL, clean INTEGER NOT NULL);
INSERT INTO mark VALUES ('', 0, 1);
"""

# A batch goes in as one JSON text and comes out of one statement. Row by row the database would let go of Python's lock
# and take it back each time, and the event loop of a busy gateway would lose a third of its time to that.
_UPDATE = """ON CONFLICT (run_id) DO UPDATE SET
    kind = excluded.kind, status = excluded.status, flow_name = excluded.flow_name, tag = excluded.tag,
    tags = excluded.tags, submitted_at = excluded.submitted_at, updated_at = excluded.updated_at,
    heartbeat_at = excluded.heartbeat_at, start_time = excluded.start_time, end_time = excluded.end_time,
    worker_id = excluded.worker_id, error = excluded.error, rev = excluded.rev, tenant_id = excluded.tenant_id,
    workflow_yaml_sha256 = excluded.workflow_yaml_sha256
"""
_COLUMNS = ", ".join(f"value ->> {number}" for number in range(16))
_UPSERT_ALL = f"INSERT INTO runs SELECT {_COLUMNS} FROM json_each(?) WHERE true {_UPDATE}"  # noqa: S608  (only numbers)
#: For what SQLite's JSON cannot hold, a null character for instance.
_UPSERT_ONE = f"INSERT INTO runs VALUES ({', '.join('?' * 16)}) {_UPDATE}"  # noqa: S608
_KNOWN = """
SELECT json_group_array(json_array(run_id, rev, updated_at, tag, tags)) FROM runs
WHERE run_id IN (SELECT value FROM json_each(?))
"""


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        # A cache: what a power cut spoils is built anew, so nobody waits for the disk.
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -8192;")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def open_or_make(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        try:
            connection = connect(path)
        except sqlite3.DatabaseError as error:
            throw_away(path, str(error))
        else:
            problem = _problem(connection)
            if problem is None:
                return connection
            connection.close()
            throw_away(path, problem)
    connection = connect(path)
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {_VERSION}")  # last: a file that is half made has another version
    return connection


def _problem(connection: sqlite3.Connection) -> str | None:
    """Why this file cannot be used, or None. Looks at every page only after an unclean end: about 1 s for 1M runs."""
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            return f"it has schema version {version}, not {_VERSION}"
        connection.execute("SELECT 1 FROM runs, labels LIMIT 0")
        (clean,) = connection.execute("SELECT clean FROM mark").fetchone()
        (found,) = ("ok",) if clean else connection.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.DatabaseError, TypeError) as error:  # TypeError: the row is missing
        return str(error)
    return None if found == "ok" else str(found)


def throw_away(path: Path, why: str) -> None:
    log.warning("the index of runs is built anew", reason=why)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def begin(connection: sqlite3.Connection) -> Mark:
    epoch, revision = connection.execute("SELECT epoch, revision FROM mark").fetchone()
    connection.execute("UPDATE mark SET clean = 0")
    return Mark(epoch, revision)


def end(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE mark SET clean = 1")


def apply(connection: sqlite3.Connection, items: Iterable[Stored | Removed], mark: Mark) -> None:
    with _transaction(connection):
        # Everything up to the mark has been taken in, so a late older word brings no removed run back.
        epoch, done = connection.execute("SELECT epoch, revision FROM mark").fetchone()
        done = done if epoch == mark.epoch else 0
        newest = {_run_id(item): item for item in sorted(items, key=lambda item: item.revision)}
        known = _known(connection, list(newest))
        fresh = {
            key: item
            for key, item in newest.items()
            if item.revision > done and (key not in known or item.revision > known[key].revision)
        }
        stored = [item for item in fresh.values() if isinstance(item, Stored)]
        removed = [(item.run_id,) for item in fresh.values() if isinstance(item, Removed)]
        connection.executemany(
            "DELETE FROM labels WHERE label = ? AND updated_at = ? AND run_id = ?",
            [row for key in fresh if key in known for row in known[key].labels],
        )
        connection.executemany("DELETE FROM runs WHERE run_id = ?", removed)
        rows = _rows_text(stored)
        if rows is None:
            connection.executemany(_UPSERT_ONE, [_row(item) for item in stored])
        else:
            connection.execute(_UPSERT_ALL, (rows,))
        connection.executemany(
            "INSERT OR REPLACE INTO labels VALUES (?, ?, ?)", [row for item in stored for row in _label_rows(item.run)]
        )
        connection.execute("UPDATE mark SET epoch = ?, revision = ?", (mark.epoch, max(done, mark.revision)))


def reset(connection: sqlite3.Connection, epoch: str) -> None:
    with _transaction(connection):
        connection.execute("DELETE FROM labels")
        connection.execute("DELETE FROM runs")
        connection.execute("UPDATE mark SET epoch = ?, revision = 0", (epoch,))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk rolls back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _run_id(item: Stored | Removed) -> str:
    return item.run.run_id if isinstance(item, Stored) else item.run_id


@dataclass(frozen=True)
class _Known:
    """What the index holds of a run, as far as a newer word on it has to know."""

    revision: int
    labels: list[tuple[str, float, str]]


def _known(connection: sqlite3.Connection, run_ids: list[str]) -> dict[str, _Known]:
    """O(log runs) each."""
    (rows,) = connection.execute(_KNOWN, (json.dumps(run_ids),)).fetchone()
    found: dict[str, _Known] = {}
    for run_id, revision, updated_at, tag, tags in json.loads(rows):
        labels = {_text(label) for label in json.loads(tags)} - {tag}
        found[run_id] = _Known(revision, [(label, updated_at, run_id) for label in labels])
    return found


def _label_rows(run: Run) -> list[tuple[str, float, str]]:
    """The labels beside the routing tag, which has an index of its own (FLOW-99)."""
    if run.tags == (run.tag,):
        return []
    labels = {_text(label) for label in run.tags} - {_text(run.tag)}
    return [(label, _number(run.updated_at), _text(run.run_id)) for label in labels]


@functools.lru_cache(maxsize=1024)
def _known_tags_text(tags: tuple[str, ...]) -> str:
    return json.dumps(tags)


def _tags_text(tags: tuple[str, ...]) -> str:
    """Most runs have the labels of many others. A stranger's may be of a type that cannot be looked up."""
    try:
        return _known_tags_text(tags)
    except TypeError:
        return json.dumps([_text(tag) for tag in tags])


def _rows_text(stored: list[Stored]) -> str | None:
    """The batch as JSON. Done with Python's lock in hand, so it has to be quick; None: odd values, to go one by one."""
    try:
        text = _encode([_plain_row(item) for item in stored]).decode()
    except (TypeError, ValueError, OverflowError):
        return None
    return None if "\\u0000" in text else text


def _plain_row(item: Stored) -> tuple[object, ...]:
    run = item.run
    if not type(run.updated_at) is type(run.submitted_at) is type(run.heartbeat_at) is float:
        raise TypeError("not instants")
    return (
        run.run_id,
        run.kind,
        run.status.value,
        run.flow_name,
        run.tag,
        _tags_text(run.tags),
        run.submitted_at,
        run.updated_at,
        run.heartbeat_at,
        run.start_time,
        run.end_time,
        run.worker_id,
        run.error,
        item.revision,
        run.tenant_id,
        run.workflow_yaml_sha256,
    )


def _row(item: Stored) -> tuple[object, ...]:
    """The same, with every member made into what its column holds."""
    run = item.run
    texts = (run.run_id, run.kind, run.status.value, run.flow_name, run.tag, _tags_text(run.tags))
    times = (run.submitted_at, run.updated_at, run.heartbeat_at, run.start_time, run.end_time)
    more = (run.tenant_id, run.workflow_yaml_sha256)
    return (
        *map(_text, texts),
        *(None if value is None else _number(value) for value in times),
        *(None if value is None else _text(value) for value in (run.worker_id, run.error)),
        item.revision,
        *(None if value is None else _text(value) for value in more),
    )


# A stranger may have written a snapshot whose members are of other types: one odd run must not stop the feeding.


def _text(value: object) -> str:
    if type(value) is str and value.isascii():  # nearly always
        return value
    return str(value).encode("utf-8", "replace").decode()


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # that is the question
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
