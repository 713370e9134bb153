"""A client of several groups: shares, turns, failover after the grace, and one result for each JobId."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pyoco_server.client.frames import multi
from pyoco_server.client.frames.shares import Turn, shares
from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.states import RunState
from pyoco_server.errors import UsageError
from pyoco_server.grid_client import DoorUnreachable, GridMultiClient, GridRefused
from support.grid.fake_door import QUICK, FakeDoor, Talk
from support.grid.multi_clients import all_live, ask, client_of, doors, gives_up_soon, submitted
from support.waiting import eventually

__all__ = ["doors"]


@contextlib.asynccontextmanager
async def silent_listener() -> AsyncIterator[str]:
    """The address of a server that accepts connections and says nothing."""
    over = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        over.set()


@pytest.mark.parametrize(
    ("total", "groups", "expected"),
    [
        (12, 3, [4, 4, 4]),
        (13, 3, [5, 4, 4]),
        (7, 2, [4, 3]),
        (100, 3, [34, 33, 33]),
        (2, 3, [1, 1, 1]),
        (1, 1, [1]),
    ],
)
def test_the_cap_is_split_evenly(total: int, groups: int, expected: list[int]) -> None:
    """GRID-124"""
    assert shares(total, groups) == expected


def test_turns_and_weights() -> None:
    """GRID-125: the next one in turn; the lightest, ties in turn; never one that may not be chosen."""
    turn = Turn(["a", "b", "c"])
    assert [turn.choose(lambda _: True, lambda _: 0) for _ in range(4)] == ["a", "b", "c", "a"]
    assert [turn.choose(lambda each: each != "b", lambda _: 0) for _ in range(3)] == ["c", "a", "c"]
    weights = Counter({"a": 2, "b": 1, "c": 1})
    chosen = []
    for _ in range(5):
        name = turn.choose(lambda _: True, weights.__getitem__)
        assert name is not None
        weights[name] += 1
        chosen.append(name)
    assert chosen == ["b", "c", "a", "b", "c"]
    assert turn.choose(lambda _: False, lambda _: 0) is None


async def test_each_group_gets_its_share_and_its_turn(doors: list[FakeDoor]) -> None:
    """GRID-124, GRID-125"""
    async with client_of(doors, 13) as client:
        await all_live(client)
        assert sorted(door.hellos[0].desired_parallelism for door in doors) == [4, 4, 5]
        futures = await submitted(client, 9)
        results = [await future for future in futures]
    assert [result.worker_id for result in results] == [*"abc"] * 3
    assert [result.stdout for result in results] == [str(number) for number in range(9)]
    stats = client.stats()
    assert [group.share for group in stats.groups] == [5, 4, 4]
    assert [(group.sent, group.results) for group in stats.groups] == [(3, 3)] * 3


async def test_the_policy_least_prefers_the_group_with_the_fewest_unfinished_jobs(doors: list[FakeDoor]) -> None:
    """GRID-125"""
    doors[0].is_holding = doors[1].is_holding = True
    async with client_of(doors, policy="least") as client:
        await all_live(client)
        for number in range(6):
            future = await client.submit(ask(number))
            if number >= 3:  # `c` has finished its own each time, and is the lightest; then it is again
                assert (await future).worker_id == "c"
            elif number == 2:
                await future
        assert [group.unfinished for group in client.stats().groups] == [1, 1, 0]
        for door in doors[:2]:
            await eventually(lambda door=door: len(door.submits) == 1)  # type: ignore[misc]
            await door.finish(door.submitted[0])


@pytest.mark.parametrize("policy", ["rr", "least"])
async def test_jobs_submitted_right_after_connect_are_spread_over_all_groups(
    doors: list[FakeDoor], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIND-15: nothing is placed before each group was tried"""
    assert multi._ALL_GROUPS_SECONDS == 2.0
    monkeypatch.setattr(multi, "_ALL_GROUPS_SECONDS", 120.0)  # a busy machine may need longer
    for door in doors:
        door.is_holding = True

    async def welcome_late(talk: Talk, frame: Frame) -> None:
        await asyncio.sleep(0.1)
        await doors[2].welcome(talk, frame)

    doors[2].on_hello = welcome_late
    async with client_of(doors, policy=policy) as client:
        futures = await submitted(client, 12)
        assert [group.unfinished for group in client.stats().groups] == [4, 4, 4]
        for door in doors:
            await eventually(lambda door=door: len(door.submits) == 4)  # type: ignore[misc]
            for job in door.submitted:
                await door.finish(job)
        assert Counter([(await future).worker_id for future in futures]) == {"a": 4, "b": 4, "c": 4}


