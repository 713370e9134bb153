"""Our client's way out: the library's own bytes, in bunches while there are many and at once when there are few."""

from __future__ import annotations

import asyncio
import time

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from pyoco_server.ports.nats.client import QuickClient
from support.nats_clients import connected, hear, receive, settled
from support.servers import NatsServer, unique
from support.waiting import eventually

#: So long that whatever is held is still held when a test looks.
HOUR = 3600.0


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


class TestSending:
    @pytest.mark.parametrize("headers", [None, {"A": "b"}, {"Nats-Msg-Id": "日本", "Nats-Expected-Last-Sequence": "7"}])
    @pytest.mark.parametrize("reply", ["", "an.inbox"])
    @pytest.mark.parametrize("data", [b"", b"text", "日本\r\n\0".encode(), b"x" * 100_000], ids=len)
    async def test_send_is_publish_on_the_wire(
        self,
        nc: QuickClient,
        plain: Client,
        monkeypatch: pytest.MonkeyPatch,
        data: bytes,
        reply: str,
        headers: dict[str, str] | None,
    ) -> None:
        subject = unique("s")
        received = await receive(plain, subject)
        writes = writes_of(nc, monkeypatch)
        await nc.send(subject, data, reply, headers)
        await settled(nc)
        await nc.publish(subject, data, reply, headers)
        await settled(nc)
        await eventually(lambda: len(received) == 2)
        assert {(message.subject, message.reply, message.data) for message in received} == {(subject, reply, data)}
        assert [message.headers for message in received] == [headers, headers]
        sent = [write for write in writes if write]
        assert len(sent) == 2
        assert sent[0] == sent[1]

    async def test_what_is_larger_than_the_server_takes_is_refused_and_not_sent(
        self, nc: QuickClient, plain: Client
    ) -> None:
        subject = unique("s")
        received = await receive(plain, subject)
        limit = nc.max_payload
        with pytest.raises(nats.errors.MaxPayloadError):
            await nc.send(subject, b"x" * (limit + 1))
        await nc.send(subject, b"x" * limit)
        await eventually(lambda: len(received) == 1)
        assert len(received[0].data) == limit
        assert nc.is_connected

    async def test_a_closed_client_sends_nothing(self, nats_url: str) -> None:
        nc = await connected(nats_url)
        await nc.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await nc.send("a", b"x")

    async def test_what_is_said_while_the_server_is_away_is_sent_afterwards(self, own_nats_server: NatsServer) -> None:
        nc = await connected(own_nats_server.url)
        nc.in_flight = nc.CROWD
        heard = await hear(nc, "a")
        await asyncio.to_thread(own_nats_server.kill)
        await eventually(lambda: not nc.is_connected)
        texts = [b"%d" % number for number in range(100)]
        for text in texts:
            await nc.send("a", text)
            await asyncio.sleep(0)
        await asyncio.to_thread(own_nats_server.start)
        await heard.has(len(texts))
        assert heard.texts == texts
        await nc.close()


