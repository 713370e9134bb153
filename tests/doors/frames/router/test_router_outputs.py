"""Outputs pass through a router."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from support.grid.fake_door import FakeDoor, Talk
from support.grid.peers import a_job_id
from support.grid.router_acts import connected, done
from support.grid.routers import OpenRouter
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_output_passes_through_from_where_it_is_asked_for(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-146"""
    data = secrets.token_bytes(3_000_000)
    async with connected(router) as client:
        request = client.request()
        g1.objects[request.job_id] = g2.objects[request.job_id] = data
        await done(client, request=request)
        assert await client.fetched(request.job_id, "output.zip") == data
        assert await client.fetched(request.job_id, "output.zip", 1_000_000) == data[1_000_000:]
        get = ObjectGet(job_id=a_job_id(), name="output.zip", offset=0)
        await client.send(Type.OBJECT_GET, get.to_payload())
        _, error = await client.error("NOT_FOUND")
        assert error.job_id == get.job_id
        assert not any(peer._passages for peer in router.sides)


async def test_an_output_goes_on_where_it_broke_off(router: OpenRouter, g1: FakeDoor, g2: FakeDoor) -> None:
    """GRID-146: the door is lost in the middle, and the client does not notice."""
    data = secrets.token_bytes(3_000_000)
    cuts: list[int] = []

    async def cut_once(talk: Talk, frame: Frame) -> None:
        if cuts:
            await talk.door.send_parts(talk, frame, data)
            return
        cuts.append(ObjectGet.read(frame.payload).offset)
        part = BinaryPart(
            job_id=request.job_id, name="output.zip", offset=0, size=len(data), last=False, data=data[:1_000_000]
        )
        await talk.say(Type.OBJECT_CHUNK, part, frame)
        await eventually(lambda: talk.wire.bytes_written > 1_000_000)
        talk.door.drop()

    g1.on_get = g2.on_get = cut_once
    async with connected(router) as client:
        request = client.request()
        g1.objects[request.job_id] = g2.objects[request.job_id] = data
        await done(client, request=request)
        assert await client.fetched(request.job_id, "output.zip") == data
    assert len(g1.gets + g2.gets) == 2


async def test_an_output_of_a_group_that_is_gone_is_unavailable_and_not_waited_for(
    router: OpenRouter, g1: FakeDoor, g2: FakeDoor
) -> None:
    """GRID-146: before it is requested, and during the transfer."""
    asked = asyncio.Event()

    async def never(talk: Talk, frame: Frame) -> None:
        asked.set()

    g1.on_get = g2.on_get = never
    async with connected(router) as client:
        job_id = (await done(client)).job_id
        get = ObjectGet(job_id=job_id, name="output.zip", offset=0).to_payload()
        await client.send(Type.OBJECT_GET, get)
        await asked.wait()
        await g1.stop()
        await g2.stop()
        _, error = await client.error("UNAVAILABLE")
        assert error.job_id == job_id
        await client.send(Type.OBJECT_GET, get)
        await client.error("UNAVAILABLE")
