"""The file below the indexes: what its transactions promise, and how it is opened and closed."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pyoco_server.errors import Unavailable
from pyoco_server.ports.index.port import Mark
from pyoco_server.ports.sqlite.file import Layout, SqliteFile, move_mark

LAYOUT = Layout(
    name="the cache",
    version=1,
    schema="CREATE TABLE things (name TEXT PRIMARY KEY);",
    tables=("things",),
    mark_columns=("note TEXT", "size INTEGER NOT NULL DEFAULT 7"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
async def file(path: Path) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(path, LAYOUT)
    await file.open()
    yield file
    await file.close()


def count(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("SELECT count(*) FROM things").fetchone()
    return int(found)


def add(connection: sqlite3.Connection, name: str = "one") -> None:
    connection.execute("INSERT INTO things VALUES (?)", (name,))


async def test_a_question_of_several_statements_is_answered_from_one_instant(file: SqliteFile) -> None:
    has_looked, may_go_on = threading.Event(), threading.Event()

    def twice(connection: sqlite3.Connection) -> tuple[int, int]:
        first = count(connection)
        has_looked.set()
        assert may_go_on.wait(100)
        return first, count(connection)

    asking = asyncio.create_task(file.read(twice))
    assert await asyncio.to_thread(has_looked.wait, 60)
    await file.write(add)
    may_go_on.set()
    assert await asking == (0, 0)
    assert await file.read(count) == 1


async def test_a_change_happens_as_a_whole_or_not_at_all(file: SqliteFile) -> None:
    def changes_its_mind(connection: sqlite3.Connection) -> None:
        add(connection)
        move_mark(connection, Mark("e", 9))
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(Unavailable, match="full"):
        await file.write(changes_its_mind)
    assert await file.read(count) == 0
    assert await file.open() == Mark()
    await file.write(add)
    assert await file.read(count) == 1


def fails(name: str) -> Callable[[sqlite3.Connection], int]:
    def ask(_: sqlite3.Connection) -> int:
        error = sqlite3.OperationalError("as told")
        error.sqlite_errorname = name
        raise error

    return ask


async def is_found_damaged(file: SqliteFile) -> bool:
    try:
        async with asyncio.timeout(0):  # whoever finds damage tells it before its call fails
            await file.damaged()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize(
    ("name", "is_damage"),
    [
        ("SQLITE_IOERR", True),
        ("SQLITE_IOERR_READ", True),
        ("SQLITE_IOERR_SHORT_READ", True),
        ("SQLITE_CORRUPT", True),
        ("SQLITE_CORRUPT_INDEX", True),
        ("SQLITE_NOTADB", True),
        ("SQLITE_IOERR_WRITE", False),
        ("SQLITE_IOERR_SHMSIZE", False),
        ("SQLITE_IOERR_NOMEM", False),
        ("SQLITE_FULL", False),
        ("SQLITE_BUSY", False),
        ("SQLITE_LOCKED", False),
        ("SQLITE_ERROR", False),
    ],
)
async def test_what_sqlite_calls_operational_may_be_damage(
    file: SqliteFile, way: str, name: str, is_damage: bool
) -> None:
    await file.write(add)
    assert not await is_found_damaged(file)
    with pytest.raises(Unavailable, match="as told"):
        await getattr(file, way)(fails(name))
    assert await is_found_damaged(file) == is_damage
    if is_damage:
        with pytest.raises(Unavailable, match="damaged"):
            await file.read(count)
    await file.open()
    assert not await is_found_damaged(file)
    assert await file.read(count) == (0 if is_damage else 1)


@pytest.mark.parametrize("endings", [("", "-wal"), ("",), ("-wal",)], ids=["both", "file", "log"])
async def test_a_reader_that_finds_the_file_cut_off_tells_it(path: Path, file: SqliteFile, endings: list[str]) -> None:
    """Nobody writes. Whoever waits to hear of damage opens it again"""
    waiting = asyncio.create_task(file.damaged())
    for number in range(3000):
        await file.write(lambda each, name=f"{number:0100}": add(each, name))  # type: ignore[misc]
    for ending in endings:
        path.with_name(path.name + ending).write_bytes(b"")
    assert not waiting.done()
    with pytest.raises(Unavailable, match="damaged"):
        await file.read(count)
    await asyncio.wait_for(waiting, 60)
    assert await file.open() == Mark()
    assert await file.read(count) == 0


async def test_a_mark_begins_with_the_columns_of_its_layout(file: SqliteFile) -> None:
    row = await file.read(lambda each: each.execute("SELECT epoch, revision, note, size FROM mark").fetchone())
    assert row == ("", 0, None, 7)


@pytest.mark.parametrize(
    "finds",
    [
        lambda _: "it is of no use",
        lambda each: each.execute("SELECT 1 FROM nowhere"),
        lambda each: each.execute("SELECT 1 FROM things WHERE false").fetchone()[0],
    ],
    ids=["told", "no such table", "no such row"],
)
async def test_a_sound_file_with_a_problem_of_its_own_is_built_anew(
    path: Path, file: SqliteFile, finds: object
) -> None:
    await file.write(lambda each: move_mark(each, Mark("e", 9)))
    await file.write(add)
    await file.close()
    picky = SqliteFile(path, LAYOUT, finds)  # type: ignore[arg-type]
    assert await picky.open() == Mark()
    assert await picky.read(count) == 0
    await picky.close()


@pytest.mark.parametrize(("clean", "mark"), [(0, Mark()), (1, Mark("e", 9))], ids=["unclean", "clean"])
async def test_every_page_is_looked_at_after_an_unclean_end_alone(
    path: Path, file: SqliteFile, clean: int, mark: Mark
) -> None:
    """The mark and the list of tables can be read all the same"""
    await file.write(lambda each: move_mark(each, Mark("e", 9)))
    await file.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE mark SET clean = ?", (clean,))
        (number,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'things'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as data:
        data.seek((number - 1) * size)
        data.write(b"\xff" * size)
    assert await file.open() == mark


async def test_an_opening_that_is_given_up_leaves_nothing_open(path: Path, file: SqliteFile) -> None:
    """Whoever stops meanwhile closes what has not been handed out yet"""
    await file.write(add)
    await file.close()
    is_opening, may_go_on = threading.Event(), threading.Event()

    def takes_long(_: sqlite3.Connection) -> None:
        is_opening.set()
        assert may_go_on.wait(100)

    slow = SqliteFile(path, LAYOUT, takes_long)
    opening = asyncio.create_task(slow.open())
    assert await asyncio.to_thread(is_opening.wait, 60)
    while not opening.done():  # more than once: the later ones find it closing
        opening.cancel()
        await asyncio.wait({opening}, timeout=0.01)
    assert opening.cancelled()
    with pytest.raises(Unavailable, match="closed"):
        await slow.read(count)
    may_go_on.set()
    await slow.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(LAYOUT.name)] == []
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT clean FROM mark").fetchone() == (1,)
    connection.close()
    assert await slow.open() == Mark()
    assert await slow.read(count) == 1
    await slow.close()
