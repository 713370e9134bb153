"""The index in SQLite: the contract, its indexes, and files that are of no use."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.index import IndexContract, MakeIndex, ids, opened
from contracts.index_counts import IndexCountsContract
from contracts.index_programs import IndexProgramsContract
from contracts.index_repeats import IndexRepeatsContract
from contracts.index_search import IndexSearchContract
from contracts.index_walks import FILTERS, IndexWalksContract, World, walk
from contracts.runs import NOW, a_run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index import sqlite_query, sqlite_search, sqlite_search_feed
from pyoco_server.ports.index.port import Mark, RunFilter
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.runs.port import Stored


@pytest.fixture
def make_index(tmp_path: Path) -> MakeIndex:
    return lambda: SqliteIndex(tmp_path / "not there yet" / "index.db")


@pytest.fixture
def make_other_index(tmp_path: Path) -> MakeIndex:
    return lambda: SqliteIndex(tmp_path / "other.db")


class TestSqliteIndex(IndexContract):
    pass


class TestSqliteIndexRepeats(IndexRepeatsContract):
    pass


class TestSqliteIndexWalks(IndexWalksContract):
    pass


class TestSqliteIndexWalksAfterManyMoves(IndexWalksContract):
    """The same, by the way that is taken when there are too many moves to sort."""

    @pytest.fixture(autouse=True)
    def few_are_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_query, "_SORT_MAX", 1)


class TestSqliteIndexMoreWalks:
    @pytest.mark.parametrize("sort_max", [1, 2000], ids=["after many moves", "after few moves"])
    @pytest.mark.parametrize("seed", range(3, 6))
    @pytest.mark.parametrize("wanted", FILTERS, ids=str)
    async def test_show_the_same_whatever_the_dice_say(
        self,
        make_index: MakeIndex,
        monkeypatch: pytest.MonkeyPatch,
        wanted: dict[str, Any],
        seed: int,
        sort_max: int,
    ) -> None:
        """FLOW-110, FLOW-111"""
        monkeypatch.setattr(sqlite_query, "_SORT_MAX", sort_max)
        await walk(make_index, wanted, seed)


class TestSqliteIndexCounts(IndexCountsContract):
    pass


class TestSqliteIndexPrograms(IndexProgramsContract):
    pass


class TestSqliteIndexSearch(IndexSearchContract):
    @pytest.mark.parametrize(("limit", "value"), [("WORDS_MAX", 0), ("_EXPANSIONS_MAX", 3)])
    async def test_finds_words_by_their_beginning_however_many_begin_so(
        self, make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
    ) -> None:
        monkeypatch.setattr(sqlite_search, limit, value)
        runs = [a_run(params={"word": f"hel{letter}"}, updated_at=NOW + n) for n, letter in enumerate("abcdefgh")]
        async with opened(make_index()) as index:
            await index.apply(tuple(Stored(run, n) for n, run in enumerate(runs, 1)), Mark("e", 8))
            assert await ids(index, search="HEL") == [run.run_id for run in reversed(runs)]

    async def test_keeps_one_document_of_each_run_that_is_not_in_progress(
        self, make_index: MakeIndex, tmp_path: Path
    ) -> None:
        async with opened(make_index()) as index:
            world = World(index, random.Random(3))
            for _ in range(60):
                await world.change(7)
        with sqlite3.connect(tmp_path / "not there yet" / "index.db") as connection:
            connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab(search, 'instance')")
            (text,) = connection.execute("SELECT json_group_array(DISTINCT doc) FROM terms").fetchone()
            documents = connection.execute("SELECT doc, status FROM runs WHERE doc IS NOT NULL").fetchall()
        connection.close()
        assert sorted(json.loads(text)) == sorted(doc for doc, _ in documents)
        ended = [status for _, status in documents if status not in sqlite_search_feed.IN_PROGRESS]
        assert len(ended) == sum(run.status.value not in sqlite_search_feed.IN_PROGRESS for run in world.runs.values())


async def test_a_page_of_many_runs_is_quick(tmp_path: Path) -> None:
    async with opened(SqliteIndex(tmp_path / "index.db")) as index:
        for start in range(0, 20_000, 5000):
            items = tuple(
                Stored(a_run(updated_at=NOW + n, tag=f"t{n % 5}", tags=("x",), status=RunState.COMPLETED), n + 1)
                for n in range(start, start + 5000)
            )
            await index.apply(items, Mark("e", start + 5000))
        for wanted in (RunFilter(), RunFilter(tag="t1"), RunFilter(tag="x"), RunFilter(status="COMPLETED")):
            took = []
            for _ in range(5):
                began = time.perf_counter()
                assert len((await index.page(wanted, 50)).items) == 50
                took.append(time.perf_counter() - began)
            assert min(took) < 0.1


class TestAFileOfNoUse:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "index.db"

    async def filled(self, path: Path) -> None:
        async with opened(SqliteIndex(path)) as index:
            await index.apply(tuple(Stored(a_run(), n + 1) for n in range(500)), Mark("e", 500))

    async def is_built_anew(self, path: Path) -> None:
        index = SqliteIndex(path)
        assert await index.open() == Mark()
        assert await ids(index) == []
        await index.close()

    async def test_of_another_version_is_built_anew(self, path: Path) -> None:
        await self.filled(path)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        await self.is_built_anew(path)

    async def test_that_is_no_database_is_built_anew(self, path: Path) -> None:
        path.write_bytes(b"something else " * 1000)
        await self.is_built_anew(path)

    async def test_without_its_tables_is_built_anew(self, path: Path) -> None:
        await self.filled(path)
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE labels")
        connection.close()
        await self.is_built_anew(path)

    async def test_that_is_empty_is_built_anew(self, path: Path) -> None:
        path.touch()
        await self.is_built_anew(path)

    async def test_damaged_after_an_unclean_end_is_built_anew(self, path: Path) -> None:
        await self.filled(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE mark SET clean = 0")
        connection.close()
        data = bytearray(path.read_bytes())
        for page in range(2, len(data) // 4096):
            data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
        path.write_bytes(data)
        await self.is_built_anew(path)

    async def test_sound_after_an_unclean_end_is_kept(self, path: Path) -> None:
        await self.filled(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE mark SET clean = 0")
        connection.close()
        index = SqliteIndex(path)
        assert await index.open() == Mark("e", 500)
        await index.close()

    async def test_damaged_while_in_use_says_so_and_is_built_anew_when_opened_again(self, path: Path) -> None:
        await self.filled(path)
        index = SqliteIndex(path)
        await index.open()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        with pytest.raises(Unavailable):
            await index.page(RunFilter(), 500)
        assert await index.open() == Mark()
        await index.close()

    async def test_that_a_list_found_damaged_is_not_fed_until_it_is_opened_again(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever feeds it is the one to open it, and would not notice by itself"""

        def finds_out(*_: object) -> None:
            raise sqlite3.DatabaseError("malformed")

        await self.filled(path)
        index = SqliteIndex(path)
        await index.open()
        monkeypatch.setattr(sqlite_query, "page", finds_out)
        with pytest.raises(Unavailable, match="malformed"):
            await ids(index)
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="damaged"):
            await index.apply((), Mark("e", 501))
        assert await index.open() == Mark()
        await index.apply((), Mark("e", 1))
        await index.close()

    async def test_in_a_place_where_nobody_may_write_is_an_outage(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Unavailable):
            await SqliteIndex(tmp_path / "file" / "index.db").open()


