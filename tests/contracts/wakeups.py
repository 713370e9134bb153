"""What every way of hinting promises. To lose one is allowed, so nothing here depends on that none is lost."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.ports.wakeups.port import Wakeup, Wakeups
from support.waiting import eventually

__all__ = ["HintsContract", "MakeHints"]


class MakeHints(Protocol):
    """As another process would have them."""

    def __call__(self) -> Wakeups: ...


class HintsContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_hint_is_heard_by_everybody_in_the_group(self, make_hints: MakeHints, group: str) -> None:
        mine, other = make_hints(), make_hints()
        heard: dict[str, set[tuple[Wakeup, str]]] = {"mine": set(), "other": set(), "elsewhere": set()}
        listening = [
            await mine.listen(group, lambda wakeup, word: heard["mine"].add((wakeup, word))),
            await other.listen(group, lambda wakeup, word: heard["other"].add((wakeup, word))),
            await other.listen(f"{group}-2", lambda wakeup, word: heard["elsewhere"].add((wakeup, word))),
        ]
        told = {(Wakeup.NEW, "calcA.clientA"), (Wakeup.DONE, "r1"), (Wakeup.CANCEL, "r2")}

        async def tell() -> bool:
            for wakeup, word in told:
                await mine.tell(group, wakeup, word)
            return heard["mine"] == heard["other"] == told

        await eventually(tell)
        assert heard["elsewhere"] == set()
        for each in listening:
            await each.close()

    async def test_one_may_listen_for_one_kind_alone(self, make_hints: MakeHints, group: str) -> None:
        wakeups, heard, all_of_it = make_hints(), set[Wakeup](), set[Wakeup]()
        listening = [
            await wakeups.listen(group, lambda wakeup, _: heard.add(wakeup), Wakeup.CANCEL),
            await wakeups.listen(group, lambda wakeup, _: all_of_it.add(wakeup)),
        ]

        async def tell() -> bool:
            for wakeup in Wakeup:
                await wakeups.tell(group, wakeup, "r1")
            return bool(heard) and all_of_it == set(Wakeup)

        await eventually(tell)
        assert heard == {Wakeup.CANCEL}
        for each in listening:
            await each.close()

    async def test_after_the_close_nothing_is_heard(self, make_hints: MakeHints, group: str) -> None:
        wakeups, heard, later = make_hints(), list[str](), list[str]()
        listening = await wakeups.listen(group, lambda _, word: heard.append(word))
        await listening.close()
        await listening.close()
        more = await wakeups.listen(group, lambda _, word: later.append(word))

        async def tell() -> bool:
            await wakeups.tell(group, Wakeup.DONE, "r1")
            return bool(later)

        await eventually(tell)
        assert heard == []
        await more.close()
