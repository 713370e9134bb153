"""The contract of the index: reading a list page by page while runs change."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from contracts.index import MakeIndex, opened
from contracts.runs import NOW, a_run
from pyoco_server.core.flow_moves import ask_cancel, beat, claim, conclude
from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.core.programs.record import Program
from pyoco_server.core.run import PACK, Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.index.port import EVERYBODY, Index, ListPosition, Mark, Page, RunFilter
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["FILTERS", "IndexWalksContract", "World", "fits", "walk"]

SHA = "5" * 64
JOBS = [str(uuid.UUID(int=number, version=4)) for number in (1, 2, 3)]
FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "RUNNING"},
    {"status": "COMPLETED"},
    {"flow": "f"},
    {"tag": "a"},
    {"tag": "x"},
    {"kind": "exec"},
    {"kind": "pack"},
    {"kind": "flow"},
    {"workflow_yaml_sha256": SHA},
    {"tenant_id": "t"},
    {"tenant_id": "t", "status": "PENDING"},
    {"tenant_id": "t", "flow": "f", "tag": "a"},
    {"flow": "f", "tag": "x", "status": "COMPLETED"},
    {"updated_after": NOW + 8},
    {"updated_after": NOW + 8, "tag": "a", "status": "RUNNING"},
    {"updated_before": NOW + 8},
    {"updated_before": NOW + 12, "updated_after": NOW + 4, "status": "RUNNING"},
    {"updated_before": NOW + 12, "tenant_id": "t", "tag": "a"},
    {"updated_before": NOW + 12, "run_id_prefix": "a"},
    {"run_id_prefix": "a"},
    {"run_id_prefix": "a", "tenant_id": "t", "tag": "a"},
    {"run_id_prefix": "b", "updated_after": NOW + 8, "status": "RUNNING"},
    {"client_id": "anna"},
    {"group": "g1", "kind": "exec"},
    {"group": "g2", "client_id": "bert", "tenant_id": "t"},
    {"job_id": JOBS[0]},
    {"job_id": JOBS[1], "status": "COMPLETED", "flow": "f"},
    {"search": "F"},
    {"search": "x a"},
    {"search": "g", "tenant_id": "t"},
    {"search": "ann", "updated_before": NOW + 12},
    {"search": "f", "tag": "a", "updated_after": NOW + 4},
    {"search": "b", "status": "RUNNING", "flow": "g"},
    {"search": "b", "status": "COMPLETED", "tenant_id": "u"},
]


def fits(run: Run, wanted: RunFilter) -> bool:
    """FLOW-97 to FLOW-104, FLOW-113, by hand."""
    return (
        wanted.tenant_id in {EVERYBODY, run.tenant_id}
        and wanted.status in {None, run.status.value}
        and wanted.flow in {None, run.flow_name}
        and wanted.kind in {None, run.kind}
        and wanted.workflow_yaml_sha256 in {None, run.workflow_yaml_sha256}
        and (wanted.tag is None or wanted.tag in {run.tag, *run.tags})
        and (wanted.updated_after is None or run.updated_at > wanted.updated_after)
        and (wanted.updated_before is None or run.updated_at < wanted.updated_before)
        and run.run_id.startswith(wanted.run_id_prefix or "")
        and _fits_program(run.program, wanted)
        and all(_occurs(word, run, wanted) for word in (wanted.search or "").lower().split())
    )


def _occurs(word: str, run: Run, wanted: RunFilter) -> bool:
    """CLI-16; of priced runs, everybody only knows the pack (SAFE-5)."""
    if run.kind == PACK and wanted.tenant_id == EVERYBODY:
        return word == run.flow_name
    names = [run.flow_name, run.tag, *run.tags, run.error or ""]
    names += [run.program.client_id, run.program.group] if run.program is not None else []
    return any(name == word or (len(word) > 2 and name.startswith(word)) for name in names)


def _fits_program(program: Program | None, wanted: RunFilter) -> bool:
    asked = {"job_id": wanted.job_id, "client_id": wanted.client_id, "group": wanted.group}
    return all(value in {None, getattr(program, name, 0)} for name, value in asked.items())


Key = tuple[float, str]


@dataclass
class World:
    """Runs that change at random, and an index that is fed with them."""

    index: Index
    dice: random.Random
    tenants: tuple[str | None, ...] = (None, "t", "u")
    now: float = NOW
    revision: int = 0
    runs: dict[str, Run] = field(default_factory=dict)

    def key(self, run_id: str) -> Key:
        return self.runs[run_id].updated_at, run_id

    def _tick(self) -> float:
        """Clocks differ, and often stand still."""
        self.now += self.dice.choice([0.0, 0.0, 1.0])
        return self.now + self.dice.choice([0.0, 0.0, 0.0, -30.0, 0.1234567])

    def _submitted(self) -> Run:
        now = self._tick()
        kind = self.dice.choice(["flow", "flow", "exec", "pack"])
        return a_run(
            run_id=self.dice.choice("ab") + str(uuid.UUID(int=self.dice.getrandbits(128)))[1:],
            flow_name=self.dice.choice("fg"),
            tag=self.dice.choice("ab"),
            tags=tuple(self.dice.sample(["a", "b", "x", "y"], self.dice.randrange(3))),
            kind=kind,
            program=self._program() if kind == "exec" else None,
            extra=self.dice.choice([{}, {"money_state": "RESERVED"}, {"money_state": "SETTLED"}]),
            tenant_id=self.dice.choice(self.tenants),
            workflow_yaml_sha256=self.dice.choice([None, SHA]),
            submitted_at=now,
            updated_at=now,
        )

    def _program(self) -> Program:
        choose = self.dice.choice
        client_id, group = choose(["anna", "bert"]), choose(["default", "g1", "g2"])
        job_id = choose(JOBS)
        return Program(
            job_id=job_id, client_id=client_id, group=group, exec_name="calcA", fingerprint="", max_attempts=5
        )

    def _changed(self, run: Run) -> Run:
        now = self._tick()
        if run.status is RunState.PENDING:
            return self.dice.choice([claim(run, Owner("w", "i"), "1", now), ask_cancel(run, None, now)])
        if run.status is RunState.CANCELLING:
            return conclude(run, Completed(), now)
        if run.is_terminal:
            return replace(run, tags=(self.dice.choice("abxy"),), updated_at=now)  # a stranger's doing
        return self.dice.choice(
            [beat(run, Progress(), now), conclude(run, Completed(), now), conclude(run, Failed(message="x"), now)]
        )

    def _one_change(self) -> Stored | Removed:
        self.revision += 1
        chance = self.dice.random()
        if chance < 0.25 or not self.runs:
            run = self._submitted()
        else:
            run = self.runs[self.dice.choice(sorted(self.runs))]
            if chance > 0.95:
                del self.runs[run.run_id]
                return Removed(run.run_id, self.revision)
            run = self._changed(run)
        self.runs[run.run_id] = run
        return Stored(run, self.revision)

    async def change(self, number: int) -> None:
        """So many changes, told in one batch."""
        items = tuple(self._one_change() for _ in range(number))
        if items:
            await self.index.apply(items, Mark("e", self.revision))

    def expected(
        self, wanted: RunFilter, places: dict[str, Key], limit: int, below: Key | None
    ) -> tuple[list[Run], bool]:
        """The runs that have a place below that one, still exist and fit, in the order of their places."""
        rest = [run_id for run_id, place in places.items() if below is None or place < below]
        there = sorted((run_id for run_id in rest if run_id in self.runs), key=places.__getitem__, reverse=True)
        fitting = [self.runs[run_id] for run_id in there if fits(self.runs[run_id], wanted)]
        return fitting[:limit], len(fitting) > limit


def tells(page: Page) -> list[tuple[str, float, str]]:
    return [(line.run_id, line.updated_at, line.status) for line in page.items]


async def walk(make_index: MakeIndex, wanted: dict[str, Any], seed: int) -> None:
    """Each page against what a walk has to show, found by looking at everything."""
    dice = random.Random(f"{wanted} {seed}")
    tenants = (None, "t", "u") if seed % 2 else (None, *"tuvwxy")
    index = make_index()
    await index.open()
    await index.mark_complete()
    world, filters = World(index, dice, tenants), RunFilter(**wanted)
    for _ in range(dice.randrange(20)):
        await world.change(dice.randrange(1, 9))
    places = {run_id: world.key(run_id) for run_id in world.runs}
    seen: set[str] = set()
    after, below, pages = None, None, 0
    while pages == 0 or after is not None:
        limit = dice.randrange(1, 8)
        page = await index.page(filters, limit, after)
        runs, more = world.expected(filters, places, limit, below)
        assert tells(page) == [(run.run_id, run.updated_at, run.status) for run in runs]
        assert (page.next is not None) == more
        assert seen.isdisjoint(run.run_id for run in runs)
        seen |= {run.run_id for run in runs}
        if page.next is not None:
            below = places[runs[-1].run_id]
            assert (page.next.updated_at, page.next.run_id) == below
            assert page.next.revision == (after.revision if after else page.next.revision)
        after, pages = page.next, pages + 1
        for _ in range(dice.randrange(4)):
            await world.change(dice.randrange(1, 6))
        if dice.random() < 0.1:  # the gateway was restarted
            await index.close()
            index = world.index = make_index()
            await index.open()
    await index.close()


class IndexWalksContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    async def index(self, make_index: MakeIndex) -> AsyncIterator[Index]:
        async with opened(make_index()) as index:
            await index.mark_complete()
            yield index

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("wanted", FILTERS, ids=str)
    async def test_a_walk_shows_the_order_of_its_beginning_and_the_state_of_now(
        self, make_index: MakeIndex, wanted: dict[str, Any], seed: int
    ) -> None:
        """FLOW-110, FLOW-111: each page against what a walk has to show, found by looking at everything.

        So no run that existed when the walk began, still exists and fits is passed over or shown twice.
        """
        await walk(make_index, wanted, seed)

    async def test_runs_are_counted_by_status_up_to_a_limit(self, index: Index) -> None:
        world = World(index, random.Random(7))
        for _ in range(40):
            await world.change(5)
        for wanted in (RunFilter(**each) for each in FILTERS):
            numbers = Counter(run.status.value for run in world.runs.values() if fits(run, wanted))
            assert await index.count_by_status(wanted, 1000) == numbers, wanted
            if wanted != RunFilter():
                at_most = {status: min(number, 3) for status, number in numbers.items()}
                assert await index.count_by_status(wanted, 3) == at_most, wanted
        assert await index.count_by_status(RunFilter(search="-"), 3) == {}

    async def test_a_run_that_moves_to_the_top_is_not_passed_over(self, index: Index) -> None:
        """FLOW-111"""
        runs = [a_run(updated_at=NOW + n) for n in range(6)]
        await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark("e", 6))
        first = await index.page(RunFilter(), 3)
        moved = replace(runs[1], updated_at=NOW + 100, flow_name="moved")
        await index.apply((Stored(moved, 7), Stored(a_run(updated_at=NOW + 101), 8)), Mark("e", 8))
        second = await index.page(RunFilter(), 3, first.next)
        assert [line.run_id for line in first.items] == [run.run_id for run in runs[:2:-1]]
        assert [line.run_id for line in second.items] == [run.run_id for run in runs[2::-1]]
        assert second.items[1].flow_name == "moved"
        assert second.items[1].updated_at == NOW + 100
        assert second.next is None

    async def test_runs_that_tie_are_neither_lost_nor_shown_twice(self, index: Index) -> None:
        """FLOW-110, FLOW-111"""
        runs = [a_run(updated_at=NOW) for _ in range(23)]
        await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark("e", 23))
        for limit in (1, 5, 22, 23, 24):
            found: list[str] = []
            page = await index.page(RunFilter(), limit)
            while True:
                found += [line.run_id for line in page.items]
                if page.next is None:
                    break
                page = await index.page(RunFilter(), limit, page.next)
            assert found == sorted((run.run_id for run in runs), reverse=True)

    async def test_there_is_a_next_page_exactly_when_more_follow(self, index: Index) -> None:
        """FLOW-111"""
        runs = [a_run(updated_at=NOW + n, tag="ab"[n % 2]) for n in range(10)]
        await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark("e", 10))
        assert (await index.page(RunFilter(), 9)).next is not None
        assert (await index.page(RunFilter(), 10)).next is None
        assert (await index.page(RunFilter(tag="a"), 4)).next is not None
        assert (await index.page(RunFilter(tag="a"), 5)).next is None
        assert (await index.page(RunFilter(tag="c"), 5)).next is None

    async def test_what_was_submitted_meanwhile_is_not_part_of_the_walk(self, index: Index) -> None:
        runs = [a_run(updated_at=NOW + n) for n in range(4)]
        await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark("e", 4))
        first = await index.page(RunFilter(), 2)
        late = a_run(updated_at=NOW - 10)  # by a clock that is behind
        await index.apply((Stored(late, 5), Stored(replace(late, updated_at=NOW - 9), 6)), Mark("e", 6))
        await index.apply((Stored(replace(late, updated_at=NOW - 8), 7),), Mark("e", 7))
        second = await index.page(RunFilter(), 9, first.next)
        assert [line.run_id for line in second.items] == [runs[1].run_id, runs[0].run_id]

    async def test_a_walk_goes_on_at_another_index_of_the_same_runs(
        self, make_index: MakeIndex, make_other_index: MakeIndex
    ) -> None:
        """FLOW-111: revisions are those of the store, so a place means the same everywhere."""
        dice = random.Random(5)
        async with opened(make_index()) as one, opened(make_other_index()) as other:
            both = _Both(one, other)
            await both.mark_complete()
            world = World(both, dice)  # type: ignore[arg-type]  # as much of an index as it needs
            for _ in range(40):
                await world.change(1)
            places = {run_id: world.key(run_id) for run_id in world.runs}
            after: ListPosition | None = None
            seen: list[str] = []
            while True:
                page = await dice.choice([one, other]).page(RunFilter(), 3, after)
                seen += [line.run_id for line in page.items]
                after = page.next
                if after is None:
                    break
                await world.change(2)
            assert len(seen) == len(set(seen))
            assert set(seen) >= places.keys() & world.runs.keys()

    async def test_a_place_from_before_the_index_was_whole_is_good_enough(self, make_index: MakeIndex) -> None:
        """What has not changed is shown, once; nothing fails."""
        runs = [a_run(updated_at=NOW + n) for n in range(10)]
        async with opened(make_index()) as index:
            await index.apply(tuple(Stored(run, n + 100) for n, run in enumerate(runs)), Mark("e", 200))
            await index.mark_complete()
            page = await index.page(RunFilter(), 20, ListPosition(50, NOW + 7, runs[7].run_id))
            assert [line.run_id for line in page.items] == [run.run_id for run in runs[6::-1]]
            assert page.next is None

    async def test_a_reset_forgets_places_too(self, index: Index) -> None:
        """The revisions of another store are other ones, though their numbers be the same."""
        runs = [a_run(updated_at=NOW + n) for n in range(4)]

        async def begin(epoch: str) -> None:
            await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark(epoch, 4))

        async def change(epoch: str) -> None:
            await index.apply((Stored(replace(runs[1], updated_at=NOW + 9), 5),), Mark(epoch, 5))

        await begin("e")
        await change("e")
        await index.reset("other")
        await begin("other")
        page = await index.page(RunFilter(), 9, ListPosition(2, NOW + 3.5, ""))
        assert [line.run_id for line in page.items] == [run.run_id for run in reversed(runs)]
        await index.mark_complete()
        await change("other")
        page = await index.page(RunFilter(), 9, ListPosition(4, NOW + 3.5, ""))
        assert [line.run_id for line in page.items] == [run.run_id for run in reversed(runs)]

    @pytest.mark.parametrize(
        "place",
        [
            ListPosition(0, 0.0, ""),
            ListPosition(2**63 - 1, 1e308, "x" * 5000),
            ListPosition(5, 5e-324, "\0'\""),
            ListPosition(0, 1e300, "日本"),
        ],
    )
    async def test_any_place_is_answered(self, index: Index, place: ListPosition) -> None:
        runs = [a_run(run_id=f"a{n}", updated_at=NOW + n) for n in range(5)]
        await index.apply(tuple(Stored(run, n + 1) for n, run in enumerate(runs)), Mark("e", 5))
        for wanted in FILTERS:
            page = await index.page(RunFilter(**wanted), 5, place)
            assert len(page.items) in {0, 5}


class _Both:
    """Two indexes that hear the same."""

    def __init__(self, *indexes: Index) -> None:
        self._indexes = indexes

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        for index in self._indexes:
            await index.apply(items, mark)

    async def mark_complete(self) -> None:
        for index in self._indexes:
            await index.mark_complete()