async def test_groups_that_are_gone_or_silent_do_not_keep_a_new_client_for_long(
    doors: list[FakeDoor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIND-15: a refused connection is an answer, and silence costs its time once; the others share the jobs"""
    monkeypatch.setattr(multi, "_ALL_GROUPS_SECONDS", 0.2)
    await doors[1].stop()
    async with silent_listener() as silent:
        groups = [*(door.address for door in doors), silent]
        there = {doors[0].address, doors[2].address}
        async with GridMultiClient("clientA", groups, settings=QUICK) as client:
            # In that time they are there, unless the machine is busy.
            await eventually(lambda: {group.name for group in client.stats().groups if group.state == "live"} == there)
            results = [await future for future in await submitted(client, 4)]
    assert [result.worker_id for result in results] == ["a", "c", "a", "c"]


async def test_a_group_that_is_not_there_gets_nothing(doors: list[FakeDoor]) -> None:
    """GRID-125, GRID-127"""
    await doors[1].stop()
    async with client_of(doors) as client:
        await eventually(lambda: [group.state for group in client.stats().groups] == ["live", "connecting", "live"])
        results = [await future for future in await submitted(client, 4)]
        assert [result.worker_id for result in results] == ["a", "c", "a", "c"]


async def test_a_group_that_takes_nothing_just_now_gets_nothing(doors: list[FakeDoor]) -> None:
    """GRID-125: a NotLeader without an address is in force, for as long as this test lasts."""

    async def sleep(seconds: float) -> None:
        await (asyncio.Event().wait() if seconds >= 30 else asyncio.sleep(seconds / 10))

    settings = replace(QUICK, pace=replace(QUICK.pace, sleep=sleep))
    async with GridMultiClient("clientA", [door.address for door in doors], settings=settings) as client:
        await all_live(client)
        await doors[1].talks[0].send_away(after_ms=30_000)
        await eventually(lambda: client.stats().groups[1].state == "paused")
        results = [await future for future in await submitted(client, 4)]
        assert {result.worker_id for result in results} == {"a", "c"}


async def test_without_any_group_jobs_wait_in_their_order(doors: list[FakeDoor]) -> None:
    """GRID-127"""
    for door in doors:
        await door.stop()
    client = client_of(doors)
    connecting = asyncio.create_task(client.connect())
    futures = await submitted(client, 5)
    assert client.stats().pending == 5
    await doors[2].start()
    await connecting
    assert [(await future).worker_id for future in futures] == ["c"] * 5
    assert [request.args for request in doors[2].submits] == [(str(number),) for number in range(5)]
    assert client.stats().pending == 0
    await client.close()


async def test_beyond_its_bound_submit_waits(doors: list[FakeDoor], monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-127: 100,000; here 3."""
    assert multi.PENDING_MAX == 100_000
    monkeypatch.setattr(multi, "PENDING_MAX", 3)
    for door in doors:
        await door.stop()
    client = client_of(doors)
    connecting = asyncio.create_task(client.connect())
    await submitted(client, 3)
    fourth = asyncio.create_task(client.submit(ask(3)))
    await asyncio.sleep(0.02)
    assert not fourth.done()
    await doors[0].start()
    assert (await (await fourth)).stdout == "3"
    await connecting
    await client.close()


async def test_fewer_jobs_than_groups_at_once_are_kept(doors: list[FakeDoor]) -> None:
    """GRID-124: a total of 2 over three groups: never more than 2 sent and unfinished."""
    for door in doors:
        door.is_holding = True
    async with client_of(doors, 2) as client:
        await all_live(client)
        futures = await submitted(client, 6)
        for round_ in range(6):
            await eventually(lambda round_=round_: sum(len(d.submits) for d in doors) == min(round_ + 2, 6))  # type: ignore[misc]
            assert sum(group.unfinished for group in client.stats().groups) <= 2
            oldest = next(future for future in futures if not future.done())
            for door in doors:
                for request in door.submits:
                    if request.args == (str(futures.index(oldest)),):
                        await door.finish(request.job_id)
            await oldest


async def test_a_refused_group_is_left_out_and_the_others_serve(doors: list[FakeDoor]) -> None:
    """GRID-131"""

    async def refuse(talk: Talk, frame: Frame) -> None:
        await talk.refuse(frame, Code.FORBIDDEN)

    doors[0].on_hello = refuse
    async with client_of(doors) as client:
        await eventually(lambda: [group.state for group in client.stats().groups] == ["closed", "live", "live"])
        assert {(await future).worker_id for future in await submitted(client, 4)} == {"b", "c"}
    for door in doors:
        door.on_hello = refuse
    nobody = client_of(doors)
    with pytest.raises(GridRefused, match="FORBIDDEN"):
        await nobody.connect()
    await nobody.close()


async def test_a_job_of_another_process_is_cancelled_wherever_it_is(doors: list[FakeDoor]) -> None:
    """GRID-121, GRID-163"""
    job_id = str(uuid4())
    doors[1].is_holding = True
    async with client_of(doors) as client:
        await all_live(client)
        request = Frame(3, replace(ask(job_id=job_id), client_id="clientA").to_payload(), uuid4())
        doors[1].talks[0].asked[job_id] = request
        assert (await client.cancel(job_id)).status is RunState.CANCELLED
        assert [len(door.cancels) for door in doors] == [1, 1, 1]
        with pytest.raises(GridRefused, match="NOT_FOUND"):
            await client.cancel(str(uuid4()))
        assert [group.unfinished for group in client.stats().groups] == [0, 0, 0]


async def test_two_who_cancel_the_same_job_hear_the_same(doors: list[FakeDoor]) -> None:
    """GRID-163: also while the first of them is being answered."""
    async with client_of(doors) as client:
        await all_live(client)
        job_id = str(uuid4())
        answers = await asyncio.gather(client.cancel(job_id), client.cancel(job_id), return_exceptions=True)
        assert [isinstance(answer, GridRefused) and answer.code for answer in answers] == [Code.NOT_FOUND] * 2
        assert [len(door.cancels) for door in doors] == [1, 1, 1]


async def test_a_group_that_is_given_up_keeps_nobody_waiting(doors: list[FakeDoor], tmp_path: Path) -> None:
    """GRID-146, GRID-163: neither for its answer to a cancel, nor for a file."""
    async with client_of(doors) as client:
        await all_live(client)
        job_id = str(uuid4())
        doors[0].objects[job_id] = b"a zip"
        result = await client.run(ask(job_id=job_id))
        gives_up_soon(client, 0)
        await doors[0].stop()
        await eventually(lambda: client.stats().groups[0].state == "closed")
        async with asyncio.timeout(120):
            with pytest.raises(GridRefused, match="NOT_FOUND"):
                await client.cancel(str(uuid4()))
            with pytest.raises(DoorUnreachable):
                await client.save_output(result, tmp_path / "output.zip")
        assert not list(tmp_path.iterdir())


async def test_a_large_archive_comes_from_the_group_that_has_it(doors: list[FakeDoor], tmp_path: Path) -> None:
    """GRID-146"""
    data = bytes(range(256)) * 10_000
    async with client_of(doors) as client:
        await all_live(client)
        for number in range(3):
            job_id = str(uuid4())
            doors[number].objects[job_id] = data
            result = await client.run(ask(job_id=job_id))
            assert await client.save_output(result, tmp_path / f"{number}.zip")
            assert (tmp_path / f"{number}.zip").read_bytes() == data


async def test_every_job_has_one_result_while_doors_come_and_go(doors: list[FakeDoor]) -> None:
    """GRID-132, GRID-141: connections break at random for a while."""
    async with client_of(doors, grace_seconds=2.0) as client:
        await all_live(client)

        async def slowly(talk: Talk, frame: Frame) -> None:
            await asyncio.sleep(0.003)
            await talk.door.accept(talk, frame)

        for door in doors:
            door.on_submit = slowly

        async def havoc() -> None:
            for number in range(200):
                door = doors[number % 3]
                if number % 4 == 3:
                    await door.stop()
                    await asyncio.sleep(0.1)
                    await door.start()
                else:
                    door.drop()
                await asyncio.sleep(0.01)

        breaking = asyncio.create_task(havoc())
        futures = await submitted(client, 300)
        async with asyncio.timeout(200):
            results = [await future for future in futures]
        breaking.cancel()
        await asyncio.wait({breaking})
        assert [result.stdout for result in results] == [str(number) for number in range(300)]
        assert len({result.job_id for result in results}) == 300
        stats = client.stats()
        assert (stats.pending, sum(group.unfinished for group in stats.groups)) == (0, 0)
        assert min(group.reconnects for group in stats.groups) > 0


@pytest.mark.parametrize("groups", [[], ["127.0.0.1"], ["127.0.0.1:0"], ["127.0.0.1:99999"], ["a b:1"], ["h:1|"]])
def test_what_is_no_address_is_refused(groups: list[str]) -> None:
    """GRID-190"""
    with pytest.raises(UsageError, match=r"example: 127\.0\.0\.1:5000"):
        GridMultiClient("c", groups)


def test_ids_and_caps_are_checked() -> None:
    """GRID-3, GRID-190"""
    with pytest.raises(GridRefused):
        GridMultiClient("a.b", ["127.0.0.1:1"])
    with pytest.raises(UsageError):
        GridMultiClient("c", ["127.0.0.1:1"], desired_total=0)
