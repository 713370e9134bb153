"""The index in SQLite: which way every list is read, and what it remembers of places."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.index import feed, ids, opened
from contracts.index_walks import World
from contracts.runs import NOW, a_run
from pyoco_server.core.states import RunState
from pyoco_server.ports.index import sqlite_counts, sqlite_feed, sqlite_query
from pyoco_server.ports.index.port import ListPosition, Mark, RunFilter
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.runs.port import Stored
from support.grid.shown_programs import a_program

FILTERS = {
    "tenant_id": "t",
    "status": "FAILED",
    "flow": "f",
    "tag": "a",
    "kind": "exec",
    "workflow_yaml_sha256": "s",
    "updated_after": NOW,
    "updated_before": NOW + 1,
    "search": "hello ab12cd",
}
PLACES = {
    "the first page": None,
    "a place": ListPosition(9, NOW, "x"),
    "a place from before": ListPosition(1, NOW, "x"),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a few runs in it."""
    path = tmp_path_factory.mktemp("filled") / "index.db"
    asyncio.run(_fill(path))
    return path


async def _fill(path: Path) -> None:
    async with opened(SqliteIndex(path)) as index:
        await feed(
            index, *(Stored(a_run(tenant_id=tenant, tags=("x",)), n + 1) for n, tenant in enumerate([None, "t"]))
        )
        await index.apply((), Mark("e", 5))
        await index.mark_complete()
        await feed(index, *(Stored(a_run(), n + 6) for n in range(3)))