async def test_whoever_asks_while_it_is_opened_again_gets_an_answer_or_is_told(tmp_path: Path) -> None:
    """An outage is what callers know how to answer; an index that is being opened has no other excuse"""
    index = SqliteIndex(tmp_path / "index.db")
    await index.open()
    await index.apply(tuple(Stored(a_run(), n + 1) for n in range(5)), Mark("e", 5))
    stop = False
    answers: set[int] = set()

    async def ask() -> None:
        while not stop:
            try:
                answers.add(len(await ids(index)))
                answers.add((await index.counts()).by_status["PENDING"])
            except Unavailable:
                await asyncio.sleep(0.001)  # not at once: whoever spins keeps the threads from opening

    asking = [asyncio.create_task(ask()) for _ in range(5)]
    for _ in range(20):
        assert await index.open() == Mark("e", 5)
        await asyncio.sleep(0.002)
    stop = True
    await asyncio.gather(*asking)
    assert answers == {5}
    await index.close()


async def test_the_event_loop_goes_on_while_the_index_writes(tmp_path: Path) -> None:
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    items = tuple(Stored(a_run(), n + 1) for n in range(10_000))
    async with opened(SqliteIndex(tmp_path / "index.db")) as index:
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await index.apply(items, Mark("e", 10_000))
        watching.cancel()
    assert turns > 5  # written on the loop itself it would be none
