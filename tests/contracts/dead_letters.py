"""What every store and every index of dead letters promises."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.ports.dead_letters.port import (
    DeadLetterChanges,
    DeadLetters,
)
from pyoco_server.ports.queue.port import Queue

__all__ = ["NOW", "LettersContract", "a_letter", "told"]

NOW = 1_700_000_000.0


def a_letter(**more: Any) -> DeadLetter:
    letter = DeadLetter(timestamp=NOW, reason=DeadReason.TIMEOUT, error="why 日本語", tag="default")
    return replace(letter, **more)


async def told(
    letters: DeadLetters, enough: Callable[[list[DeadLetterChanges]], bool], after: int = 0, epoch: str = ""
) -> list[DeadLetterChanges]:
    """What the feed tells until that is enough."""
    seen: list[DeadLetterChanges] = []
    async with asyncio.timeout(200), aclosing(letters.changes(after, epoch)) as feed:
        async for changes in feed:
            seen.append(changes)
            if enough(seen):
                break
    return seen


def came(seen: list[DeadLetterChanges]) -> list[int]:
    return [item.letter_id for changes in seen for item in changes.items]


def is_true(seen: list[DeadLetterChanges]) -> bool:
    return seen[-1].caught_up


def left(seen: list[DeadLetterChanges]) -> set[int]:
    """What is there after all that was told."""
    there: set[int] = set()
    for changes in seen:
        there |= {item.letter_id for item in changes.items}
        there = {letter_id for letter_id in there - changes.gone if letter_id >= changes.first_id}
    return there


class LettersContract:
    """An adapter passes all of it or does not ship. Its fixtures: `letters`, and the `queue` that writes them."""

    async def buried(self, queue: Queue, *letters: DeadLetter) -> None:
        for letter in letters:
            await queue.bury(letter, f"{random.random()}")

    async def test_what_was_buried_is_found_and_told(self, letters: DeadLetters, queue: Queue) -> None:
        written = [
            a_letter(tag="a", run_id="r", flow_name="f", tags=("x",), tenant_id="t", api_key_id="k", worker_id="w"),
            a_letter(tag="b", reason="unheard of", error=None, num_delivered=3, subject="s"),
        ]
        await self.buried(queue, *written)
        seen = await told(letters, is_true)
        items = [item for changes in seen for item in changes.items]
        assert [item.dead_letter for item in items] == written
        assert items == sorted(items, key=lambda item: item.letter_id)
        for item in items:
            assert await letters.find(item.letter_id) == item

    async def test_an_empty_store_is_true_at_once(self, letters: DeadLetters) -> None:
        seen = await told(letters, is_true)
        assert came(seen) == []
        assert await letters.find(1) is None
        assert await letters.find(10**17) is None

    async def test_a_deleted_letter_is_gone_and_can_be_deleted_once(self, letters: DeadLetters, queue: Queue) -> None:
        await self.buried(queue, *(a_letter() for _ in range(3)))
        first, middle, last = came(await told(letters, is_true))
        for letter_id in (middle, last, first):
            assert await letters.delete(letter_id)
            assert not await letters.delete(letter_id)
            assert await letters.find(letter_id) is None
        assert not await letters.delete(last + 1000)
        assert came(await told(letters, is_true)) == []

    async def test_an_id_is_never_used_again(self, letters: DeadLetters, queue: Queue) -> None:
        await self.buried(queue, a_letter())
        [old] = came(await told(letters, is_true))
        await letters.delete(old)
        await self.buried(queue, a_letter())
        [new] = came(await told(letters, is_true))
        assert new > old

    async def test_a_feed_goes_on_where_it_stopped(self, letters: DeadLetters, queue: Queue) -> None:
        await self.buried(queue, *(a_letter() for _ in range(5)))
        seen = await told(letters, is_true)
        after, epoch = came(seen)[-1], seen[-1].epoch
        await self.buried(queue, *(a_letter() for _ in range(2)))
        again = await told(letters, is_true, after, epoch)
        assert came(again) == [after + 1, after + 2]
        assert {changes.epoch for changes in again} == {epoch}

    async def test_a_feed_of_another_store_begins_anew(self, letters: DeadLetters, queue: Queue) -> None:
        await self.buried(queue, *(a_letter() for _ in range(3)))
        seen = await told(letters, is_true, 2, "another")
        assert len(came(seen)) == 3
        assert seen[0].epoch != "another"

    async def test_a_feed_tells_what_went_while_it_was_away(self, letters: DeadLetters, queue: Queue) -> None:
        await self.buried(queue, *(a_letter() for _ in range(5)))
        seen = await told(letters, is_true)
        there = came(seen)
        for letter_id in (there[0], there[1], there[3]):
            await letters.delete(letter_id)
        again = await told(letters, is_true, there[-1], seen[-1].epoch)
        assert came(again) == []
        assert again[-1].first_id == there[2]
        assert left([*seen, *again]) == {there[2], there[4]}

    async def test_a_feed_tells_what_comes_and_what_goes(self, letters: DeadLetters, queue: Queue) -> None:
        """Whatever the order of things, it ends with what is there."""
        dice = random.Random(5)
        await self.buried(queue, a_letter())
        there: set[int] = set()
        count = 1
        seen: list[DeadLetterChanges] = []
        async with asyncio.timeout(200), aclosing(letters.changes()) as feed:
            for _ in range(12):
                while left(seen) != there or len(came(seen)) < count:
                    seen.append(await anext(feed))
                    there |= {item.letter_id for item in seen[-1].items}
                for letter_id in dice.sample(sorted(there), min(len(there), dice.randrange(3))):
                    assert await letters.delete(letter_id)
                    there.discard(letter_id)
                some = dice.randrange(3)
                await self.buried(queue, *(a_letter() for _ in range(some)))
                count += some
        assert len(came(seen)) == len(set(came(seen)))

    async def test_a_letter_deleted_before_it_was_told_of_does_not_stay(
        self, letters: DeadLetters, queue: Queue
    ) -> None:
        await self.buried(queue, *(a_letter() for _ in range(3)))
        async with asyncio.timeout(200), aclosing(letters.changes()) as feed:
            seen = [await anext(feed)]
            while not is_true(seen):
                seen.append(await anext(feed))
            await self.buried(queue, *(a_letter() for _ in range(2)))
            newest = came(seen)[-1] + 2
            await letters.delete(newest)
            while newest in left(seen) or len(left(seen)) < 4:
                seen.append(await anext(feed))
        assert max(left(seen)) == newest - 1