@pytest.fixture
def connection(filled: Path, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """To a copy of it."""
    connection = sqlite3.connect(shutil.copy(filled, tmp_path), isolation_level=None)
    yield connection
    connection.close()


def plans(connection: sqlite3.Connection, ask: Any) -> Iterator[tuple[str, list[str]]]:
    """Each question that was asked, and how it is answered. The full-text index asks some of its own."""
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    ask()
    connection.set_trace_callback(None)
    for text in asked:
        if text.lstrip().startswith(("SELECT", "WITH", "INSERT", "DELETE")) and "'main'.'search_" not in text:
            yield text, [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]


#: Walked from its newer end until the page is full; a few rows at most; or no table of runs at all.
FINE = (
    "SCAN r USING COVERING INDEX runs_all",
    "SCAN r USING INDEX runs_all",
    "SCAN CONSTANT ROW",
    "SCAN mark",
    "SCAN k",
    "SCAN longest",
    "SCAN some",
    "SCAN (subquery",
    "SCAN json_each",
    "SCAN value VIRTUAL TABLE",
    "SCAN search VIRTUAL TABLE",  # by its own index: from the newest match on
)


class TestPlans:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("count", range(len(FILTERS) + 1))
    @pytest.mark.parametrize("tenants_max", [0, 4], ids=["of many tenants", "of few tenants"])
    @pytest.mark.parametrize("sort_max", [1, 2000], ids=["after many moves", "after few moves"])
    def test_every_list_is_read_in_order_from_an_index(
        self,
        connection: sqlite3.Connection,
        monkeypatch: pytest.MonkeyPatch,
        count: int,
        place: str,
        tenants_max: int,
        sort_max: int,
    ) -> None:
        monkeypatch.setattr(sqlite_query, "_TENANTS_MAX", tenants_max)
        monkeypatch.setattr(sqlite_query, "_SORT_MAX", sort_max)
        for names in itertools.combinations(FILTERS, count):
            wanted = RunFilter(**{name: FILTERS[name] for name in names})  # type: ignore[arg-type]  # by its name
            for text, plan in plans(
                connection, lambda wanted=wanted: sqlite_query.page(connection, wanted, 50, PLACES[place])
            ):
                scans = [step for step in plan if step.startswith("SCAN") and not step.startswith(FINE)]
                assert scans == [], (text, plan)
                sorts = [step for step in plan if "TEMP B-TREE" in step]
                # Few moves are sorted, and what a search has found; everything else is in order already.
                assert len(sorts) <= ("NOT INDEXED" in text) + ("json_each(" in text), (text, plan)

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("probe_max", [0, 2000], ids=["many begin so", "few begin so"])
    @pytest.mark.parametrize("tenants_max", [0, 4], ids=["of many tenants", "of few tenants"])
    def test_a_run_id_that_begins_so_leads_when_few_do(
        self,
        connection: sqlite3.Connection,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
        probe_max: int,
        tenants_max: int,
    ) -> None:
        """Those few are found by the primary key and sorted, whatever else is asked; otherwise the others lead."""
        monkeypatch.setattr(sqlite_query, "_TENANTS_MAX", tenants_max)
        monkeypatch.setattr(sqlite_query, "_PROBE_MAX", probe_max)
        for names in itertools.chain.from_iterable(itertools.combinations(FILTERS, count) for count in range(4)):
            given: dict[str, Any] = {name: FILTERS[name] for name in names}
            wanted = RunFilter(run_id_prefix="ab", **given)
            for text, plan in plans(
                connection, lambda wanted=wanted: sqlite_query.page(connection, wanted, 50, PLACES[place])
            ):
                scans = [step for step in plan if step.startswith("SCAN") and not step.startswith(FINE)]
                assert scans == [], (text, plan)
                if "group_concat" in text:  # the page, after what is looked up for it
                    by_id = plan.count("SEARCH r USING PRIMARY KEY (run_id>? AND run_id<?)")
                    assert by_id == (probe_max > 0), (text, plan)
                    sorts = [step for step in plan if "TEMP B-TREE" in step]
                    assert len(sorts) <= by_id + ("NOT INDEXED" in text) + ("json_each(" in text), (text, plan)

    def test_one_filter_with_tenant_and_status_is_one_walk(self, connection: sqlite3.Connection) -> None:
        for name in ("flow", "workflow_yaml_sha256", "kind"):
            wanted = RunFilter(tenant_id="t", status="FAILED", **{name: FILTERS[name]})  # type: ignore[arg-type]
            place = ListPosition(9, NOW, "x")
            *_, (_, plan) = plans(connection, lambda: sqlite_query.page(connection, wanted, 50, place))  # noqa: B023
            assert any("tenant_id=? AND" in step and "status=? AND (at,run_id)<(?,?)" in step for step in plan), plan

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("own", [{"job_id": "j"}, {"client_id": "c"}, {"group": "g"}], ids=str)
    def test_lists_of_programs_are_read_in_order_from_an_index(
        self, connection: sqlite3.Connection, own: dict[str, Any], place: str
    ) -> None:
        for names in itertools.chain.from_iterable(itertools.combinations(FILTERS, count) for count in range(3)):
            given: dict[str, Any] = own | {name: FILTERS[name] for name in names}
            wanted = RunFilter(**given)
            for text, plan in plans(
                connection, lambda wanted=wanted: sqlite_query.page(connection, wanted, 50, PLACES[place])
            ):
                assert not [step for step in plan if step.startswith("SCAN") and not step.startswith(FINE)], plan
                assert len([step for step in plan if "TEMP B-TREE" in step]) <= ("NOT INDEXED" in text) + (
                    "json_each(" in text
                ), (text, plan)

    @pytest.mark.parametrize("status", ["RUNNING", None])
    @pytest.mark.parametrize("place", PLACES)
    def test_a_group_of_many_tenants_is_read_by_an_index_of_its_own(
        self, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, place: str, status: str | None
    ) -> None:
        """GRID-172: an operator looks at everybody's"""
        monkeypatch.setattr(sqlite_query, "_TENANTS_MAX", 0)
        wanted = RunFilter(group="g", status=status)
        *_, (text, plan) = plans(connection, lambda: sqlite_query.page(connection, wanted, 50, PLACES[place]))
        walks = [step for step in plan if "groups_all (grp=? AND status=?" in step]
        assert len(walks) == (1 if status else len(RunState) + 1), plan  # and UNKNOWN
        assert not [step for step in plan if "runs_all" in step or "runs_status" in step], plan
        assert len([step for step in plan if "TEMP B-TREE" in step]) <= ("NOT INDEXED" in text) + (
            "json_each(" in text
        ), (text, plan)
        asked = list(plans(connection, lambda: sqlite_query.group_seconds(connection, "", "g", 10)))
        assert sum("groups_all (grp=? AND status=?" in step for _, plan in asked for step in plan) == 2, asked

    def test_counts_and_what_is_ahead_need_no_look_at_the_runs(self, connection: sqlite3.Connection) -> None:
        for ask in (
            lambda: sqlite_counts.counts(connection),
            lambda: sqlite_counts.ahead(connection, "default", NOW, "x", 10),
            lambda: sqlite_counts.packs_ahead(connection, NOW, "x", 10),
            lambda: sqlite_counts.unfinished(connection, 0.0, NOW, 10),
            lambda: sqlite_counts.open_programs(connection, 0.0, NOW, 10),
            lambda: sqlite_counts.programs_ahead(connection, a_program(), 10),
            lambda: sqlite_counts.programs(connection),
        ):
            for text, plan in plans(connection, ask):
                assert not [step for step in plan if step.startswith("SCAN") and not step.startswith(FINE)], (
                    text,
                    plan,
                )
                # Whose run the first of those ahead is, is looked up: one row.
                reads = [step for step in plan if "SEARCH runs" in step and "USING COVERING INDEX" not in step]
                assert len(reads) <= text.count("SELECT tenant_id"), (text, plan)

    def test_quiet_runs_are_one_walk_in_their_order(self, connection: sqlite3.Connection) -> None:
        """Each one that is told is looked at, and no other"""
        for tenant_id, prefix in (("", "runs_status (status=?"), ("t", "runs_tenant (tenant_id=? AND status=?")):
            [(_, plan)] = plans(connection, lambda: sqlite_counts.quiet(connection, tenant_id, NOW, 10))  # noqa: B023
            assert plan == [f"SEARCH runs USING INDEX {prefix} AND at<?)"], plan

    def test_changes_find_their_rows_by_key(self, connection: sqlite3.Connection) -> None:
        run = a_run(tags=("x", "y"))

        def change() -> None:
            for revision in (20, 21, 22):
                sqlite_feed.apply(connection, [Stored(run, revision)], Mark("e", revision), NOW)

        for text, plan in plans(connection, change):
            assert not [step for step in plan if step.startswith("SCAN") and not step.startswith(FINE)], (text, plan)
            for step in plan:
                if step.startswith("SEARCH labels"):
                    assert "at=? AND run_id=?" in step, (text, plan)


class TestRareFilters:
    @pytest.mark.parametrize("tag", ["a", "x"], ids=["routing tag", "label"])
    async def test_the_rarest_filter_leads(self, tmp_path: Path, tag: str) -> None:
        """A few runs of a flow among many of a tag, and the other way round: as few rows are looked at."""
        runs = [a_run(flow_name="many", tag=tag if tag == "a" else "b", tags=("x",)) for _ in range(6000)]
        runs += [a_run(flow_name="few", tag=tag if tag == "a" else "b", tags=("x",)) for _ in range(3)]
        runs += [a_run(flow_name="many", tag="rare", tags=()) for _ in range(3)]
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
            connection = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
            steps = 0

            def step() -> None:
                nonlocal steps
                steps += 1

            connection.set_progress_handler(step, 100)
            for wanted in (RunFilter(flow="few", tag=tag), RunFilter(flow="many", tag="rare")):
                steps = 0
                assert len(sqlite_query.page(connection, wanted, 50, None).items) == 3
                assert steps < 400, "in hundreds; to count a filter that fits many takes most of it"
            connection.close()


class TestInstants:
    async def test_are_exact_to_the_last_bit(self, tmp_path: Path) -> None:
        """SQLite's JSON has fifteen digits. FLOW-109"""
        dice = random.Random(1)
        runs = [
            a_run(
                updated_at=NOW + dice.random(),
                submitted_at=NOW + dice.random(),
                heartbeat_at=NOW + dice.random(),
                start_time=dice.random(),
                end_time=dice.choice([None, 5e-324, 1.7976931348623157e308, NOW + dice.random()]),
            )
            for _ in range(500)
        ]
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
            lines = {line.run_id: line for line in (await index.page(RunFilter(), 500)).items}
        names = ("updated_at", "submitted_at", "heartbeat_at", "start_time", "end_time")
        for run in runs:
            assert [getattr(lines[run.run_id], name) for name in names] == [getattr(run, name) for name in names]

    async def test_a_labelled_run_with_many_digits_is_found_once_after_each_change(self, tmp_path: Path) -> None:
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            run = a_run(updated_at=NOW + 0.1234567, tags=("x", "日本", "\0"))
            for revision in range(1, 6):
                await feed(index, Stored(replace(run, updated_at=NOW + 0.1234567 * revision), revision))
            for label in run.tags:
                assert await ids(index, tag=label) == [run.run_id]
            await feed(index, Stored(replace(run, tags=()), 9))
            for label in run.tags:
                assert await ids(index, tag=label) == []
        with sqlite3.connect(tmp_path / "index.db") as connection:
            assert connection.execute("SELECT count(*) FROM labels").fetchone() == (0,)
        connection.close()


class TestMoves:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_feed, "MOVES_MAX", 40)

    async def test_only_so_many_are_remembered(self, tmp_path: Path) -> None:
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            await index.mark_complete()
            world = World(index, random.Random(3))
            for _ in range(60):
                await world.change(7)
        with sqlite3.connect(tmp_path / "index.db") as connection:
            (number,) = connection.execute("SELECT count(*) FROM moves").fetchone()
            assert 40 <= number <= 50
            floor, kept = connection.execute("SELECT floor, moves FROM mark").fetchone()
            assert kept == number
            assert connection.execute("SELECT count(*) FROM moves WHERE rev <= ?", (floor,)).fetchone() == (0,)
        connection.close()

    async def test_a_walk_older_than_they_are_goes_on_as_well_as_it_can(self, tmp_path: Path) -> None:
        """FLOW-111: what stayed as it was is shown once, whatever else happened; nothing fails."""
        dice = random.Random(4)
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            await index.mark_complete()
            still = [a_run(updated_at=NOW - 1000 + n) for n in range(50)]
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate(still)))
            world = World(index, dice, revision=50)
            page = await index.page(RunFilter(), 3)
            seen = [line.run_id for line in page.items]
            while page.next is not None:
                await world.change(9)
                page = await index.page(RunFilter(), 3, page.next)
                seen += [line.run_id for line in page.items]
        assert len(seen) == len(set(seen))
        assert {run.run_id for run in still} <= set(seen)

    async def test_a_walk_older_than_they_are_goes_by_the_places_of_now(self, tmp_path: Path) -> None:
        """FLOW-111: everything below the position is shown, whenever it was written."""
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            await index.mark_complete()
            runs = [a_run(updated_at=NOW + n) for n in range(6)]
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
            first = await index.page(RunFilter(), 3)
            # By a clock that is behind: changed, and still below.
            await feed(index, Stored(replace(runs[1], updated_at=NOW + 0.5, flow_name="changed"), 7))
            busy = a_run(updated_at=NOW + 90)
            for revision in range(8, 80):
                await feed(index, Stored(replace(busy, updated_at=NOW + 90 + revision), revision))
            rest = (await index.page(RunFilter(), 9, first.next)).items
        assert [line.run_id for line in rest] == [runs[n].run_id for n in (2, 1, 0)]

    async def test_none_are_written_while_the_index_is_being_built(self, tmp_path: Path) -> None:
        async with opened(SqliteIndex(tmp_path / "index.db")) as index:
            world = World(index, random.Random(5))
            for _ in range(20):
                await world.change(7)
        with sqlite3.connect(tmp_path / "index.db") as connection:
            assert connection.execute("SELECT count(*) FROM moves").fetchone() == (0,)
        connection.close()


