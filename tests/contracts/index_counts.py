"""What every index promises to count."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from contracts.index import MakeIndex, feed, opened
from contracts.index_walks import World
from contracts.runs import NOW, a_run
from pyoco_server.core.flow_moves import claim
from pyoco_server.core.priced.projection import line_of
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.index.port import Ahead, Counts, Index, Mark, RunFilter, Waiting
from pyoco_server.ports.runs.port import Removed, Stored
from support.priced.shown_packs import a_pack

__all__ = ["IndexCountsContract"]


def recount(runs: list[Run]) -> Counts:
    """By looking at all of them."""
    waiting: dict[str, list[Run]] = {}
    packs = [run for run in runs if run.is_pack]
    early = [run.submitted_at for run in packs if run.status is RunState.PENDING]
    for run in runs:
        if run.status is RunState.PENDING and not (run.is_pack or run.is_exec):
            waiting.setdefault(run.tag, []).append(run)
    return Counts(
        by_status=dict(Counter(run.status.value for run in runs)),
        waiting={tag: Waiting(len(some), min(run.submitted_at for run in some)) for tag, some in waiting.items()},
        packs=dict(Counter((run.status.value, run.extra.get("money_state", "")) for run in packs)),
        packs_waiting=Waiting(len(early), min(early)) if early else None,
    )


class IndexCountsContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    async def index(self, make_index: MakeIndex) -> AsyncIterator[Index]:
        async with opened(make_index()) as index:
            yield index

    async def test_an_empty_index_counts_nothing(self, make_index: MakeIndex) -> None:
        async with opened(make_index()) as index:
            assert await index.counts() == Counts({}, {})

    @pytest.mark.parametrize("seed", range(8))
    async def test_counts_are_what_a_recount_finds(self, make_index: MakeIndex, seed: int) -> None:
        """After every change, removal, restart and reset."""
        dice = random.Random(seed)
        index = make_index()
        await index.open()
        world = World(index, dice)
        for turn in range(40):
            await world.change(dice.randrange(1, 10))
            if turn == 10:
                await index.mark_complete()
            if dice.random() < 0.1:
                await index.close()
                index = world.index = make_index()
                await index.open()
            if dice.random() < 0.03:
                await index.reset("e")
                world.runs.clear()
            assert await index.counts() == recount(list(world.runs.values()))
        await index.close()

    async def test_what_is_told_twice_or_too_late_counts_once(self, make_index: MakeIndex) -> None:
        run = a_run(tag="a")
        taken = claim(run, Owner("w", "i"), "1", NOW + 1)
        async with opened(make_index()) as index:
            await feed(index, Stored(run, 1))
            await feed(index, Stored(run, 1))
            await index.apply((Stored(run, 1), Stored(taken, 2)), Mark("e", 2))
            await index.apply((Stored(taken, 2), Stored(run, 1)), Mark("e", 2))
            assert await index.counts() == recount([taken])
            await feed(index, Removed(run.run_id, 3))
            await feed(index, Removed(run.run_id, 4), Removed("never was", 5))
            assert await index.counts() == recount([])
            await feed(index, Stored(run, 6))
            assert await index.counts() == recount([run])

    async def test_odd_records_of_strangers_are_counted(self, make_index: MakeIndex) -> None:
        odd = [
            a_run(run_id="\0", tag="\0", tags=("\0", "x\0y"), flow_name="\0"),
            a_run(tag="\ud800", tags=("\ud800",), error="\ud800"),
            a_run(tag=5, tags=(5, ["x"], {"y": 1}), submitted_at="soon", updated_at=-3.0),
            a_run(run_id="日本", tenant_id=7, kind=None, updated_at=0.0),
            a_run(updated_at=float("nan"), heartbeat_at=float("inf"), end_time=10**400),
        ]
        async with opened(make_index()) as index:
            for turn in range(3):
                await feed(
                    index, *(Stored(replace(run, flow_name=f"f{turn}"), turn * 9 + n + 1) for n, run in enumerate(odd))
                )
                assert (await index.counts()).by_status == {"PENDING": 5}
            await feed(index, *(Removed(run.run_id, 50 + n) for n, run in enumerate(odd)))
            assert await index.counts() == Counts({}, {})

    async def test_the_longest_queues_come_first_and_there_are_at_most_a_thousand(self, make_index: MakeIndex) -> None:
        runs = [a_run(tag=f"t{n}") for n in range(1100)]
        runs += [a_run(tag="t7", submitted_at=NOW - 3), a_run(tag="t7"), a_run(tag="t1050")]
        async with opened(make_index()) as index:
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate(runs)))
            waiting = (await index.counts()).waiting
        assert len(waiting) == 1000
        assert list(waiting.items())[:2] == [("t7", Waiting(3, NOW - 3)), ("t1050", Waiting(2, NOW))]

    async def test_what_is_ahead_is_what_was_submitted_earlier_and_still_waits(self, make_index: MakeIndex) -> None:
        async with opened(make_index()) as index:
            queue = sorted((a_run(submitted_at=NOW + n // 2, tag="q") for n in range(10)), key=_place)
            other = a_run(submitted_at=NOW - 50, tag="other", tags=("q",))
            begun = claim(a_run(submitted_at=NOW - 50, tag="q"), Owner("w", "i"), "1", NOW)
            await feed(index, *(Stored(run, n + 1) for n, run in enumerate([*queue, other, begun])))
            for number, run in enumerate(queue):
                found = await index.ahead("q", run.submitted_at, run.run_id, 100)
                assert found.count == number
                assert (found.oldest and found.oldest.run_id) == (queue[0].run_id if number else None)
            last = queue[-1]
            assert (await index.ahead("q", last.submitted_at, last.run_id, 4)).count == 4
            assert await index.ahead("nobody", NOW + 99, "x", 4) == Ahead(0, None)
            await feed(index, Stored(claim(queue[0], Owner("w", "i"), "1", NOW), 20), Removed(queue[1].run_id, 21))
            found = await index.ahead("q", last.submitted_at, last.run_id, 100)
            assert found.count == 7
            assert found.oldest is not None
            assert found.oldest.run_id == queue[2].run_id
            assert found.oldest.submitted_at == queue[2].submitted_at

    async def test_packs_wait_in_a_queue_of_their_own(self, index: Index) -> None:
        """A flow may have the tag that packs are shown with."""
        packs = sorted((a_pack(submitted_at=NOW + n // 2) for n in range(4)), key=_place)
        flow = a_run(submitted_at=NOW - 50, tag=packs[0].tag)
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate([flow, *packs])))
        counts = await index.counts()
        assert counts.waiting == {flow.tag: Waiting(1, NOW - 50)}
        assert (counts.packs, counts.packs_waiting) == ({("PENDING", "RESERVED"): 4}, Waiting(4, NOW))
        last = packs[-1]
        found = await index.packs_ahead(last.submitted_at, last.run_id, 100)
        assert (found.count, found.oldest and found.oldest.run_id) == (3, packs[0].run_id)
        assert found.oldest_tenant_id == "acme"
        assert (await index.packs_ahead(last.submitted_at, last.run_id, 2)).count == 2
        assert (await index.ahead(flow.tag, NOW + 99, "x", 100)).count == 1

    async def test_keepers_are_not_told_of_packs(self, index: Index) -> None:
        """What becomes of them is the ledger's matter."""
        pending, running = a_pack(updated_at=NOW), a_pack(status=RunState.RUNNING, updated_at=NOW, worker_id="w")
        flow = replace(claim(a_run(tenant_id="acme"), Owner("w", "i"), "1", NOW), updated_at=NOW)
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate([pending, running, flow])))
        assert [line.run_id for line in await index.unfinished(0.0, NOW + 1, 10)] == [flow.run_id]
        for tenant_id in ("", "acme"):
            assert [held.run_id for held in await index.quiet(tenant_id, NOW + 1, 10)] == [flow.run_id]
        held = await index.held([pending.run_id, running.run_id, flow.run_id])
        assert [each.run_id for each in held] == [flow.run_id]

    async def test_a_line_of_a_pack_says_what_it_costs(self, index: Index) -> None:
        pack, odd, flow = (
            a_pack(),
            a_pack(error="\0", extra={"money_state": ["x"], "cost": 1}),
            a_run(extra={"cost": 1}),
        )
        await feed(index, *(Stored(run, n + 1) for n, run in enumerate([pack, odd, flow])))
        page = await index.page(RunFilter(), 10)
        assert {line.run_id: line.pack for line in page.items} == {
            pack.run_id: line_of(pack),
            odd.run_id: {},
            flow.run_id: None,
        }
        assert (await index.counts()).packs == {("PENDING", "RESERVED"): 1, ("PENDING", ""): 1}
        assert {line.run_id for line in (await index.page(RunFilter(kind="pack"), 10)).items} == {
            pack.run_id,
            odd.run_id,
        }

    async def test_waiting_is_ordered_by_submission_even_when_the_record_was_touched(self, index: Index) -> None:
        old, young = a_run(submitted_at=NOW, updated_at=NOW + 9), a_run(submitted_at=NOW + 1, updated_at=NOW + 1)
        await feed(index, Stored(old, 1), Stored(young, 2))
        assert (await index.counts()).waiting == {"default": Waiting(2, NOW)}
        assert (await index.ahead("default", NOW + 1, young.run_id, 9)).count == 1
        assert (await index.ahead("default", NOW, old.run_id, 9)).count == 0

    async def test_the_version_of_a_tenant_depends_on_its_runs_alone(self, index: Index, make_index: MakeIndex) -> None:
        """SAFE-11. Removing one run and moving others never gives an earlier version of other runs."""
        mine = [a_run(tenant_id="a") for _ in range(3)]
        theirs = [a_run(tenant_id="b") for _ in range(3)]
        for number, run in enumerate(mine, 1):
            await feed(index, Stored(run, number))
        before = await index.version("a")
        for number, run in enumerate(theirs, 11):
            await feed(index, Stored(run, number))
        await feed(index, Removed(theirs[0].run_id, 20))
        assert await index.version("a") == before
        versions = [before]
        steps = (Removed(mine[0].run_id, 21), Stored(mine[1], 22), Removed(mine[2].run_id, 23), Stored(mine[0], 24))
        for step in steps:
            await feed(index, step)
            versions.append(await index.version("a"))
        assert len(set(versions)) == 5
        await index.close()
        async with opened(make_index()) as again:
            assert await again.version("a") == versions[-1]
            await again.reset("another store")
            await feed(again, Stored(mine[0], 24))
            assert await again.version("nobody") != await again.version("a")


def _place(run: Run) -> tuple[float, str]:
    return run.submitted_at, run.run_id
