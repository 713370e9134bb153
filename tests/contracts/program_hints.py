"""What every way of hinting promises. To lose one is allowed, so nothing here depends on that none is lost."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.ports.program_hints.port import Hint, Hints
from support.waiting import eventually

__all__ = ["HintsContract", "MakeHints"]


class MakeHints(Protocol):
    """As another process would have them."""

    def __call__(self) -> Hints: ...


class HintsContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_hint_is_heard_by_everybody_in_the_group(self, make_hints: MakeHints, group: str) -> None:
        mine, other = make_hints(), make_hints()
        heard: dict[str, set[tuple[Hint, str]]] = {"mine": set(), "other": set(), "elsewhere": set()}
        listening = [
            await mine.listen(group, lambda hint, word: heard["mine"].add((hint, word))),
            await other.listen(group, lambda hint, word: heard["other"].add((hint, word))),
            await other.listen(f"{group}-2", lambda hint, word: heard["elsewhere"].add((hint, word))),
        ]
        told = {(Hint.NEW, "calcA.clientA"), (Hint.DONE, "r1"), (Hint.CANCEL, "r2")}

        async def tell() -> bool:
            for hint, word in told:
                await mine.tell(group, hint, word)
            return heard["mine"] == heard["other"] == told

        await eventually(tell)
        assert heard["elsewhere"] == set()
        for each in listening:
            await each.close()

    async def test_one_may_listen_for_one_kind_alone(self, make_hints: MakeHints, group: str) -> None:
        hints, heard, all_of_it = make_hints(), set[Hint](), set[Hint]()
        listening = [
            await hints.listen(group, lambda hint, _: heard.add(hint), Hint.CANCEL),
            await hints.listen(group, lambda hint, _: all_of_it.add(hint)),
        ]

        async def tell() -> bool:
            for hint in Hint:
                await hints.tell(group, hint, "r1")
            return bool(heard) and all_of_it == set(Hint)

        await eventually(tell)
        assert heard == {Hint.CANCEL}
        for each in listening:
            await each.close()

    async def test_after_the_close_nothing_is_heard(self, make_hints: MakeHints, group: str) -> None:
        hints, heard, later = make_hints(), list[str](), list[str]()
        listening = await hints.listen(group, lambda _, word: heard.append(word))
        await listening.close()
        await listening.close()
        more = await hints.listen(group, lambda _, word: later.append(word))

        async def tell() -> bool:
            await hints.tell(group, Hint.DONE, "r1")
            return bool(later)

        await eventually(tell)
        assert heard == []
        await more.close()