class TestAge:
    @pytest.mark.parametrize(
        ("hours", "is_kept"), [(0, True), (19, True), (21, False), (-21, False), (24 * 365, False)]
    )
    async def test_an_index_that_was_away_for_a_day_is_built_anew(
        self, tmp_path: Path, hours: float, is_kept: bool
    ) -> None:
        """Markers of expired runs live for a day: later, nobody says that they are gone. FLOW-112"""
        async with opened(SqliteIndex(tmp_path / "index.db", lambda: NOW)) as index:
            await feed(index, Stored(a_run(), 41))
        index = SqliteIndex(tmp_path / "index.db", lambda: NOW + hours * 3600)
        assert await index.open() == (Mark("e", 41) if is_kept else Mark())
        assert len(await ids(index)) == is_kept
        await index.close()


async def test_a_run_takes_little_room(tmp_path: Path) -> None:
    """A million runs fit in 800 MB of disk, with the index of their words."""
    async with opened(SqliteIndex(tmp_path / "index.db")) as index:
        for start in range(0, 20_000, 5000):
            items = tuple(
                Stored(a_run(updated_at=NOW + n, status=RunState.COMPLETED, worker_id="w", start_time=NOW), n + 1)
                for n in range(start, start + 5000)
            )
            await index.apply(items, Mark("e", start + 5000))
    assert (tmp_path / "index.db").stat().st_size / 20_000 < 800
