"""Copies of everything are changed a few at a time, and again after whatever went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyoco_server.actions import change_replicas as module
from pyoco_server.actions.change_replicas import Changed, Planned, change_replicas, plan_replicas
from pyoco_server.core.replicas import StreamReplica, StreamReplicas
from pyoco_server.errors import DeploymentRefused, Unavailable


class PretendedCopies:
    """Streams that are complete at the second look. Some never are, some are unavailable, some refuse."""

    def __init__(self, names: Sequence[str], replicas: int = 1) -> None:
        self.names = tuple(names)
        self.count = dict.fromkeys(names, replicas)
        self.late: dict[str, int] = {}
        #: Consumers that are elected when the stream stands, one with each look.
        self.consumers: dict[str, int] = {}
        self.away: set[str] = set()
        self.missing: set[str] = set()
        self.refused: set[str] = set()
        self.tried: list[int] = []
        self.at_once = self.most_at_once = 0

    async def look(self, stream: str) -> StreamReplicas | None:
        await asyncio.sleep(0)
        if stream in self.missing:
            return None
        late = self.late.get(stream, 0)
        self.late[stream] = max(0, late - 1)
        if late == 1:
            self.at_once -= 1
        others = [
            StreamReplica(f"n{number}", is_current=not late, is_away=stream in self.away, lag=late)
            for number in range(2, self.count[stream] + 1)
        ]
        behind = 0 if late else self.consumers.get(stream, 0)
        if behind:
            self.consumers[stream] -= 1
        return StreamReplicas(
            stream=stream,
            wanted=self.count[stream],
            leader="n1",
            followers=tuple(others),
            consumers_behind=behind,
        )

    async def change(self, stream: str, count: int) -> None:
        if stream in self.refused:
            raise DeploymentRefused(f"not {stream}")
        self.count[stream], self.late[stream] = count, 2
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)

    async def try_count(self, count: int) -> None:
        self.tried.append(count)
        if count > 3:
            raise DeploymentRefused("too few")


class Clock:
    """In the place of `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.001)


async def changed(replicas: PretendedCopies, plan: Planned) -> list[Changed]:
    done: list[Changed] = []
    await change_replicas(replicas, plan, lambda found: None, done.append)
    return done


async def test_everything_that_has_fewer_is_changed_and_the_rest_is_left() -> None:
    """GRID-180"""
    replicas = PretendedCopies([f"S{number}" for number in range(30)])
    replicas.count["S3"] = 3
    replicas.missing = {"S7"}
    plan = await plan_replicas(replicas, 3)
    assert (plan.missing, plan.lowers, replicas.tried) == (("S7",), False, [3])
    done = await changed(replicas, plan)
    assert {each.stream for each in done} == set(replicas.names) - {"S3", "S7"}
    assert {(each.before, each.after, len(each.nodes)) for each in done} == {(1, 3, 3)}
    assert replicas.most_at_once <= module._AT_ONCE
    assert (await plan_replicas(replicas, 3)).to_change == ()


async def test_nothing_is_tried_when_nothing_is_to_be_done_or_copies_are_given_up() -> None:
    replicas = PretendedCopies(["S"], replicas=3)
    assert (await plan_replicas(replicas, 3)).to_change == ()
    assert (await plan_replicas(replicas, 1)).lowers
    assert replicas.tried == []


async def test_too_few_nodes_and_one_that_is_away_are_refused_before_anything_is_changed() -> None:
    """GRID-6"""
    replicas = PretendedCopies(["S", "T"], replicas=3)
    with pytest.raises(DeploymentRefused, match="too few"):
        await plan_replicas(replicas, 5)
    replicas.away = {"T"}
    for count in (1, 3):
        with pytest.raises(DeploymentRefused, match="n2, n3 does not answer"):
            await plan_replicas(replicas, count)
    assert set(replicas.count.values()) == {3}


async def test_after_a_refusal_the_same_again_goes_on_with_the_rest() -> None:
    replicas = PretendedCopies([f"S{number}" for number in range(6)])
    replicas.refused = {"S1"}
    plan = await plan_replicas(replicas, 3)
    with pytest.raises(DeploymentRefused, match="not S1"):
        await changed(replicas, plan)
    replicas.refused.clear()
    done = await changed(replicas, await plan_replicas(replicas, 3))
    assert "S1" in {each.stream for each in done}
    assert (await plan_replicas(replicas, 3)).to_change == ()


@pytest.mark.parametrize(
    ("limit", "told"), [("_AWAY_SECONDS", "n2, n3 does not answer"), ("_STALLED_SECONDS", "do not come nearer")]
)
async def test_what_does_not_come_nearer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, limit: str, told: str
) -> None:
    monkeypatch.setattr(module, limit, 0.02)
    replicas = PretendedCopies(["S"])
    plan = await plan_replicas(replicas, 3)

    async def stay_behind(stream: str, count: int) -> None:
        replicas.count[stream], replicas.late[stream] = count, 10**6
        replicas.away = {stream} if limit == "_AWAY_SECONDS" else set()

    monkeypatch.setattr(replicas, "change", stay_behind)
    look = replicas.look

    async def same(stream: str) -> StreamReplicas | None:
        replicas.late[stream] = 10**6
        return await look(stream)

    monkeypatch.setattr(replicas, "look", same)
    with pytest.raises(Unavailable, match=told):
        await changed(replicas, plan)


async def test_consumers_that_come_up_one_by_one_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-180: no message is missing while they are elected, and together they take longer than one may stand still"""
    monkeypatch.setattr(module, "_STALLED_SECONDS", 15.0)
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    replicas = PretendedCopies(["S"])
    plan = await plan_replicas(replicas, 3)
    look = replicas.look

    async def slow(stream: str) -> StreamReplicas | None:
        clock.now += 10.0
        found = await look(stream)
        # At first no followers are chosen: no lag, and no consumers reported.
        return replace(found, followers=()) if found is not None and clock.now < 15.0 else found

    monkeypatch.setattr(replicas, "look", slow)
    change = replicas.change

    async def with_consumers(stream: str, count: int) -> None:
        await change(stream, count)
        replicas.consumers[stream] = 40

    monkeypatch.setattr(replicas, "change", with_consumers)
    (done,) = await changed(replicas, plan)
    assert done.seconds >= 400.0


async def test_consumers_that_stand_still_are_told_of_when_they_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALLED_SECONDS", 0.02)
    replicas = PretendedCopies(["S"])
    plan = await plan_replicas(replicas, 3)
    look = replicas.look

    async def same(stream: str) -> StreamReplicas | None:
        replicas.consumers[stream] = 7
        return await look(stream)

    monkeypatch.setattr(replicas, "look", same)
    with pytest.raises(Unavailable, match="0 messages are missing and 7 consumers behind"):
        await changed(replicas, plan)
