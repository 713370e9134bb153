"""Whatever a client or a door does, a router holds bounded things, and lets go of them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import JobRequest, ObjectGet
from pyoco_server.core.programs.faults import Code
from pyoco_server.doors.frames.router import outbox, placed
from pyoco_server.frames import wire
from support.grid.fake_door import FakeDoor, Talk
from support.grid.peers import ClientPeer
from support.grid.router_acts import connected, done
from support.grid.routers import OpenRouter
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def tasks_besides(before: set[asyncio.Task[Any]]) -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() - before - {asyncio.current_task()}]


async def test_after_a_client_has_gone_nothing_of_it_is_left(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-137: with jobs, a cancel, a file and a retry under way."""
    before = asyncio.all_tasks()
    g1.is_holding = True

    async def never(talk: Talk, frame: Frame) -> None:
        """Says nothing."""

    g2.on_submit = lambda talk, frame: talk.refuse(frame, Code.QUEUE_FULL)
    g1.on_get = g1.on_cancel = never
    for how in ("close", "abort"):
        client = await ClientPeer.connect(router.port)
        await client.hello("anna")
        for _ in range(20):
            await client.submit()
        await eventually(lambda: len(g2.submits) >= 10 and len(g1.submits) >= 10)
        await client.cancel(g1.submitted[0])
        await client.send(Type.OBJECT_GET, ObjectGet(job_id=g1.submitted[0], name="output.zip", offset=0).to_payload())
        await eventually(lambda: bool(g1.gets))
        (client.abort if how == "abort" else client._writer.close)()
        await eventually(lambda: not router.router.sessions and not g1.talks and not g2.talks)
        await eventually(lambda: not tasks_besides(before))
        assert router.context.held.in_use == router.context.in_work.in_use == 0
        g1.submits.clear()
        g2.submits.clear()
        g1.gets.clear()
        await client.close()


async def test_a_client_that_does_not_read_stops_its_groups_and_not_the_router(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-77, GRID-195: results wait where they are; tasks do not grow; when it reads, all of them come."""
    monkeypatch.setattr(wire, "QUEUE_BYTES_MAX", 2**20)
    monkeypatch.setattr(outbox, "_BYTES_MAX", 2**20)
    sent = []

    async def large(talk: Talk, frame: Frame) -> None:
        await talk.ack(frame)
        await talk.door.end(talk, frame, stdout="x" * 300_000)
        sent.append(JobRequest.read(frame.payload).job_id)

    g1.on_submit = g2.on_submit = large
    async with connected(router, "slow", 100) as client:
        before = len(asyncio.all_tasks())
        jobs = [(await client.submit())[0].job_id for _ in range(120)]
        counts: list[int] = []

        async def is_still() -> bool:
            counts.append(len(sent))
            await asyncio.sleep(0.2)
            return len(counts) > 4 and len(set(counts[-4:])) == 1

        await eventually(is_still)
        assert len(sent) < 100
        (peer,) = router.sides
        assert len(peer._outbox) <= outbox._FRAMES_MAX + 4
        assert len(asyncio.all_tasks()) - before < 100
        async with connected(router, "quick") as other:
            g1.on_submit, g2.on_submit = g1.accept, g2.accept
            await done(other)
        g1.on_submit = g2.on_submit = large
        got = [await client.result() for _ in jobs]
        assert sorted(each.job_id for each in got) == sorted(jobs)


async def test_what_is_under_way_is_bounded(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-195: more is refused for now, and taken later."""
    monkeypatch.setattr(placed, "_BYTES_MAX", 100_000)
    g1.is_holding = g2.is_holding = True
    async with connected(router) as client:
        first = await client.accepted(files={"a": b"x" * 40_000})
        request, _ = await client.submit(files={"a": b"x" * 40_000})
        _, error = await client.error("QUEUE_FULL")
        assert (error.job_id, error.retry) == (request.job_id, True)
        for door in (g1, g2):
            await door.finish(first.job_id)
        await client.result()
        assert (await client.accepted(request)).job_id == request.job_id


async def test_a_damaged_answer_of_a_door_does_not_reach_the_client(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-195: the group's connection is made anew, and the job is requested again."""
    lies: list[Frame] = []

    async def lie_once(talk: Talk, frame: Frame) -> None:
        if not lies:
            lies.append(frame)
            await talk.wire.send(Frame(Type.SUBMIT_ACK, b"{}", uuid.uuid4()))
            return
        await talk.door.accept(talk, frame)

    g1.on_submit = g2.on_submit = lie_once
    async with connected(router) as client:
        await done(client)
