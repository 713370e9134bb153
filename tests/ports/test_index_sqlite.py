"""The index in SQLite: the contract, its indexes, and files that are of no use."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from pathlib import Path

import pytest

from contracts.index import IndexContract, MakeIndex, ids, opened
from contracts.runs import NOW, a_run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index import sqlite_query
from pyoco_server.ports.index.port import Mark, RunFilter
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.runs.port import Stored


class TestSqliteIndex(IndexContract):
    @pytest.fixture
    def make_index(self, tmp_path: Path) -> MakeIndex:
        return lambda: SqliteIndex(tmp_path / "not there yet" / "index.db")


FILTERS = {"tenant_id": "t", "status": "FAILED", "flow": "f", "tag": "a", "kind": "flow", "workflow_yaml_sha256": "s"}


@pytest.mark.parametrize("count", [0, 1, 2, 6])
async def test_every_list_is_read_in_order_from_an_index(tmp_path: Path, count: int) -> None:
    async with opened(SqliteIndex(tmp_path / "index.db")):
        with sqlite3.connect(tmp_path / "index.db") as connection:
            for names in itertools.combinations(FILTERS, count):
                query, values = sqlite_query._query(RunFilter(**{name: FILTERS[name] for name in names}), 50)
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
                scans = [step for step in plan if step.startswith("SCAN") and "USING INDEX" not in step]
                # Only the two short lists of a search by label are put together and sorted: 2 * limit rows.
                assert scans in ([], ["SCAN (subquery-3)", "SCAN (subquery-5)"]) or "tag" in names, plan
                assert not any("TEMP B-TREE" in step for step in plan) or "tag" in names, plan
        connection.close()


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
                assert len(await index.page(wanted, 50)) == 50
                took.append(time.perf_counter() - began)
            assert min(took) < 0.02


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

    async def test_in_a_place_where_nobody_may_write_is_an_outage(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Unavailable):
            await SqliteIndex(tmp_path / "file" / "index.db").open()


async def test_the_event_loop_goes_on_while_the_index_writes(tmp_path: Path) -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    items = tuple(Stored(a_run(), n + 1) for n in range(10_000))
    async with opened(SqliteIndex(tmp_path / "index.db")) as index:
        watching = asyncio.create_task(watch())
        began = time.perf_counter()
        await index.apply(items, Mark("e", 10_000))
        took = time.perf_counter() - began
        watching.cancel()
    assert longest < max(0.15, took / 2)
