"""What every store of slots promises."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from pyoco_server.ports.slots.port import Cap, Slot, Slots
from support.waiting import eventually

__all__ = ["MakeSlots", "SlotsContract", "a_slot"]


class MakeSlots(Protocol):
    """Slots over the test's one store, as another process would open them; stopped after the test."""

    async def __call__(self) -> Slots: ...


def a_slot(group: str, number: int = 0, **more: object) -> Slot:
    slot = Slot(group, "clientA", number, token="t", run_id=None, t=1.0, holder="h", revision=0)
    return replace(slot, **more)  # type: ignore[arg-type]  # any of its fields


class SlotsContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_slot_is_taken_filled_and_given_back(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-73"""
        slots, other = await make_slots(), await make_slots()
        mine = await slots.take(a_slot(group))
        assert mine is not None
        assert mine.revision > 0
        assert slots.held(group, "clientA") == [mine]
        filled = await slots.fill(mine, "r1", "t2", 2.0)
        assert filled is not None
        assert (filled.run_id, filled.token, filled.t, filled.holder) == ("r1", "t2", 2.0, "h")
        await eventually(lambda: other.held(group, "clientA") == [filled])
        assert await slots.free(filled)
        assert slots.held(group, "clientA") == []
        await eventually(lambda: other.held(group, "clientA") == [])

    async def test_who_waits_hears_of_each_slot_that_is_given_back(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-60: by whomever; and how many are held is known without looking at each"""
        slots, other = await make_slots(), await make_slots()
        heard: list[tuple[str, str]] = []
        await slots.start(lambda *client: heard.append(client) if client[0] == group else None)
        for place in (slots, other):
            mine = await place.take(a_slot(group))
            assert mine is not None
            await eventually(lambda: slots.count(group, "clientA") == 1)
            heard.clear()
            assert await place.free(mine)
            await eventually(lambda: heard == [(group, "clientA")])
            assert slots.count(group, "clientA") == 0

    async def test_a_slot_may_be_taken_again_and_again(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-73: also by a process that has not yet heard that it is free"""
        both = await make_slots(), await make_slots()
        for turn in range(20):
            mine = await both[turn % 2].take(a_slot(group))
            assert mine is not None
            assert await both[turn % 2].free(mine)

    async def test_two_processes_never_hold_one_slot(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-72, GRID-73: eight at once over two processes, three slots"""
        both = await make_slots(), await make_slots()
        held: set[int] = set()
        turns = 0

        async def work(me: int) -> None:
            nonlocal turns
            for turn in range(25):
                number = (me + turn) % 3
                slot = await both[me % 2].take(a_slot(group, number, token=f"{me}.{turn}", holder=f"h{me % 2}"))
                if slot is None:
                    continue
                assert number not in held
                held.add(number)
                filled = await both[me % 2].fill(slot, f"r{turn}", slot.token, 2.0)
                assert filled is not None
                held.remove(number)
                assert await both[me % 2].free(filled)
                turns += 1

        await asyncio.gather(*(work(me) for me in range(8)))
        assert turns > 25
        for slots in both:
            await eventually(lambda slots=slots: slots.held(group, "clientA") == [])  # type: ignore[misc]

    async def test_whoever_gives_a_slot_back_others_hear_of_it(self, make_slots: MakeSlots, group: str) -> None:
        slots, other = await make_slots(), await make_slots()
        heard: list[tuple[str, str]] = []
        await slots.start(lambda *whose: heard.append(whose))
        for mine in (slots, other):
            slot = await mine.take(a_slot(group))
            assert slot is not None
            await eventually(lambda slot=slot: slots.held(group, "clientA") == [slot])  # type: ignore[misc]
            heard.clear()
            assert await mine.free(slot)
            await eventually(lambda: (group, "clientA") in heard)

    async def test_of_many_that_take_over_a_slot_one_does(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-74: and its previous holder finds out"""
        both = await make_slots(), await make_slots()
        old = await both[0].take(a_slot(group))
        assert old is not None
        tries = (both[n % 2].take(replace(old, token=f"n{n}", holder="other")) for n in range(8))
        (new,) = [slot for slot in await asyncio.gather(*tries) if slot is not None]
        assert await both[0].fill(old, "r1", "t", 2.0) is None
        assert not await both[0].free(old)
        await eventually(lambda: both[0].held(group, "clientA") == [new])

    async def test_a_slot_that_is_held_is_not_taken(self, make_slots: MakeSlots, group: str) -> None:
        slots, other = await make_slots(), await make_slots()
        mine = await slots.take(a_slot(group))
        assert await other.take(a_slot(group, token="another")) is None
        assert mine is not None
        assert other.held(group, "clientA") == [mine]  # it has learnt that from the refusal

    async def test_slots_are_listed_by_client_and_number(self, make_slots: MakeSlots, group: str) -> None:
        slots = await make_slots()
        for number in (11, 2, 0):
            assert await slots.take(a_slot(group, number))
        assert await slots.take(a_slot(group, 0, client="clientB"))
        assert await slots.take(a_slot(f"{group}-2"))
        assert [slot.number for slot in slots.held(group, "clientA")] == [0, 2, 11]
        newcomer = await make_slots()
        numbers = {client: [slot.number for slot in held] for client, held in newcomer.all_held(group).items()}
        assert numbers == {"clientA": [0, 2, 11], "clientB": [0]}
        assert newcomer.held(group, "nobody") == []

    async def test_the_last_word_on_a_cap_wins(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-71"""
        slots, other = await make_slots(), await make_slots()
        assert slots.cap(group, "clientA") is None
        for cap in (Cap(8, 1.0, "hello"), Cap(2, 2.0, "http")):
            await other.set_cap(group, "clientA", cap)
            await eventually(lambda cap=cap: slots.cap(group, "clientA") == cap)  # type: ignore[misc]
        await slots.set_cap(group, "clientB", Cap(1, 3.0, "hello"))
        assert slots.cap(group, "clientB") == Cap(1, 3.0, "hello")
        assert (await make_slots()).caps(group) == {"clientA": Cap(2, 2.0, "http"), "clientB": Cap(1, 3.0, "hello")}

    async def test_caps_said_at_once_do_not_fail(self, make_slots: MakeSlots, group: str) -> None:
        """GRID-71: connections of one client that come back together say the same; others differ."""
        both = await make_slots(), await make_slots()
        await asyncio.gather(*(both[n % 2].set_cap(group, "clientA", Cap(n + 1, n, "hello")) for n in range(6)))
        await asyncio.gather(*(both[n % 2].set_cap(group, "clientA", Cap(9, 10.0, "hello")) for n in range(100)))
        final = (await make_slots()).cap(group, "clientA")
        for slots in both:
            await eventually(lambda slots=slots: slots.cap(group, "clientA") == final)  # type: ignore[misc]
