"""What every store of runs promises."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import replace

import pytest

from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Failed, Progress
from pyoco_server.core.run import Owner, Run
from pyoco_server.errors import SnapshotTooLargeError
from pyoco_server.ports.runs.port import ABSENT, LOST, Changes, Removed, Runs, Stored, Withdrawn

__all__ = ["NOW", "RunsContract", "a_run", "stored"]

NOW = 1_700_000_000.0
ANNA = Owner("anna", "a1")
BERT = Owner("bert", "b1")
#: What the adapter's fixture has to set as the cap of a snapshot.
SNAPSHOT_BYTES_MAX = 4096


def a_run(**more: object) -> Run:
    run = Run(
        run_id=str(uuid.uuid4()), flow_name="flow", tag="default", submitted_at=NOW, updated_at=NOW, heartbeat_at=NOW
    )
    return replace(run, **more)  # type: ignore[arg-type]  # any of its fields


async def stored(runs: Runs, run: Run | None = None) -> Stored:
    made = await runs.create(run or a_run())
    assert isinstance(made, Stored)
    return made


async def changes_until(runs: Runs, count: int, after: int = 0, epoch: str = "") -> list[Changes]:
    """Batches of changes, until there are `count` items and the store says that this is all."""
    seen: list[Changes] = []
    async with asyncio.timeout(200), aclosing(runs.changes(after, epoch)) as batches:
        async for batch in batches:
            seen.append(batch)
            if batch.caught_up and sum(len(each.items) for each in seen) >= count:
                break
    return seen


class RunsContract:
    """An adapter passes all of it or does not ship."""

    async def test_what_was_created_is_found(self, runs: Runs) -> None:
        run = a_run(params={"n": 1, "text": "日本語"}, tags=("x", "y"), tenant_id="t")
        made = await stored(runs, run)
        assert made.run == run
        assert await runs.find(run.run_id) == made

    async def test_a_run_that_never_was_is_absent(self, runs: Runs) -> None:
        found = await runs.find(str(uuid.uuid4()))
        assert found is ABSENT
        assert found.revision == 0

    async def test_an_id_is_taken_once_and_the_first_stays(self, runs: Runs) -> None:
        made = await stored(runs)
        assert await runs.create(replace(made.run, flow_name="other")) is LOST
        assert await runs.find(made.run.run_id) == made

    async def test_of_two_writers_at_one_revision_one_loses(self, runs: Runs) -> None:
        """FLOW-178"""
        made = await stored(runs)
        won = await runs.replace(claim(made.run, ANNA, "1", NOW), made.revision)
        assert isinstance(won, Stored)
        assert won.revision > made.revision
        assert await runs.replace(claim(made.run, BERT, "2", NOW), made.revision) is LOST
        assert await runs.find(made.run.run_id) == won

    async def test_of_ten_writers_at_once_one_wins(self, runs: Runs) -> None:
        """FLOW-178"""
        made = await stored(runs)
        claims = [claim(made.run, Owner(f"w{n}", ""), str(n), NOW) for n in range(10)]
        answers = await asyncio.gather(*(runs.replace(each, made.revision) for each in claims))
        winners = [answer for answer in answers if isinstance(answer, Stored)]
        assert len(winners) == 1
        assert await runs.find(made.run.run_id) == winners[0]

    async def test_of_ten_creators_at_once_one_wins(self, runs: Runs) -> None:
        runs_of_one_id = [a_run(run_id=str(uuid.UUID(int=7)), flow_name=f"f{n}") for n in range(10)]
        answers = await asyncio.gather(*map(runs.create, runs_of_one_id))
        assert sum(isinstance(answer, Stored) for answer in answers) == 1

    async def test_a_withdrawn_run_is_told_from_one_that_never_was(self, runs: Runs) -> None:
        """FLOW-310"""
        made = await stored(runs)
        assert await runs.withdraw(made.run.run_id, made.revision)
        found = await runs.find(made.run.run_id)
        assert isinstance(found, Withdrawn)
        assert found.revision > made.revision

    async def test_a_run_that_was_touched_is_not_withdrawn(self, runs: Runs) -> None:
        made = await stored(runs)
        touched = await runs.replace(claim(made.run, ANNA, "1", NOW), made.revision)
        assert not await runs.withdraw(made.run.run_id, made.revision)
        assert await runs.find(made.run.run_id) == touched

    async def test_a_withdrawn_id_is_taken(self, runs: Runs) -> None:
        made = await stored(runs)
        await runs.withdraw(made.run.run_id, made.revision)
        assert await runs.create(made.run) is LOST

    async def test_a_run_above_its_cap_is_refused_and_nothing_is_written(self, runs: Runs) -> None:
        """FLOW-361"""
        big = a_run(params={"big": "x" * SNAPSHOT_BYTES_MAX})
        with pytest.raises(SnapshotTooLargeError):
            await runs.create(big)
        assert await runs.find(big.run_id) is ABSENT

    async def test_whether_a_run_can_be_created_is_known_before(self, runs: Runs) -> None:
        """FLOW-71: to the byte, and without a trace"""
        refused = []
        for size in range(SNAPSHOT_BYTES_MAX):
            run = a_run(params={"x": "x" * size})
            try:
                runs.check_size(run)
            except SnapshotTooLargeError:
                refused.append(size)
        largest = refused[0] - 1
        assert refused == list(range(refused[0], SNAPSHOT_BYTES_MAX))
        with pytest.raises(SnapshotTooLargeError):
            await runs.create(a_run(params={"x": "x" * refused[0]}))
        await stored(runs, a_run(params={"x": "x" * largest}))

    async def test_task_records_make_room_before_a_run_is_refused(self, runs: Runs) -> None:
        """FLOW-360"""
        made = await stored(runs, a_run(task_records={"t": {"output": "x" * SNAPSHOT_BYTES_MAX}}))
        found = await runs.find(made.run.run_id)
        assert isinstance(found, Stored)
        assert found.run.task_records_truncated

    async def test_the_smallest_form_keeps_the_status_of_a_run_that_fits_in_no_other_way(self, runs: Runs) -> None:
        """FLOW-363"""
        made = await stored(runs)
        running = claim(made.run, ANNA, "1", NOW)
        tasks = {f"task {n}": "SUCCEEDED" for n in range(500)}
        ended = conclude(running, Failed(message="why", progress=Progress(tasks=tasks)), NOW)
        with pytest.raises(SnapshotTooLargeError):
            await runs.replace(ended, made.revision)
        written = await runs.replace_smallest(ended, made.revision)
        assert isinstance(written, Stored)
        assert written.run.status == "FAILED"
        assert "why" in (written.run.error or "")
        assert await runs.find(made.run.run_id) == written

    async def test_the_newest_revision_is_that_of_the_last_write_of_any_run(self, runs: Runs) -> None:
        assert await runs.newest() == 0
        first, second = await stored(runs), await stored(runs)
        assert await runs.newest() == second.revision
        claimed = await runs.replace(claim(first.run, ANNA, "1", NOW), first.revision)
        assert isinstance(claimed, Stored)
        assert await runs.newest() == claimed.revision
        await runs.withdraw(second.run.run_id, second.revision)
        assert await runs.newest() > claimed.revision

    async def test_an_empty_store_is_caught_up_at_once(self, runs: Runs) -> None:
        assert [batch.items for batch in await changes_until(runs, 0)] == [()]

    async def test_changes_tell_the_newest_state_of_every_run(self, runs: Runs) -> None:
        made = [await stored(runs) for _ in range(5)]
        newest = await runs.replace(claim(made[0].run, ANNA, "1", NOW), made[0].revision)
        await runs.withdraw(made[1].run.run_id, made[1].revision)
        batches = await changes_until(runs, 5)
        items = [item for batch in batches for item in batch.items]
        assert items[:3] == made[2:]
        assert items[3] == newest
        assert isinstance(items[4], Removed)
        assert items[4].run_id == made[1].run.run_id
        assert batches[-1].caught_up

    async def test_each_change_shows_before_the_next_is_made(self, runs: Runs) -> None:
        async with aclosing(runs.changes()) as batches, asyncio.timeout(200):
            await anext(batches)
            for _ in range(3):
                made = await stored(runs)
                assert (await anext(batches)).items == (made,)
                assert await runs.withdraw(made.run.run_id, made.revision)
                items = (await anext(batches)).items
                assert isinstance(items[0], Removed)

    async def test_changes_go_on_after_a_revision(self, runs: Runs) -> None:
        first, second = await stored(runs), await stored(runs)
        (*_, last) = await changes_until(runs, 2)
        third = await stored(runs)
        again = await changes_until(runs, 1, after=second.revision, epoch=last.epoch)
        assert [item for batch in again for item in batch.items] == [third]
        assert first.revision < second.revision < third.revision

    async def test_changes_of_another_store_begin_at_the_beginning(self, runs: Runs) -> None:
        made = await stored(runs)
        again = await changes_until(runs, 1, after=made.revision + 100, epoch="another store")
        assert [item for batch in again for item in batch.items] == [made]
