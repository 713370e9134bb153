"""Failover of a client of several groups: jobs that move after the grace period, and their cancellation."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import CancelJob
from pyoco_server.core.programs.faults import Code
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.grid_client import GridMultiClient, JobRequest
from support.grid.fake_door import QUICK, Answer, FakeDoor, Talk
from support.grid.multi_clients import GRACE, all_live, ask, client_of, doors, gives_up_soon, submitted
from support.waiting import eventually

__all__ = ["doors"]


async def test_a_group_that_is_back_within_the_grace_keeps_its_jobs(doors: list[FakeDoor]) -> None:
    """GRID-129: the grace ends when this test says so."""
    doors[0].is_holding = True
    is_over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await (is_over.wait() if seconds == GRACE else asyncio.sleep(seconds / 10))

    settings = replace(QUICK, pace=replace(QUICK.pace, sleep=sleep))
    async with GridMultiClient("clientA", [door.address for door in doors], settings=settings) as client:
        await all_live(client)
        futures = await submitted(client, 3)
        await eventually(lambda: len(doors[0].submits) == 1)
        doors[0].drop()
        await eventually(lambda: len(doors[0].submits) == 2)
        assert doors[0].submitted[0] == doors[0].submitted[1]
        is_over.set()
        doors[0].is_holding = False
        await client.run(ask())
        await doors[0].finish(doors[0].submitted[0])
        assert [(await future).worker_id for future in futures] == ["a", "b", "c"]
        stats = client.stats()
        assert (stats.failovers, stats.late_results, stats.groups[0].reconnects) == (0, 0, 1)
        assert sum(len(door.submits) for door in doors) == 5


async def test_after_the_grace_jobs_go_to_other_groups_under_the_same_ids(doors: list[FakeDoor]) -> None:
    """GRID-128, GRID-129, GRID-140: and not before it has passed."""
    doors[0].is_holding = True
    async with client_of(doors) as client:
        await all_live(client)
        futures = await submitted(client, 12)
        await eventually(lambda: len(doors[0].submits) == 4)
        await asyncio.gather(*(future for number, future in enumerate(futures) if number % 3))
        lost = list(doors[0].submitted)
        began = time.monotonic()
        await doors[0].stop()
        results = [await future for future in futures]
        assert time.monotonic() - began >= GRACE / 10 * 0.95
        moved = [result for result in results if result.job_id in lost]
        assert {result.worker_id for result in moved} == {"b", "c"}
        assert sorted(result.job_id for result in moved) == sorted(lost)
        assert (client.stats().failovers, client.stats().late_results) == (4, 0)


async def test_a_group_that_comes_back_is_told_to_cancel_what_was_moved(doors: list[FakeDoor]) -> None:
    """GRID-130, GRID-132: a result from it is dropped and counted."""
    for door in doors:
        door.is_holding = True

    async def too_late(talk: Talk, frame: Frame) -> None:
        """It has finished the first one meanwhile, and never heard of the second."""
        if doors[0].cancels[-1].job_id == lost[0]:
            request = next(frame for frame in first_talk.asked.values() if lost[0].encode() in frame.payload)
            await doors[0].end(talk, request)
        else:
            await talk.refuse(frame, Code.NOT_FOUND)

    doors[0].on_cancel = too_late
    async with client_of(doors, grace_seconds=0.5) as client:
        await all_live(client)
        futures = await submitted(client, 6)
        await eventually(lambda: len(doors[0].submits) == 2)
        first_talk, lost = doors[0].talks[0], list(doors[0].submitted)
        await doors[0].stop()
        await eventually(lambda: sum(len(door.submits) for door in doors[1:]) == 6)
        # One of them finishes elsewhere before the group is back, one after.
        await asyncio.gather(*(door.finish(lost[0]) for door in doors[1:]))
        await eventually(lambda: sum(future.done() for future in futures) == 1)
        await doors[0].start()
        await eventually(lambda: len(doors[0].cancels) == 2)
        assert {cancel.job_id for cancel in doors[0].cancels} == set(lost)
        assert len(doors[0].submits) == 2
        await eventually(lambda: client.stats().late_results == 1)
        for door in doors[1:]:
            for job_id in door.submitted:
                await door.finish(job_id)
        results = [await future for future in futures]
        assert sorted(result.job_id for result in results) == sorted({*doors[1].submitted, *doors[2].submitted})
        assert client.stats().late_results == 1 + 1  # and the first one's second result, from where it had been moved
        # It is told once.
        doors[0].drop()
        await eventually(lambda: client.stats().groups[0].reconnects == 2)
        assert len(doors[0].cancels) == 2


async def test_a_group_that_comes_back_may_be_left_alone(doors: list[FakeDoor]) -> None:
    """GRID-130: `--no-cancel-stale`."""
    doors[0].is_holding = True
    async with client_of(doors, grace_seconds=0.5, cancel_stale=False) as client:
        await all_live(client)
        futures = await submitted(client, 3)
        await eventually(lambda: len(doors[0].submits) == 1)
        await doors[0].stop()
        await asyncio.gather(*futures)
        await doors[0].start()
        await eventually(lambda: client.stats().groups[0].state == "live")
        await client.run(ask())
        assert doors[0].cancels == []


async def test_a_job_that_comes_back_to_its_first_group_is_not_cancelled_there(doors: list[FakeDoor]) -> None:
    """GRID-129, GRID-130: nobody else was there, so it waited and is submitted where it was."""
    alone = doors[:1]
    alone[0].is_holding = True
    async with client_of(alone, grace_seconds=0.1) as client:
        future = await client.submit(ask())
        await eventually(lambda: len(alone[0].submits) == 1)
        await alone[0].stop()
        await eventually(lambda: client.stats().pending == 1)
        await alone[0].start()
        await eventually(lambda: len(alone[0].submits) == 2)
        await alone[0].finish(alone[0].submitted[0])
        assert (await future).job_id == alone[0].submitted[1]
        assert alone[0].cancels == []


def says_cancelled(door: FakeDoor) -> Answer:
    """As a door that has the record of the job: also when it is submitted once more."""

    async def say(talk: Talk, frame: Frame) -> None:
        message = CancelJob if frame.type == Type.CANCEL_JOB else JobRequest
        place = door.submitted.index(message.read(frame.payload).job_id)
        asked = Frame(Type.SUBMIT_JOB, door.payloads[place], frame.msg_id)
        await door.end(talk, asked, status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED)

    return say


async def test_a_job_never_goes_back_to_a_group_that_was_told_to_cancel_it(doors: list[FakeDoor]) -> None:
    """GRID-129, GRID-130: one group is away for a while and then the other, as in an upgrade of both."""
    first, second = doors[:2]
    first.is_holding = second.is_holding = True
    await second.stop()
    async with client_of([first, second], grace_seconds=0.5) as client:
        lasting, unwanted = await submitted(client, 2)
        await eventually(lambda: len(first.submits) == 2)
        first.on_cancel = first.on_submit = says_cancelled(first)
        await second.start()
        await all_live(client)
        await first.stop()
        await eventually(lambda: second.submitted == first.submitted)
        await first.start()
        await eventually(lambda: client.stats().late_results == 2)
        await second.stop()
        await eventually(lambda: client.stats().failovers == 4)
        assert (client.stats().pending, len(first.submits)) == (2, 2)
        # They keep nobody waiting, and may still be cancelled.
        first.is_holding, first.on_submit = False, first.accept
        assert (await client.run(ask(7))).worker_id == "a"
        assert (await client.cancel(second.submitted[1])).status is RunState.CANCELLED
        assert unwanted.done()
        second.is_holding = False
        await second.start()
        assert ((await lasting).worker_id, (await lasting).status) == ("b", RunState.COMPLETED)
        assert len(first.submits) == 3


async def test_a_job_goes_back_to_a_group_that_did_not_cancel_it(doors: list[FakeDoor]) -> None:
    """GRID-129: the door that is back has never heard of it, and says so, be it late."""
    first, second = doors[:2]
    first.is_holding = second.is_holding = True
    may_say = asyncio.Event()

    async def say_late(talk: Talk, frame: Frame) -> None:
        await may_say.wait()
        await talk.refuse(frame, Code.NOT_FOUND)

    first.on_cancel = say_late
    async with client_of([first, second], grace_seconds=0.5) as client:
        await all_live(client)
        future = await client.submit(ask())
        await eventually(lambda: len(first.submits) == 1)
        await first.stop()
        await eventually(lambda: len(second.submits) == 1)
        await first.start()
        await eventually(lambda: len(first.cancels) == 1)
        first.is_holding = False
        await second.stop()
        await eventually(lambda: client.stats().failovers == 2)
        assert client.stats().pending == 1
        may_say.set()
        assert (await future).worker_id == "a"


async def test_a_job_ends_where_it_was_cancelled_when_no_other_group_is_left(doors: list[FakeDoor]) -> None:
    """GRID-132: else it would wait for ever."""
    first, second = doors[:2]
    first.is_holding = second.is_holding = True
    async with client_of([first, second], grace_seconds=0.5) as client:
        await all_live(client)
        future = await client.submit(ask())
        await eventually(lambda: len(first.submits) == 1)
        first.on_cancel = first.on_submit = says_cancelled(first)
        await first.stop()
        await eventually(lambda: len(second.submits) == 1)
        await first.start()
        await eventually(lambda: client.stats().late_results == 1)
        gives_up_soon(client, 1)
        await second.stop()
        assert ((await future).worker_id, (await future).status) == ("a", RunState.CANCELLED)
        assert client.stats().groups[1].state == "closed"


async def test_a_job_that_was_not_sent_need_not_wait_for_the_grace(doors: list[FakeDoor]) -> None:
    """GRID-126: no byte of it was handed to the transport."""
    first, second = doors[:2]
    async with client_of(doors[:2], grace_seconds=1_000) as client:
        await all_live(client)
        # The first door stops reading: what is sent there stays on this side.
        asleep = asyncio.Event()

        async def sleep(talk: Talk, frame: Frame) -> None:
            await asleep.wait()

        first.on_submit = sleep
        big = JobRequest(exec_name="calcA", files={"big": bytes(3_000_000)})
        futures = [await client.submit(big) for _ in range(24)]
        await eventually(lambda: sum(future.done() for future in futures) == 12)
        await eventually(lambda: len(first.submits) == 1)
        first.is_holding = True
        first.on_submit = first.accept
        asleep.set()
        first.drop()
        await first.stop()
        await eventually(lambda: client.stats().groups[0].unfinished + sum(each.done() for each in futures) == 24)
        stats = client.stats()
        assert stats.failovers == 0
        assert 1 <= stats.groups[0].unfinished < 8  # what a socket holds; the rest was in our hands
        assert not set(first.submitted) & set(second.submitted)
