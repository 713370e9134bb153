"""The index of dead letters in SQLite: the contract, its indexes, and files that are of no use."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.dead_letter_index import LetterIndexContract, MakeLetterIndex, changes, letter_ids, opened, some_letters
from contracts.dead_letters import a_letter
from pyoco_server.errors import Unavailable
from pyoco_server.ports.dead_letters import sqlite_query
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, StoredDeadLetter
from pyoco_server.ports.dead_letters.sqlite import SqliteDeadLetterIndex
from pyoco_server.ports.index.port import Mark


class TestSqliteLetterIndex(LetterIndexContract):
    @pytest.fixture
    def make_index(self, tmp_path: Path) -> MakeLetterIndex:
        return lambda: SqliteDeadLetterIndex(tmp_path / "not there yet" / "letters.db")


FILTERS = {"tenant_id": "t", "reason": "timeout", "flow": "f", "tag": "a", "run_id": "r"}
FILTERS |= {"client_id": "c", "group": "g"}


async def test_every_list_is_read_in_order_from_an_index(tmp_path: Path) -> None:
    async with opened(SqliteDeadLetterIndex(tmp_path / "letters.db")):
        with sqlite3.connect(tmp_path / "letters.db") as connection:
            for count in range(len(FILTERS) + 1):
                for names in itertools.combinations(FILTERS, count):
                    query, values = sqlite_query._query(DeadLetterFilter(**{name: FILTERS[name] for name in names}))
                    values |= {"before": 9, "limit": 50}
                    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
                    scans = [step for step in plan if step.startswith("SCAN") and "subquery" not in step]
                    assert scans == [], (names, plan)
                    # The page of a search by label alone is put in order once more: limit rows.
                    by_label = "tag" in names and not {"reason", "flow", "run_id", "client_id", "group"} & set(names)
                    assert by_label or not any("TEMP B-TREE" in step for step in plan), (names, plan)
                    assert not any("AUTOMATIC" in step for step in plan), (names, plan)
        connection.close()


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("reason",), "letters_reason (reason=? AND rowid<?)"),
        (("flow",), "letters_flow (flow_name=? AND rowid<?)"),
        (("reason", "flow"), "letters_reason_flow (reason=? AND flow_name=? AND rowid<?)"),
        (("tenant_id",), "letters_tenant (tenant_id=? AND rowid<?)"),
        (("tenant_id", "reason"), "letters_tenant_reason (tenant_id=? AND reason=? AND rowid<?)"),
        (("tenant_id", "flow"), "letters_tenant_flow (tenant_id=? AND flow_name=? AND rowid<?)"),
        (
            ("tenant_id", "reason", "flow"),
            "letters_tenant_reason_flow (tenant_id=? AND reason=? AND flow_name=? AND rowid<?)",
        ),
        (("client_id",), "letters_client (client_id=? AND rowid<?)"),
        (("group",), "letters_group (grp=? AND rowid<?)"),
        (("tenant_id", "group"), "letters_tenant_group (tenant_id=? AND grp=? AND rowid<?)"),
        (
            ("tenant_id", "reason", "client_id", "group"),
            "letters_tenant_client (tenant_id=? AND client_id=? AND rowid<?)",
        ),
        (("reason", "group"), "letters_reason (reason=? AND rowid<?)"),
        (tuple(FILTERS), "letters_run (run_id=? AND rowid<?)"),
    ],
)
async def test_each_filter_is_answered_by_its_own_index(tmp_path: Path, names: tuple[str, ...], index: str) -> None:
    async with opened(SqliteDeadLetterIndex(tmp_path / "letters.db")):
        with sqlite3.connect(tmp_path / "letters.db") as connection:
            query, values = sqlite_query._query(DeadLetterFilter(**{name: FILTERS[name] for name in names}))
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", values | {"before": 9, "limit": 50}).fetchall()
            assert plan[0][3] == f"SEARCH letters USING INDEX {index}"
        connection.close()


async def test_pages_and_counts_of_many_letters_are_quick(tmp_path: Path) -> None:
    async with opened(SqliteDeadLetterIndex(tmp_path / "letters.db")) as index:
        for start in range(0, 20_000, 2000):
            await index.apply(
                changes(
                    *(
                        StoredDeadLetter(
                            n + 1, a_letter(tag=f"t{n % 5}", flow_name=f"f{n % 50}", tenant_id=f"u{n % 3}")
                        )
                        for n in range(start, start + 2000)
                    )
                )
            )
        wanted = (
            DeadLetterFilter(),
            DeadLetterFilter(tag="t1"),
            DeadLetterFilter("u1", tag="t1"),
            DeadLetterFilter("u1", "timeout"),
        )
        for each in wanted:
            async with quickly(0.1):
                assert len((await index.page(each, 50)).items) == 50
        async with quickly(0.5):
            assert sum(group.count for group in await index.counts("u1")) == await index.total("u1")


@contextlib.asynccontextmanager
async def quickly(cpu_seconds: float) -> AsyncIterator[None]:
    """Measures the processor time of this process, which does not depend on what else the machine does."""
    began = time.process_time()
    yield
    assert time.process_time() - began < cpu_seconds


class TestAFileOfNoUse:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "letters.db"

    async def filled(self, path: Path) -> None:
        async with opened(SqliteDeadLetterIndex(path)) as index:
            await index.apply(changes(*some_letters(500)))

    def changed(self, path: Path, statement: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    async def is_built_anew(self, path: Path) -> None:
        index = SqliteDeadLetterIndex(path)
        assert await index.open() == Mark()
        assert await letter_ids(index) == []
        await index.apply(changes(*some_letters(3)))
        assert await letter_ids(index) == [3, 2, 1]
        await index.close()

    @pytest.mark.parametrize(
        "statement",
        ["PRAGMA user_version = 99", "DROP TABLE labels", "DROP TABLE mark", "DROP TABLE counts", "DELETE FROM mark"],
    )
    async def test_of_another_make_is_built_anew(self, path: Path, statement: str) -> None:
        await self.filled(path)
        self.changed(path, statement)
        await self.is_built_anew(path)

    @pytest.mark.parametrize("content", [b"", b"something else " * 1000])
    async def test_that_is_no_database_is_built_anew(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        await self.is_built_anew(path)

    async def test_damaged_after_an_unclean_end_is_built_anew(self, path: Path) -> None:
        await self.filled(path)
        self.changed(path, "UPDATE mark SET clean = 0")
        data = bytearray(path.read_bytes())
        for page in range(2, len(data) // 4096):
            data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
        path.write_bytes(data)
        await self.is_built_anew(path)

    async def test_sound_after_an_unclean_end_is_kept(self, path: Path) -> None:
        await self.filled(path)
        self.changed(path, "UPDATE mark SET clean = 0")
        index = SqliteDeadLetterIndex(path)
        assert await index.open() == Mark("e", 500)
        await index.close()

    async def test_damaged_while_in_use_says_so_and_is_built_anew_when_opened_again(self, path: Path) -> None:
        await self.filled(path)
        index = SqliteDeadLetterIndex(path)
        await index.open()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        with pytest.raises(Unavailable):
            await index.page(DeadLetterFilter(), 500)
        assert await index.open() == Mark()
        await index.close()

    async def test_that_a_reader_found_damaged_is_not_written_until_it_is_opened_again(self, path: Path) -> None:
        """Whoever feeds it is the one to open it, and would not notice by itself"""

        def finds_out(_: sqlite3.Connection) -> None:
            raise sqlite3.DatabaseError("malformed")

        await self.filled(path)
        index = SqliteDeadLetterIndex(path)
        await index.open()
        with pytest.raises(Unavailable, match="malformed"):
            await index._file.read(finds_out)
        with pytest.raises(Unavailable, match="damaged"):
            await index.apply(changes())
        assert await index.open() == Mark()
        await index.apply(changes())
        await index.close()

    async def test_with_a_full_disk_is_an_outage_and_not_damaged(self, path: Path) -> None:
        def finds_no_room(_: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        await self.filled(path)
        index = SqliteDeadLetterIndex(path)
        await index.open()
        with pytest.raises(Unavailable, match="full"):
            await index._file.write(finds_no_room)
        assert len(await letter_ids(index)) == 500
        assert await index.open() == Mark("e", 500)
        await index.close()

    async def test_in_a_place_where_nobody_may_write_is_an_outage(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Unavailable):
            await SqliteDeadLetterIndex(tmp_path / "file" / "letters.db").open()


async def test_whoever_asks_while_it_is_opened_or_closed_gets_an_answer_or_is_told(tmp_path: Path) -> None:
    """An outage is what callers know how to answer; a file that is being closed is not a damaged one"""
    index = SqliteDeadLetterIndex(tmp_path / "letters.db")
    await index.open()
    await index.apply(changes(*some_letters(5)))
    stop = False
    answers: set[int] = set()

    async def ask() -> None:
        while not stop:
            try:
                answers.add(len(await letter_ids(index)))
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


async def test_what_was_forgotten_early_is_remembered_no_longer_than_needed(tmp_path: Path) -> None:
    async with opened(SqliteDeadLetterIndex(tmp_path / "letters.db")) as index:
        await index.forget({3, 9})
        await index.apply(changes(*some_letters(5)))
        with sqlite3.connect(tmp_path / "letters.db") as connection:
            assert connection.execute("SELECT letter_id FROM forgotten").fetchall() == [(9,)]
        connection.close()
