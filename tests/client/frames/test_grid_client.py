"""A client of one group against a door that does what a test says."""

from __future__ import annotations

import asyncio
import random
from uuid import uuid4

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage, NotLeader
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.states import RunState
from pyoco_server.frames.wire import fresh
from pyoco_server.grid_client import (
    ClientClosed,
    GridClient,
    GridRefused,
    JobRequest,
    LinkSettings,
    Pace,
)
from support.grid.fake_door import FakeDoor, Talk, fake_door
from support.grid.single_clients import ask, client, client_of, door
from support.waiting import eventually

__all__ = ["client", "door"]


async def test_a_job_gets_its_result(door: FakeDoor, client: GridClient) -> None:
    """GRID-120, GRID-133"""
    result = await client.run(JobRequest(exec_name="calcA", args=("a", "b"), files={"in.txt": b"x"}, timeout_sec=5))
    assert (result.status, result.stdout, result.client_id) == (RunState.COMPLETED, "a b", "clientA")
    (request,) = door.submits
    assert (request.files, request.timeout_sec) == ({"in.txt": b"x"}, 5)
    (hello,) = door.hellos
    assert (hello.client_id, hello.desired_parallelism, hello.token) == ("clientA", 4, "k")
    stats = client.stats()
    (group,) = stats.groups
    assert (group.state, group.share, group.unfinished, group.sent, group.results) == ("live", 4, 0, 1, 1)
    assert (group.reconnects, stats.pending, stats.failovers, stats.late_results) == (0, 0, 0, 0)


async def test_many_jobs_are_sent_without_waiting_and_answered_in_any_order(door: FakeDoor, client: GridClient) -> None:
    """GRID-37"""
    door.is_holding = True
    futures = [await client.submit(ask("calcA", str(number))) for number in range(300)]
    await eventually(lambda: len(door.submits) == 300)
    order = list(door.submitted)
    random.Random(8).shuffle(order)
    for job_id in order:
        await door.finish(job_id)
    assert [(await future).stdout for future in futures] == [str(number) for number in range(300)]


async def test_a_job_id_in_the_table_gives_the_same_future(door: FakeDoor, client: GridClient) -> None:
    """GRID-128"""
    door.is_holding = True
    job_id = str(uuid4())
    first = await client.submit(ask(job_id=job_id))
    assert await client.submit(ask(job_id=job_id.upper())) is first
    await eventually(lambda: len(door.submits) == 1)
    await door.finish(job_id)
    assert (await first).job_id == job_id
    # Once it has its result, the door is asked again.
    door.is_holding = False
    assert (await client.run(ask(job_id=job_id))).job_id == job_id
    assert len(door.submits) == 2


async def test_whoever_stops_waiting_can_ask_again(door: FakeDoor, client: GridClient) -> None:
    """GRID-122: the job stays in the table."""
    door.is_holding = True
    job_id = str(uuid4())
    waiting = asyncio.create_task(client.run(ask(job_id=job_id)))
    await eventually(lambda: len(door.submits) == 1)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    future = await client.submit(ask(job_id=job_id))
    await eventually(lambda: len(door.submits) == 1)
    await door.finish(job_id)
    assert (await future).status is RunState.COMPLETED


async def test_after_a_lost_connection_all_unfinished_jobs_are_submitted_again(
    door: FakeDoor, client: GridClient
) -> None:
    """GRID-122, GRID-141: in their order, with the same bytes; those with a result are not."""
    door.is_holding = True
    futures = [await client.submit(ask("calcA", str(number))) for number in range(5)]
    await eventually(lambda: len(door.submits) == 5)
    done, *rest = door.submitted
    first = door.payloads[1:]
    await door.finish(done)
    await futures[0]
    door.drop()
    await eventually(lambda: len(door.submits) == 9)
    assert door.submitted[5:] == rest
    assert door.payloads[5:] == first
    for job_id in rest:
        await door.finish(job_id)
    assert [(await future).stdout for future in futures] == ["0", "1", "2", "3", "4"]
    assert client.stats().groups[0].reconnects == 1
    assert client.stats().late_results == 0


