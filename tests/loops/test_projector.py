"""Priced runs among all others: the process that changes one projects it, and missing projections are found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.runs import a_run, stored
from pyoco_server.actions.priced.project import show_row
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.priced.projection import version_of
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states import RunState
from pyoco_server.core.states.priced import Money
from pyoco_server.errors import Corrupt, NotStored, Unavailable
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.priced import projector as module
from pyoco_server.loops.priced.projector import ProjectionKeeper, Projector
from pyoco_server.ports.runs.port import ABSENT, Absent, Runs, Stored, Withdrawn
from support.backends import opened_backend
from support.priced.shown_packs import NOW_US, FewRows, a_pack, a_row, completed, expired, started
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def runs(config: NatsBackendConfig) -> AsyncIterator[Runs]:
    async with opened_backend(config) as backend:
        yield backend.runs


class Watched:
    """The same store, which counts what is asked of it and may refuse."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.finds = self.writes = 0
        self.refuses: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        self.finds += 1
        if run_id in self.refuses:
            raise self.refuses[run_id]
        return await self._runs.find(run_id)

    async def replace(self, run: Any, revision: int) -> Any:
        self.writes += 1
        return await self._runs.replace(run, revision)


@contextlib.asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[None]:
    await loop.start()
    try:
        yield
    finally:
        await loop.stop()


async def version_shown(runs: Runs, row: PricedRun) -> int | None:
    found = await runs.find(row.run_id)
    return version_of(found.run) if isinstance(found, Stored) else None


class TestShowing:
    async def test_each_version_takes_the_place_of_the_one_before(self, runs: Runs) -> None:
        row = a_row()
        for each in (row, started(row), completed(started(row))):
            assert await show_row(runs, each)
            assert await version_shown(runs, row) == each.version
            assert not await show_row(runs, each), "there already"

    async def test_an_older_version_never_takes_the_place_of_a_newer_one(self, runs: Runs) -> None:
        row = a_row()
        assert await show_row(runs, completed(started(row)))
        assert not await show_row(runs, started(row))
        found = await runs.find(row.run_id)
        assert isinstance(found, Stored)
        assert found.run.status is RunState.COMPLETED

    async def test_of_many_at_once_the_newest_stays(self, runs: Runs) -> None:
        row = a_row()
        versions = [replace(row, version=number) for number in range(1, 8)]
        await asyncio.gather(*(show_row(runs, each) for each in reversed(versions)))
        assert await version_shown(runs, row) == 7

    async def test_the_end_of_retention_takes_the_record_away_and_nothing_brings_it_back(self, runs: Runs) -> None:
        row = completed(started(a_row()))
        assert await show_row(runs, row)
        assert await show_row(runs, expired(row))
        assert isinstance(await runs.find(row.run_id), Withdrawn)
        for late in (expired(row), row, started(a_row(run_id=row.run_id))):
            assert not await show_row(runs, late)
        assert isinstance(await runs.find(row.run_id), Withdrawn)

    async def test_an_expired_row_that_was_never_shown_leaves_no_trace(self, runs: Runs) -> None:
        row = expired(completed(a_row()))
        assert not await show_row(runs, row)
        assert await runs.find(row.run_id) is ABSENT

    async def test_a_submit_that_may_be_taken_back_is_not_shown(self, runs: Runs) -> None:
        row = a_row(money=Money.NONE, version=0)
        assert not await show_row(runs, row)
        assert await runs.find(row.run_id) is ABSENT

    async def test_a_run_of_another_kind_is_left_alone(self, runs: Runs) -> None:
        flow = await stored(runs, a_run())
        row = a_row(run_id=flow.run.run_id, version=99)
        assert not await show_row(runs, row)
        assert not await show_row(runs, expired(row))
        assert await runs.find(row.run_id) == flow


