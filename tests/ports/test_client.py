"""Our client's way in, and what a new version of nats-py must not change unnoticed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig

from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.client import QuickClient, Raw
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.patience import within
from support.nats_clients import Heard, connected, hear, receive, reconnected, settled
from support.servers import NatsServer, unique
from support.waiting import eventually


class TestRaw:
    @pytest.mark.parametrize(
        ("head", "status", "description", "headers"),
        [
            (b"", None, "", {}),
            (b"NATS/1.0\r\n\r\n", None, "", {}),
            (b"NATS/1.0\r\nA: b\r\nC:d\r\nE: f:g \r\n\r\n", None, "", {"A": "b", "C": "d", "E": "f:g"}),
            (b"NATS/1.0\r\nA: \xe6\x97\xa5\xff\r\n\r\n", None, "", {"A": "日\ufffd"}),
            (b"NATS/1.0 503\r\n\r\n", "503", "", {}),
            (b"NATS/1.0 404 No Messages\r\n\r\n", "404", "No Messages", {}),
            (
                b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n",
                "408",
                "Request Timeout",
                {"Nats-Pending-Messages": "3", "Nats-Pending-Bytes": "0"},
            ),
            (
                b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 7\r\n\r\n",
                "100",
                "Idle Heartbeat",
                {"Nats-Last-Stream": "7"},
            ),
        ],
    )
    def test_a_head_is_read_when_asked_for(
        self, head: bytes, status: str | None, description: str, headers: dict[str, str]
    ) -> None:
        raw = Raw("a", "", b"", head)
        assert (raw.status, raw.description, raw.headers) == (status, description, headers)


class TestLibrary:
    """The names and shapes we rely on. Without this test, a change of one of them would go unnoticed."""

    @pytest.mark.parametrize(
        ("function", "parameters"),
        [
            (Client._process_msg, ["sid", "subject", "reply", "data", "headers"]),
            (Client._send_command, ["cmd", "priority"]),
            (Client._flush_pending, ["force_flush"]),
            (Client._send_unsubscribe, ["sid", "limit"]),
            (Client._remove_sub, ["sid", "max_msgs"]),
            (Client._process_info, ["info", "initial_connection"]),
            (Client._connect_to_server, ["s"]),
            (Client._close, ["status", "do_cbs"]),
            (Subscription._stop_processing, []),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_a_private_method_has_the_parameters_we_know(self, function: Any, parameters: list[str]) -> None:
        assert list(inspect.signature(function).parameters) == ["self", *parameters]

    async def test_a_client_has_the_attributes_we_know(self, nc: QuickClient) -> None:
        assert isinstance(nc._flush_queue, asyncio.Queue)
        assert isinstance(nc._pending, list)
        assert nc._pending_data_size == 0
        assert nc._max_payload == nc._server_info["max_payload"] == 1024 * 1024
        subscription = await nc.listen(unique("s"), Heard().append)
        assert nc._subs[subscription._id] is subscription


class TestListening:
    @pytest.mark.parametrize(
        ("headers", "head"),
        [
            (None, b""),
            ({"A": "b"}, b"NATS/1.0\r\nA: b\r\n\r\n"),
            ({"Nats-Msg-Id": "日本", "Empty": ""}, "NATS/1.0\r\nNats-Msg-Id: 日本\r\nEmpty: \r\n\r\n".encode()),
        ],
        ids=["no headers", "a header", "two headers"],
    )
    @pytest.mark.parametrize("reply", ["", "somewhere.else"])
    async def test_a_listener_gets_exactly_what_was_sent(
        self, nc: QuickClient, plain: Client, reply: str, headers: dict[str, str] | None, head: bytes
    ) -> None:
        subject = unique("s")
        heard = await hear(nc, f"{subject}.*")
        texts = [b"", b"\r\n", b"MSG a 1 1\r\nx\r\n", bytes(range(256)), b"x" * 500_000]
        for text in texts:
            await plain.publish(f"{subject}.日本", text, reply, headers)
        await heard.has(len(texts))
        assert heard == [Raw(f"{subject}.日本", reply, text, head) for text in texts]
        assert {tuple(map(type, message)) for message in heard} == {(str, str, bytes, bytes)}

    async def test_a_head_comes_as_it_was_on_the_wire(self, nc: QuickClient, plain: Client) -> None:
        subject = unique("s")
        heard = await hear(nc, subject)
        head = b"NATS/1.0\r\nA:b\r\na:  c \r\nA: d\r\n\r\n"
        await plain._send_command(b"HPUB %s %d %d\r\n%stext\r\n" % (subject.encode(), len(head), len(head) + 4, head))
        await settled(plain)
        await heard.has(1)
        assert (heard[0].head, heard[0].data) == (head, b"text")

    async def test_the_server_s_own_answers_have_a_status(self, nc: QuickClient, plain: Client) -> None:
        stream = unique("S")
        manager = plain.jsm()
        await manager.add_stream(name=stream, subjects=[f"{stream}.jobs"])
        await manager.add_consumer(stream, ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
        pull = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c"
        heard = await hear(nc, stream)
        try:
            for count, (subject, request) in enumerate(
                [
                    (f"nobody.{stream}", b""),
                    (pull, b'{"batch": 1, "no_wait": true}'),
                    (pull, b'{"batch": 3, "expires": 1000000}'),
                    (pull, b'{"batch": "x"}'),
                ],
                start=1,
            ):
                await nc.send(subject, request, stream)
                await heard.has(count)
        finally:
            await manager.delete_stream(stream)
        assert [(message.status, message.description) for message in heard[:3]] == [
            ("503", ""),
            ("404", "No Messages"),
            ("408", "Request Timeout"),
        ]
        assert heard[2].headers["Nats-Pending-Messages"] == "3"
        assert heard[3].status == "400"

    async def test_a_job_from_a_stream_has_no_status(self, nc: QuickClient, plain: Client) -> None:
        """Headers of its own must not be taken for the server's words."""
        subject = unique("s")
        heard = await hear(nc, subject)
        await plain.publish(subject, b"x", headers={"404": "No Messages"})
        await heard.has(1)
        assert (heard[0].status, heard[0].headers) == (None, {"404": "No Messages"})

    async def test_messages_come_in_their_order(self, nc: QuickClient, plain: Client) -> None:
        subject = unique("s")
        heard = await hear(nc, subject)
        texts = [b"%d" % number for number in range(5000)]
        for number, text in enumerate(texts):
            await plain.publish(subject, text, headers={"A": "b"} if number % 3 else None)
        await heard.has(len(texts))
        assert heard.texts == texts

    async def test_nothing_of_a_listener_s_passes_through_the_library_s_queue(
        self, nc: QuickClient, plain: Client
    ) -> None:
        subject = unique("s")
        heard = Heard()
        subscription = await nc.listen(subject, heard.append)
        await settled(nc)
        await plain.publish(subject, b"x")
        await heard.has(1)
        assert (subscription.delivered, subscription.pending_msgs) == (0, 0)

    async def test_a_listener_that_raises_ends_nothing_and_is_told_of(
        self, nc: QuickClient, plain: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        subject = unique("s")
        heard = Heard()

        def listener(message: Raw) -> None:
            heard.append(message)
            if message.data == b"bad":
                raise LookupError("a defect of the listener")

        await nc.listen(subject, listener)
        other = await hear(nc, f"{subject}.other")
        with caplog.at_level(logging.ERROR):
            for text in (b"good", b"bad", b"good again"):
                await plain.publish(subject, text)
                await plain.publish(f"{subject}.other", text)
            await other.has(3)
        assert heard.texts == [b"good", b"bad", b"good again"]
        assert nc.is_connected
        assert nc.stats["reconnects"] == 0
        told = [record for record in caplog.records if record.message == "message listener failed"]
        assert len(told) == 1
        assert told[0].exc_info is not None
        assert told[0].exc_info[0] is LookupError
        assert subject in str(told[0].__dict__)

    async def test_who_is_forgotten_hears_nothing_more(self, nc: QuickClient, plain: Client) -> None:
        """Neither after the subscription has ended, nor while stragglers still come."""
        subject = unique("s")
        heard, ended = Heard(), Heard()
        still_open = await nc.listen(subject, heard.append)
        closed = await nc.listen(subject, ended.append)
        other = await hear(nc, subject)
        await plain.publish(subject, b"1")
        await eventually(lambda: len(heard) == len(ended) == len(other) == 1)

        nc.forget(still_open)
        await closed.unsubscribe()
        nc.forget(closed)
        nc.forget(closed)
        await settled(nc)
        await plain.publish(subject, b"2")
        await other.has(2)
        await settled(nc)
        assert heard.texts == ended.texts == [b"1"]

    async def test_plain_subscriptions_of_the_same_client_work_as_ever(self, nc: QuickClient, plain: Client) -> None:
        subject = unique("s")
        received = await receive(nc, subject)
        await plain.publish(subject, b"x", "a.reply", {"A": "b"})
        await eventually(lambda: len(received) == 1)
        message = received[0]
        assert (message.subject, message.reply, message.data, message.headers) == (
            subject,
            "a.reply",
            b"x",
            {"A": "b"},
        )

    async def test_listeners_survive_a_restart_of_the_server(self, own_nats_server: NatsServer) -> None:
        nc = await connected(own_nats_server.url)
        first, second = await hear(nc, "first"), await hear(nc, "second")
        for count in (1, 2):
            await asyncio.to_thread(own_nats_server.restart)
            await reconnected(nc, count)
            await nc.send("first", b"%d" % count, headers={"A": "b"})
            await nc.send("second", b"%d" % count)
            await first.has(count)
            await second.has(count)
        assert first == [Raw("first", "", text, b"NATS/1.0\r\nA: b\r\n\r\n") for text in (b"1", b"2")]
        assert second == [Raw("second", "", text, b"") for text in (b"1", b"2")]
        await nc.close()


async def test_who_asks_for_tls_is_not_connected_in_plain_text(nats_url: str) -> None:
    """FLOW-533: not even to be told of a wrong password, which would have been sent by then."""
    address = nats_url.replace("nats://", "tls://somebody:secret@")
    for seconds in (1.0, 4.0, 16.0):  # a busy machine may be too slow for the first
        with pytest.raises(NotStored) as raised:
            await open_link(address, "test", connect_seconds=seconds)
        if "asks for tls, and the server does not offer it" in str(raised.value):
            break
    assert "asks for tls, and the server does not offer it" in str(raised.value)
    assert "secret" not in str(raised.value)


async def test_a_connection_that_swallows_the_first_cancel_is_given_up_all_the_same() -> None:
    """Before Python 3.12 `asyncio.wait_for` may lose a cancel: a command would hang on a server that is not there."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.sleep(600)

    async with asyncio.timeout(200):
        with pytest.raises(TimeoutError):
            await within(stubborn(), 0.05)
    assert swallowed == 2


async def test_a_late_answer_to_a_ping_that_was_given_up_does_not_deafen_the_connection(
    own_nats_server: NatsServer,
) -> None:
    link = await open_link(own_nats_server.url, "tests")
    connection = link.connection

    async def ask_in_vain() -> None:
        while True:  # it stands still a moment after it was told to
            await link.nc.flush(timeout=1)

    with own_nats_server.frozen(), pytest.raises(nats.errors.FlushTimeoutError):
        await ask_in_vain()
    await link.nc.flush(timeout=60)  # the read loop continues: this is answered, on the same connection
    assert (link.is_up, link.connection) == (True, connection)
    await link.close()