async def test_a_second_result_is_dropped_and_counted(door: FakeDoor, client: GridClient) -> None:
    """GRID-132, GRID-141"""
    result = await client.run(ask())
    await door.finish(result.job_id, stdout="late")
    await eventually(lambda: client.stats().late_results == 1)


async def test_another_door_of_the_group_is_used_when_one_is_gone(door: FakeDoor) -> None:
    """GRID-40, GRID-122: one from the command line, and one that the first door named."""
    async with fake_door() as second, fake_door() as third:
        door.is_holding = second.is_holding = True
        door.doors = (third.address,)
        async with client_of(door, second) as client:
            future = await client.submit(ask())
            await eventually(lambda: len(door.submits) == 1)
            await door.stop()
            await eventually(lambda: len(third.submits) == 1 or len(second.submits) == 1)
            third.is_holding = False
            await second.stop()
            assert (await future).job_id == door.submitted[0] == third.submitted[-1]


async def test_a_door_that_drains_names_the_next_one(door: FakeDoor) -> None:
    """GRID-45: at once, without backoff; all unfinished jobs again, with the same JobIds."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async with fake_door() as second:
        door.is_holding = True
        async with client_of(door, settings=LinkSettings(pace=Pace(sleep=sleep))) as client:
            futures = [await client.submit(ask()) for _ in range(3)]
            await eventually(lambda: len(door.submits) == 3)
            await door.talks[0].send_away(second.address)
            results = [await future for future in futures]
            assert second.submitted == door.submitted == [result.job_id for result in results]
            assert pauses == []
            await eventually(lambda: not door.talks)


async def test_a_door_that_redirects_a_hello_is_left_for_the_one_it_names(door: FakeDoor) -> None:
    """GRID-42, GRID-45"""
    async with fake_door() as second:

        async def not_here(talk: Talk, frame: Frame) -> None:
            await talk.say(Type.NOT_LEADER, NotLeader(reason="standby", group="g", leader=second.address), frame)

        door.on_hello = not_here
        async with client_of(door) as client:
            await client.run(ask())
        assert (len(door.hellos), len(second.hellos)) == (1, 1)


async def test_two_doors_that_name_each_other_are_not_asked_without_a_pause_for_ever(door: FakeDoor) -> None:
    """GRID-45: five times in ten seconds, then with a growing delay."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.01)

    async with fake_door() as second:

        def naming(other: FakeDoor) -> NotLeader:
            return NotLeader(reason="standby", group="g", leader=other.address, retry_after_ms=0)

        async def to_second(talk: Talk, frame: Frame) -> None:
            await talk.say(Type.NOT_LEADER, naming(second), frame)

        async def to_first(talk: Talk, frame: Frame) -> None:
            await talk.say(Type.NOT_LEADER, naming(door), frame)

        door.on_hello, second.on_hello = to_second, to_first
        pace = Pace(clock=lambda: 1.0, chance=lambda: 0.5, sleep=sleep)
        client = client_of(door, settings=LinkSettings(pace=pace))
        connecting = asyncio.create_task(client.connect())
        await eventually(lambda: len(pauses) >= 3)
        assert len(door.hellos) + len(second.hellos) >= 6  # the first one, and five that were named
        assert pauses[:3] == [0.5, 1.0, 2.0]
        connecting.cancel()
        await client.close()


async def test_without_another_door_it_stays_and_asks_again(door: FakeDoor, client: GridClient) -> None:
    """GRID-42, GRID-45: a NotLeader without an address; the job was not taken."""
    answers = iter([None, None])

    async def later(talk: Talk, frame: Frame) -> None:
        if next(answers, "enough") is None:
            await talk.send_away()
        else:
            await door.accept(talk, frame)

    door.on_submit = later
    result = await client.run(ask())
    assert door.submitted == [result.job_id] * 3
    assert len(door.hellos) == 1
    assert client.stats().groups[0].reconnects == 0


async def test_a_door_without_an_answer_to_the_hello_is_asked_again(door: FakeDoor) -> None:
    """GRID-42: NotLeader with null; then it serves."""
    tries = iter(range(2))

    async def later(talk: Talk, frame: Frame) -> None:
        if next(tries, None) is not None:
            await talk.send_away(after_ms=1)
        else:
            await door.welcome(talk, frame)

    door.on_hello = later
    async with client_of(door) as client:
        await client.run(ask())
    assert len(door.hellos) == 3