class TestProjector:
    async def test_what_is_told_is_shown_soon(self, runs: Runs) -> None:
        projector, rows = Projector(runs), [a_row() for _ in range(100)]
        async with running(projector):
            for row in rows:
                projector.show(row)
                projector.show(started(row))
                projector.show(row)  # an older word, late
            await eventually(lambda: _are(runs, rows, 2))

    async def test_only_the_newest_of_several_versions_is_written(self, runs: Runs) -> None:
        watched, row = Watched(runs), a_row()
        projector = Projector(watched)
        for version in range(1, 50):
            projector.show(replace(row, version=version))
        await projector.turn()
        assert (watched.finds, watched.writes) == (1, 1)
        assert await version_shown(runs, row) == 49

    async def test_one_that_cannot_be_shown_does_not_hide_the_others(self, runs: Runs) -> None:
        watched, bad, good = Watched(runs), a_row(), a_row()
        watched.refuses[bad.run_id] = Unavailable("away")
        projector = Projector(watched)
        projector.show(bad)
        projector.show(good)
        await projector.turn()
        assert await version_shown(runs, good) == 1

    async def test_too_many_are_dropped_rather_than_waited_for(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_WAITING_MAX", 3)
        projector, rows = Projector(runs), [a_row() for _ in range(5)]
        for row in rows:
            projector.show(row)
        await projector.turn()
        assert projector.dropped == 2
        assert [await version_shown(runs, row) for row in rows] == [None, None, 1, 1, 1]

    async def test_what_waits_at_the_end_is_shown(self, runs: Runs) -> None:
        projector, row = Projector(runs), a_row()
        async with running(projector):
            projector.show(row)
        assert await version_shown(runs, row) == 1


async def _are(runs: Runs, rows: list[PricedRun], version: int) -> bool:
    return all([await _is(runs, row, version) for row in rows])


async def _is(runs: Runs, row: PricedRun, version: int) -> bool:
    return await version_shown(runs, row) == version


@pytest.fixture
def rows() -> FewRows:
    return FewRows()


class TestKeeper:
    async def test_what_nobody_has_shown_appears_at_the_next_turn(self, rows: FewRows, runs: Runs) -> None:
        """Its turns come every 3 s: within the 10 s that are promised."""
        keeper, row = ProjectionKeeper(rows.ledger, runs, every_seconds=0.05), a_row()
        assert ProjectionKeeper(rows.ledger, runs)._every_seconds <= 3.0
        async with running(keeper):
            rows.put(row)
            await eventually(lambda: _is(runs, row, 1))
            rows.put(started(row))
            await eventually(lambda: _is(runs, row, 2))

    async def test_a_row_that_was_committed_late_is_found(self, rows: FewRows, runs: Runs) -> None:
        """Its instant is before that of another one that has been seen already."""
        keeper = ProjectionKeeper(rows.ledger, runs)
        rows.put(a_row(updated_at=NOW_US))
        await keeper.turn()
        late = a_row(updated_at=NOW_US - 29_000_000)
        rows.put(late)
        await keeper.turn()
        assert await version_shown(runs, late) == 1

    async def test_a_newer_record_is_not_overwritten(self, rows: FewRows, runs: Runs) -> None:
        row = a_row()
        await show_row(runs, started(row))
        rows.put(row)
        await ProjectionKeeper(rows.ledger, runs).turn()
        assert await version_shown(runs, row) == 2

    async def test_a_start_goes_over_all_rows_page_by_page(
        self, rows: FewRows, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ProjectionKeeper, "_PAGE", 10)
        old = [a_row(updated_at=NOW_US - 10**12 + number) for number in range(35)]
        rows.put(*old)
        keeper = ProjectionKeeper(rows.ledger, runs)
        await keeper.turn()
        assert rows.pages == [10, 10, 10, 5]
        assert all([await version_shown(runs, row) == 1 for row in old])
        assert len(keeper._seen) <= 1, "what was long ago need not be remembered"
        rows.pages.clear()
        await keeper.turn()
        assert rows.pages == [0], "and is not looked at again"
        await ProjectionKeeper(rows.ledger, runs).turn()
        assert sum(rows.pages) == 35

    async def test_a_row_is_looked_up_once_for_each_version(self, rows: FewRows, runs: Runs) -> None:
        """Heartbeats move a row's instant, and not its version."""
        watched, row = Watched(runs), started(a_row())
        keeper = ProjectionKeeper(rows.ledger, watched)
        for beat in range(20):
            rows.now_us = NOW_US + beat * 5_000_000
            rows.put(replace(row, updated_at=rows.now_us))
            await keeper.turn()
        assert (watched.finds, watched.writes) == (1, 1)
        assert len(keeper._seen) == 1

    async def test_an_expired_row_is_not_shown_again(self, rows: FewRows, runs: Runs) -> None:
        shown, gone = completed(started(a_row())), expired(completed(started(a_row())))
        await show_row(runs, shown)
        rows.put(expired(shown), gone)
        await ProjectionKeeper(rows.ledger, runs).turn()
        assert isinstance(await runs.find(shown.run_id), Withdrawn)
        assert await runs.find(gone.run_id) is ABSENT

    async def test_a_record_that_has_expired_before_its_row_stays_away(self, rows: FewRows, runs: Runs) -> None:
        old, young, waiting = completed(a_row()), completed(a_row()), a_row()
        old, waiting = (replace(row, updated_at=NOW_US - 61_000_000) for row in (old, waiting))
        rows.put(old, young, waiting)
        await ProjectionKeeper(rows.ledger, runs, runs_retention_seconds=60).turn()
        assert [await version_shown(runs, row) for row in (old, young, waiting)] == [None, 2, 1]

    async def test_one_that_cannot_be_shown_does_not_hide_the_others(self, rows: FewRows, runs: Runs) -> None:
        watched, bad, good = Watched(runs), a_row(), a_row()
        watched.refuses[bad.run_id] = Corrupt("not a run")
        rows.put(bad, good)
        await ProjectionKeeper(rows.ledger, watched).turn()
        assert await version_shown(runs, good) == 1

    async def test_after_an_outage_nothing_is_left_out(self, rows: FewRows, runs: Runs) -> None:
        watched, row = Watched(runs), a_row(updated_at=NOW_US - 10**9)
        watched.refuses[row.run_id] = NotStored("away")
        rows.put(row, a_row())
        keeper = ProjectionKeeper(rows.ledger, watched)
        with pytest.raises(NotStored):
            await keeper.turn()
        watched.refuses.clear()
        await keeper.turn()
        assert await version_shown(runs, row) == 1

    async def test_its_own_record_is_what_a_pack_shows(self, rows: FewRows, runs: Runs) -> None:
        row = a_row()
        rows.put(row)
        await ProjectionKeeper(rows.ledger, runs).turn()
        found = await runs.find(row.run_id)
        assert isinstance(found, Stored)
        assert found.run == a_pack(row)