class TestBunching:
    """While many questions wait for answers, messages leave together; a single one never waits."""

    async def test_a_crowd_leaves_in_bunches_whole_and_in_order(
        self, nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = unique("s")
        received = await receive(plain, subject)
        writes = writes_of(nc, monkeypatch)
        nc.in_flight = nc.CROWD
        began = time.monotonic()
        texts = [b"%d" % number for number in range(2000)]
        for text in texts:
            await nc.send(subject, text)
            await asyncio.sleep(0)  # the flusher may write, if it was told to
        await eventually(lambda: len(received) >= len(texts))
        spent = time.monotonic() - began
        assert [message.data for message in received] == texts
        assert len(writes) <= 2 + spent / nc.PAUSE_SECONDS
        assert (nc._pending, nc._pending_data_size, nc._due) == ([], 0, None)

    async def test_within_one_pause_a_crowd_needs_two_writes(
        self, nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first leaves at once, all others together."""
        subject = unique("s")
        received = await receive(plain, subject)
        writes = writes_of(nc, monkeypatch)
        monkeypatch.setattr(nc, "PAUSE_SECONDS", 0.5)
        nc._sent_at = 0.0
        nc.in_flight = nc.CROWD
        began = time.monotonic()
        for number in range(200):
            await nc.send(subject, b"%d" % number)
            await asyncio.sleep(0)
        spent = time.monotonic() - began
        await eventually(lambda: len(received) == 200)
        assert [message.data for message in received] == [b"%d" % number for number in range(200)]
        assert len(writes) <= 2 + int(spent / 0.5)  # two, on a machine that is not stuck

    async def test_without_a_crowd_each_message_leaves_at_once(
        self, nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes = writes_of(nc, monkeypatch)
        monkeypatch.setattr(nc, "PAUSE_SECONDS", HOUR)
        nc.in_flight = nc.CROWD - 1
        for count in range(1, 51):
            await nc.send("a", b"x")
            await asyncio.sleep(0)
            assert len(writes) == count
            assert nc._pending_data_size == 0

    async def test_a_single_question_waits_for_no_pause(
        self, nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nc, "PAUSE_SECONDS", HOUR)
        subject, inbox = unique("s"), unique("i")
        heard = await hear(nc, inbox)

        async def answer(message: Msg) -> None:
            await message.respond(message.data)

        await plain.subscribe(subject, cb=answer)
        await settled(plain)
        nc.in_flight = 1
        for count in range(1, 31):
            await nc.send(subject, b"x", inbox)
            await heard.has(count)

    async def test_a_forced_flush_waits_for_no_pause(
        self, nc: QuickClient, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = unique("s")
        received = await receive(plain, subject)
        monkeypatch.setattr(nc, "PAUSE_SECONDS", HOUR)
        nc._sent_at = asyncio.get_running_loop().time()
        nc.in_flight = nc.CROWD
        for text in (b"1", b"2"):
            await nc.send(subject, text)
            await settled(plain)
        assert received == []
        assert nc._pending_data_size > 0
        await nc._flush_pending(force_flush=True)
        assert nc._pending_data_size == 0
        await eventually(lambda: len(received) == 2)
        assert [message.data for message in received] == [b"1", b"2"]

    async def test_more_than_the_buffer_holds_waits_for_no_pause(
        self, nats_url: str, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The library's `_send_command` forces a flush then."""
        nc = await connected(nats_url, pending_size=10_000)
        subject = unique("s")
        received = await receive(plain, subject)
        monkeypatch.setattr(nc, "PAUSE_SECONDS", HOUR)
        nc._sent_at = asyncio.get_running_loop().time()
        nc.in_flight = nc.CROWD
        for _ in range(100):
            await nc.send(subject, b"x" * 1000)
            assert nc._pending_data_size <= 10_000
        await eventually(lambda: len(received) >= 90)
        await nc.close()

    async def test_nothing_is_left_behind_when_the_crowd_has_gone(self, nc: QuickClient, plain: Client) -> None:
        subject = unique("s")
        received = await receive(plain, subject)
        texts = []
        for number in range(100):
            nc.in_flight = nc.CROWD
            for part in (b"a", b"b", b"c"):
                texts.append(b"%d%s" % (number, part))
                await nc.send(subject, texts[-1])
                await asyncio.sleep(0)
            nc.in_flight = 0
            if number % 2:  # held back for the crowd, or sent while others are held: neither may stay
                texts.append(b"%d" % number)
                await nc.send(subject, texts[-1])
            await eventually(lambda: len(received) == len(texts))
            await eventually(lambda: nc._due is None)
            assert nc._pending_data_size == 0
        assert [message.data for message in received] == texts

    async def test_what_is_held_is_sent_before_the_client_closes(
        self, nats_url: str, plain: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nc = await connected(nats_url)
        subject = unique("s")
        received = await receive(plain, subject)
        monkeypatch.setattr(nc, "PAUSE_SECONDS", HOUR)
        nc._sent_at = asyncio.get_running_loop().time()
        nc.in_flight = nc.CROWD
        await nc.send(subject, b"held")
        assert nc._pending_data_size > 0
        await nc.close()
        await eventually(lambda: len(received) == 1)
        assert received[0].data == b"held"
