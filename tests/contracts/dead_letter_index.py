"""The contract of the index of dead letters: what every adapter promises."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from contracts.dead_letters import NOW, a_letter
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.errors import Unavailable
from pyoco_server.ports.dead_letters.port import (
    DeadLetterChanges,
    DeadLetterCount,
    DeadLetterFilter,
    DeadLetterIndex,
    StoredDeadLetter,
)
from pyoco_server.ports.index.port import EVERYBODY, Mark

__all__ = ["LetterIndexContract", "MakeLetterIndex", "changes", "letter_ids", "opened"]


class MakeLetterIndex(Protocol):
    """The test's one index, as the same gateway would open it after a restart."""

    def __call__(self) -> DeadLetterIndex: ...


@asynccontextmanager
async def opened(index: DeadLetterIndex) -> AsyncIterator[DeadLetterIndex]:
    await index.open()
    try:
        yield index
    finally:
        await index.close()


async def letter_ids(index: DeadLetterIndex, limit: int = 1000, before: int | None = None, **wanted: Any) -> list[int]:
    return [item.letter_id for item in (await index.page(DeadLetterFilter(**wanted), limit, before)).items]


def changes(
    *items: StoredDeadLetter, gone: set[int] | None = None, first_id: int = 0, epoch: str = "e"
) -> DeadLetterChanges:
    return DeadLetterChanges(items, frozenset(gone or ()), first_id, True, epoch)


def some_letters(count: int) -> list[StoredDeadLetter]:
    """Of every sort, with odd words among them."""
    dice = random.Random(7)
    return [
        StoredDeadLetter(
            letter_id,
            a_letter(
                reason=dice.choice(["timeout", "max_deliver", "x' OR 1=1 --"]),
                flow_name=dice.choice([None, "f", "g\0日本"]),
                tag=dice.choice(["a", "b"]),
                tags=dice.choice([None, (), tuple(dice.sample(["a", "b", "c"], 2))]),
                run_id=dice.choice([None, "r1", "r2"]),
                tenant_id=dice.choice([None, "t", "u"]),
                timestamp=NOW + letter_id,
            ),
        )
        for letter_id in range(1, count + 1)
    ]


def expected(items: list[StoredDeadLetter], wanted: DeadLetterFilter) -> list[int]:
    """By hand."""

    def fits(letter: DeadLetter) -> bool:
        return (
            wanted.tenant_id in {EVERYBODY, letter.tenant_id}
            and wanted.reason in {None, letter.reason}
            and wanted.flow in {None, letter.flow_name or ""}
            and wanted.run_id in {None, letter.run_id}
            and (wanted.tag is None or wanted.tag in {letter.tag, *(letter.tags or ())})
        )

    return [item.letter_id for item in reversed(items) if fits(item.dead_letter)]


class LetterIndexContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    async def index(self, make_index: MakeLetterIndex) -> AsyncIterator[DeadLetterIndex]:
        async with opened(make_index()) as index:
            yield index

    async def test_a_new_index_begins_at_the_beginning(self, make_index: MakeLetterIndex) -> None:
        index = make_index()
        assert await index.open() == Mark()
        assert (await index.page(DeadLetterFilter(), 50)).items == []
        assert await index.counts() == []
        assert await index.total() == 0
        await index.close()
        await index.close()

    async def test_a_letter_is_listed_as_it_was_told(self, index: DeadLetterIndex) -> None:
        items = some_letters(50)
        await index.apply(changes(*items))
        page = await index.page(DeadLetterFilter(), 50)
        assert page.items == items[::-1]
        assert page.next_before is None

    async def test_every_filter_and_any_of_them_together_hold(self, index: DeadLetterIndex) -> None:
        items = some_letters(300)
        await index.apply(changes(*items))
        values: dict[str, list[str | None]] = {
            "reason": [None, "timeout", "x' OR 1=1 --", "none such"],
            "flow": [None, "f", "g\0日本", ""],
            "tag": [None, "a", "c"],
            "run_id": [None, "r1", ""],
            "tenant_id": [EVERYBODY, "t", "v"],
        }
        for reason in values["reason"]:
            for flow in values["flow"]:
                for tag in values["tag"]:
                    for run_id in values["run_id"]:
                        for tenant_id in values["tenant_id"]:
                            wanted = DeadLetterFilter(tenant_id or EVERYBODY, reason, flow, tag, run_id)
                            found = [item.letter_id for item in (await index.page(wanted, 300)).items]
                            assert found == expected(items, wanted), wanted

    async def test_letters_of_programs_are_found_by_client_and_group_and_listed_without_the_job(
        self, index: DeadLetterIndex
    ) -> None:
        """GRID-85"""
        job: dict[str, Any] = {"kind": "exec", "exec_name": "calcA", "job": {"args": ["secret"]}, "exit_code": -9}
        items = [
            StoredDeadLetter(1, a_letter(**job, client_id="anna", group="g1", flow_name="exec:calcA", tenant_id="t")),
            StoredDeadLetter(2, a_letter(**job, client_id="bert", group="g1", flow_name="exec:calcA", tenant_id="u")),
            StoredDeadLetter(3, a_letter(**job, client_id="anna", group="g2", flow_name="exec:other", tenant_id="t")),
            StoredDeadLetter(4, a_letter()),
        ]
        await index.apply(changes(*items))
        found: dict[tuple[int, ...], dict[str, Any]] = {
            (3, 1): {"client_id": "anna"},
            (2, 1): {"group": "g1"},
            (1,): {"client_id": "anna", "group": "g1", "tenant_id": "t", "reason": a_letter().reason},
            (2,): {"group": "g1", "flow": "exec:calcA", "tenant_id": "u"},
            (): {"client_id": "anna", "tenant_id": "u"},
        }
        for letter_ids_wanted, wanted in found.items():
            assert await letter_ids(index, **wanted) == list(letter_ids_wanted), wanted
        assert [await index.of_group(who, "g1") for who in (EVERYBODY, "t", "v")] == [(2, 2), (1, 1), (0, None)]
        (page,) = (await index.page(DeadLetterFilter(group="g2"), 5)).items
        assert page.dead_letter == replace(items[2].dead_letter, job=None)

    @pytest.mark.parametrize("wanted", [{}, {"tag": "a"}, {"reason": "timeout"}, {"tenant_id": "t", "flow": "f"}])
    async def test_pages_lose_nothing_and_repeat_nothing_while_letters_come_and_go(
        self, index: DeadLetterIndex, wanted: dict[str, str]
    ) -> None:
        items = some_letters(100)
        await index.apply(changes(*items[:90]))
        seen: list[int] = []
        before: int | None = None
        gone: set[int] = set()
        for number in range(100):
            page = await index.page(DeadLetterFilter(**wanted), 7, before)
            assert len(page.items) <= 7
            seen += [item.letter_id for item in page.items]
            before = page.next_before
            if before is None:
                break
            gone |= {50 - number, seen[-1]}
            await index.apply(changes(*items[90 + number : 91 + number], gone=gone))
        assert before is None
        assert len(seen) == len(set(seen))
        stayed = [letter_id for letter_id in expected(items[:90], DeadLetterFilter(**wanted)) if letter_id not in gone]
        assert set(stayed) <= set(seen) <= set(expected(items[:90], DeadLetterFilter(**wanted)))

    async def test_the_last_page_says_so(self, index: DeadLetterIndex) -> None:
        await index.apply(changes(*(StoredDeadLetter(n, a_letter(run_id="r", flow_name="f")) for n in range(1, 11))))
        by_run = DeadLetterFilter(run_id="r")
        for wanted in (
            DeadLetterFilter(),
            DeadLetterFilter(tag="default"),
            by_run,
            replace(by_run, tag="default", flow="f"),
        ):
            assert (await index.page(wanted, 10)).next_before is None
            assert (await index.page(wanted, 9)).next_before == 2
            assert [item.letter_id for item in (await index.page(wanted, 9, 2)).items] == [1]
            assert (await index.page(wanted, 9, 1)).items == []

    async def test_what_went_is_gone_from_every_list_and_count(self, index: DeadLetterIndex) -> None:
        items = some_letters(60)
        await index.apply(changes(*items))
        await index.apply(changes(gone={30, 31, 59, 999}, first_id=11))
        stay = [item for item in items if item.letter_id >= 11 and item.letter_id not in {30, 31, 59}]
        for wanted in (
            DeadLetterFilter(),
            DeadLetterFilter(tag="a"),
            DeadLetterFilter(reason="timeout"),
            DeadLetterFilter("t"),
        ):
            assert [item.letter_id for item in (await index.page(wanted, 60)).items] == expected(stay, wanted)
        await self.counts_are_true(index, stay)

    async def counts_are_true(self, index: DeadLetterIndex, items: list[StoredDeadLetter]) -> None:
        for tenant_id in (EVERYBODY, "t", "u", "nobody"):
            mine = [item.dead_letter for item in items if tenant_id in {EVERYBODY, item.dead_letter.tenant_id}]
            groups = Counter((letter.reason, letter.flow_name) for letter in mine)
            newest = {(letter.reason, letter.flow_name): letter.timestamp for letter in mine}
            found = await index.counts(tenant_id)
            assert found == sorted(found, key=lambda group: -group.count)
            assert {(group.reason, group.flow_name): (group.count, group.newest_at) for group in found} == {
                key: (count, newest[key]) for key, count in groups.items()
            }
            assert await index.total(tenant_id) == len(mine)
            times = [letter.timestamp for letter in mine]
            since = times[len(times) // 2] if times else NOW
            assert await index.recent(tenant_id, since, 1000) == sum(each > since for each in times)
            assert await index.recent(tenant_id, 0.0, 3) == min(3, len(mine))

    async def test_counts_are_kept_through_everything(self, index: DeadLetterIndex) -> None:
        items = some_letters(200)
        await index.apply(changes(*items[:100]))
        await self.counts_are_true(index, items[:100])
        await index.apply(changes(*items[:150], gone={5, 149}))
        await index.forget({6, 7, 150, 160})
        await index.apply(changes(*items[120:], gone={5, 149}, first_id=3))
        gone = {1, 2, 5, 6, 7, 149, 150, 160}
        await self.counts_are_true(index, [item for item in items if item.letter_id not in gone])
        await index.reset("another")
        await self.counts_are_true(index, [])

    async def test_groups_beyond_a_thousand_are_left_out_but_counted(self, index: DeadLetterIndex) -> None:
        items = [StoredDeadLetter(n + 1, a_letter(flow_name=f"flow {n % 1200}")) for n in range(1300)]
        await index.apply(changes(*items))
        groups = await index.counts()
        assert len(groups) == 1000
        assert groups[:100] == [
            DeadLetterCount("timeout", name, 2, NOW) for name in sorted(f"flow {n}" for n in range(100))
        ]
        assert await index.total() == 1300

    async def test_taking_in_the_same_again_changes_nothing(self, index: DeadLetterIndex) -> None:
        items = some_letters(20)
        for _ in range(2):
            await index.apply(changes(*items, gone={3}))
        await index.apply(changes(*items))
        assert await letter_ids(index) == [letter_id for letter_id in range(20, 0, -1) if letter_id != 3]
        assert await index.total() == 19

    async def test_a_forgotten_letter_is_gone_at_once_and_stays_so(self, make_index: MakeLetterIndex) -> None:
        """Deleted by this gateway: before or after its message has arrived, and over a restart"""
        items = some_letters(6)
        async with opened(make_index()) as index:
            await index.apply(changes(*items[:3]))
            await index.forget({2, 5})
            assert await letter_ids(index) == [3, 1]
        async with opened(make_index()) as index:
            await index.apply(changes(*items[3:]))
            assert await letter_ids(index) == [6, 4, 3, 1]
            assert await index.total() == 4

    async def test_what_was_forgotten_says_nothing_of_another_stream(self, index: DeadLetterIndex) -> None:
        await index.forget({2})
        await index.reset("another")
        await index.apply(changes(*some_letters(3), epoch="another"))
        assert await letter_ids(index) == [3, 2, 1]

    async def test_a_restart_goes_on_at_the_mark(self, make_index: MakeLetterIndex) -> None:
        items = some_letters(41)
        async with opened(make_index()) as index:
            await index.apply(changes(*items))
            await index.apply(changes(gone={41}, first_id=40))
        index = make_index()
        assert await index.open() == Mark("e", 41)
        assert await letter_ids(index) == [40]
        await index.close()

    async def test_a_reset_forgets_everything(self, make_index: MakeLetterIndex) -> None:
        items = some_letters(10)
        async with opened(make_index()) as index:
            await index.apply(changes(*items))
            await index.reset("another")
            assert await letter_ids(index) == []
            assert await letter_ids(index, tag="a") == []
            await index.apply(changes(items[0], epoch="another"))
            assert await letter_ids(index) == [1]
        index = make_index()
        assert await index.open() == Mark("another", 1)
        await index.close()

    async def test_readers_never_see_half_a_batch(self, index: DeadLetterIndex) -> None:
        async def write() -> None:
            for start in range(0, 2000, 100):
                await index.apply(changes(*(StoredDeadLetter(n + 1, a_letter()) for n in range(start, start + 100))))

        writing = asyncio.create_task(write())
        sizes = [0]
        while not writing.done():
            sizes.append(len(await letter_ids(index, 5000)))
        await writing
        assert sizes == sorted(sizes)
        assert all(size % 100 == 0 for size in sizes), "half a batch was seen"
        assert len(await letter_ids(index, 5000)) == 2000

    async def test_a_closed_index_says_so(self, make_index: MakeLetterIndex) -> None:
        index = make_index()
        with pytest.raises(Unavailable):
            await index.page(DeadLetterFilter(), 1)
        await index.open()
        await index.close()
        for call in (index.counts(), index.total(), index.forget({1}), index.reset("e"), index.apply(changes())):
            with pytest.raises(Unavailable):
                await call
