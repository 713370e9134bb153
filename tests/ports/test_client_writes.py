"""When our client writes by itself, and when it leaves that to the library's flusher."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from pyoco_server.ports.nats.client import QuickClient
from support.nats_clients import connected, receive
from support.servers import NatsServer, unique
from support.waiting import eventually


def writes_of(nc: QuickClient, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each write to the transport from now on."""
    transport = nc._transport
    assert transport is not None
    writes: list[bytes] = []
    write = transport.writelines

    def counted(payload: list[bytes]) -> None:
        writes.append(b"".join(payload))
        write(payload)

    monkeypatch.setattr(transport, "writelines", counted)
    return writes


async def test_what_is_said_in_one_turn_of_the_loop_leaves_together(
    nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a crowd: an answer to the queue goes with the next question."""
    subject = unique("s")
    received = await receive(plain, subject)
    writes = writes_of(nc, monkeypatch)
    nc.in_flight = 0
    await asyncio.gather(*(nc.send(subject, b"%d" % number) for number in range(5)))
    await asyncio.sleep(0)
    assert len(writes) == 1
    await eventually(lambda: len(received) == 5)
    assert [message.data for message in received] == [b"%d" % number for number in range(5)]


async def test_the_flusher_sleeps_while_the_connection_takes_what_it_is_given(
    nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nc._flush_queue is not None
    woken: list[object] = []
    put = nc._flush_queue.put_nowait

    def counted(item: asyncio.Future[object]) -> None:
        woken.append(item)
        put(item)

    monkeypatch.setattr(nc._flush_queue, "put_nowait", counted)
    subject = unique("s")
    received = await receive(plain, subject)
    for crowd in (0, nc.CROWD):
        nc.in_flight = crowd
        for number in range(20):
            await nc.send(subject, b"%d" % number)
            await asyncio.sleep(0)
    await eventually(lambda: len(received) == 40)
    assert woken == []


async def test_a_connection_that_takes_no_more_is_waited_for(own_nats_server: NatsServer) -> None:
    """What is not sent stays bounded: the library's flusher waits, and whoever says more waits for it."""
    nc = await connected(own_nats_server.url, pending_size=100_000, flush_timeout=30)
    received = await receive(nc, "a")
    said = 0

    async def talk() -> None:
        nonlocal said
        for _ in range(300):
            await nc.send("a", b"x" * 50_000)
            said += 1

    with own_nats_server.frozen():
        talking = asyncio.create_task(talk())
        transport = nc._transport
        assert transport is not None
        writer = transport._io_writer  # type: ignore[attr-defined]  # of TCP
        await eventually(lambda: writer.transport.get_write_buffer_size() > 0)
        so_far = -1
        while so_far != said:  # until nothing moves any more
            so_far = said
            await asyncio.sleep(0.3)
        assert said < 300
        assert writer.transport.get_write_buffer_size() + nc._pending_data_size < 1_000_000
    async with asyncio.timeout(60):
        await talking
    await eventually(lambda: len(received) == 300)
    await nc.close()