@pytest.mark.parametrize("code", [Code.QUEUE_FULL, Code.UNAVAILABLE, Code.INTERNAL])
async def test_what_may_work_later_is_tried_again(door: FakeDoor, client: GridClient, code: Code) -> None:
    """GRID-122: an Error with Retry true; the same JobId."""
    tries = iter(range(2))

    async def full(talk: Talk, frame: Frame) -> None:
        if next(tries, None) is not None:
            await talk.refuse(frame, code, retry_after_ms=1)
        else:
            await door.accept(talk, frame)

    door.on_submit = full
    result = await client.run(ask())
    assert door.submitted == [result.job_id] * 3


async def test_what_never_works_ends_the_job_with_its_error(door: FakeDoor, client: GridClient) -> None:
    """GRID-122: an Error with Retry false; other jobs go on."""

    async def judge(talk: Talk, frame: Frame) -> None:
        if frame.subject == "job.submit.bad":
            await talk.refuse(frame, Code.FORBIDDEN)
        else:
            await door.accept(talk, frame)

    door.on_submit = judge
    bad, good = await client.submit(ask("bad")), await client.submit(ask())
    with pytest.raises(GridRefused) as caught:
        await bad
    assert caught.value.code is Code.FORBIDDEN
    assert (await good).status is RunState.COMPLETED
    assert client.stats().groups[0].unfinished == 0


async def test_an_error_is_matched_by_its_job_when_its_corr_id_says_nothing(door: FakeDoor, client: GridClient) -> None:
    """GRID-26: and one that matches nothing is dropped."""

    async def judge(talk: Talk, frame: Frame) -> None:
        stray = ErrorMessage(code="NEW_CODE", message="what", job_id=str(uuid4()))
        await talk.wire.send(fresh(Type.ERROR, stray.to_payload()))
        mine = ErrorMessage(code="NEW_CODE", message="what", job_id=door.submitted[-1])
        await talk.wire.send(fresh(Type.ERROR, mine.to_payload()))

    door.on_submit = judge
    with pytest.raises(GridRefused, match="what") as caught:
        await client.run(ask())
    assert caught.value.code is Code.INTERNAL


async def test_a_door_that_says_nonsense_is_left_and_asked_again(door: FakeDoor, client: GridClient) -> None:
    """GRID-196: bad frame from a door: logged, closed, reconnect."""
    lies = iter([b"\xff\xff\xff\xff", fresh(Type.RESULT, b"no").payload])

    async def lie(talk: Talk, frame: Frame) -> None:
        lie = next(lies, None)
        if lie == b"no":
            await talk.wire.send(fresh(Type.RESULT, lie))
        elif lie is not None:
            talk.wire._writer.write(lie)
        else:
            await door.accept(talk, frame)

    door.on_submit = lie
    result = await client.run(ask())
    assert door.submitted == [result.job_id] * 3
    assert client.stats().groups[0].reconnects == 2


async def test_frames_that_nobody_knows_are_dropped(door: FakeDoor, client: GridClient) -> None:
    """GRID-26"""

    async def chatter(talk: Talk, frame: Frame) -> None:
        await talk.wire.send(fresh(Type.OBJECT_ACK, b"{}"))
        await talk.wire.send(fresh(Type.HEARTBEAT))
        await door.accept(talk, frame)

    door.on_submit = chatter
    await client.run(ask())
    assert len(door.hellos) == 1


async def test_closing_ends_what_waits_and_leaves_nothing_behind(door: FakeDoor) -> None:
    """GRID-133"""
    door.is_holding = True
    client = client_of(door)
    await client.connect()
    future = await client.submit(ask())
    await client.submit(ask())  # nobody waits for this one
    await eventually(lambda: len(door.submits) == 2)
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await future
    with pytest.raises(ClientClosed):
        await client.submit(ask())
    assert client.stats().groups[0].state == "closed"
    await eventually(lambda: not door.talks)
    await eventually(lambda: len(asyncio.all_tasks()) == 1, 5)
