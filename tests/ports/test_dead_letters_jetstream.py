"""Dead letters in JetStream: the contract, what expires, strangers' messages, and a stream made anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from contracts.dead_letters import LettersContract, a_letter, came, is_true, left, told
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.errors import Unavailable
from pyoco_server.ports.dead_letters import jetstream
from pyoco_server.ports.dead_letters.jetstream import JetStreamDeadLetters
from pyoco_server.ports.dead_letters.port import DeadLetterChanges
from pyoco_server.ports.nats.bucket import Entry
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.nats.watch import WatchBatch
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from support.servers import NatsServer, config_for
from support.waiting import eventually

QUICK = 0.05


class TestJetStreamLetters(LettersContract):
    @pytest.fixture
    def letters(self, link: Link, prepared: NatsBackendConfig) -> JetStreamDeadLetters:
        return JetStreamDeadLetters(link, prepared, QUICK)

    @pytest.fixture
    def queue(self, link: Link, prepared: NatsBackendConfig) -> JetStreamQueue:
        return JetStreamQueue(link, prepared)


async def buried(link: Link, config: NatsBackendConfig, count: int) -> None:
    for number in range(count):
        await JetStreamQueue(link, config).bury(a_letter(tag="a"), f"{number}")


class Told(list[DeadLetterChanges]):
    """What a feed tells, while something else happens."""

    async def has(self, *letter_ids: int, seconds: float = 30.0) -> None:
        await eventually(lambda: bool(self) and left(self) == set(letter_ids) and self[-1].caught_up, seconds)


@pytest.fixture
async def following(link: Link) -> Any:
    tasks = []

    def follow(config: NatsBackendConfig, look_seconds: float = QUICK) -> Told:
        heard = Told()

        async def run() -> None:
            async with aclosing(JetStreamDeadLetters(link, config, look_seconds).changes()) as feed:
                async for changes in feed:
                    if heard and changes.epoch != heard[-1].epoch:
                        heard.clear()
                    heard.append(changes)

        tasks.append(asyncio.create_task(run()))
        return heard

    yield follow
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class TestLimits:
    async def test_letters_that_are_too_many_go_oldest_first(
        self, link: Link, config: NatsBackendConfig, following: Any
    ) -> None:
        """FLOW-278"""
        few = replace(config, dlq_max_msgs=3)
        await ensure(link, resources_of(few))
        heard = following(few)
        await buried(link, few, 7)
        await heard.has(5, 6, 7)

    async def test_letters_that_are_too_old_go(self, link: Link, prepared: NatsBackendConfig, following: Any) -> None:
        """FLOW-278"""
        heard = following(prepared)
        await buried(link, prepared, 3)
        await heard.has(1, 2, 3)
        stream = await link.api(f"STREAM.INFO.{prepared.dlq_stream}", {}, dict[str, Any])
        one_second = stream["config"] | {"max_age": 10**9, "duplicate_window": 10**9}
        await link.api(f"STREAM.UPDATE.{prepared.dlq_stream}", one_second, dict[str, Any])
        await heard.has()
        assert await told(JetStreamDeadLetters(link, prepared, QUICK), is_true)

    async def test_a_purge_is_seen(self, link: Link, prepared: NatsBackendConfig, following: Any) -> None:
        heard = following(prepared)
        await buried(link, prepared, 3)
        await heard.has(1, 2, 3)
        await link.api(f"STREAM.PURGE.{prepared.dlq_stream}", {}, dict[str, Any])
        await heard.has()


class TestGaps:
    async def test_a_gap_that_closes_while_another_opens_is_seen(
        self, link: Link, prepared: NatsBackendConfig, following: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many gaps as before, and yet others: between two polls the first gap went and one came"""
        polling = asyncio.Lock()
        poll = JetStreamDeadLetters._poll_deletions

        async def poll_when_allowed(self: JetStreamDeadLetters, feed: Any) -> DeadLetterChanges | None:
            async with polling:
                return await poll(self, feed)

        monkeypatch.setattr(JetStreamDeadLetters, "_poll_deletions", poll_when_allowed)
        heard = following(prepared)
        await buried(link, prepared, 6)
        letters = JetStreamDeadLetters(link, prepared)
        await letters.delete(2)
        await heard.has(1, 3, 4, 5, 6)
        async with polling:
            count = len(heard)
            await letters.delete(5)
            await letters.delete(1)
        await heard.has(3, 4, 6)
        assert len(heard) == count + 1

    async def test_nothing_is_told_while_nothing_changes(
        self, link: Link, prepared: NatsBackendConfig, following: Any
    ) -> None:
        heard = following(prepared, 0.02)
        await buried(link, prepared, 3)
        await JetStreamDeadLetters(link, prepared).delete(2)
        await heard.has(1, 3)
        count = len(heard)
        await asyncio.sleep(0.3)
        assert len(heard) == count


class TestALateMessage:
    """Word of a letter that was already missed in the stream when it arrived."""

    @pytest.fixture
    def late(self, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[WatchBatch]:
        """What the watch tells, and when."""
        batches: asyncio.Queue[WatchBatch] = asyncio.Queue()

        async def watch(*_: object) -> AsyncGenerator[WatchBatch, None]:
            while True:
                yield await batches.get()

        monkeypatch.setattr(jetstream, "watch", watch)
        return batches

    async def created(self, link: Link, config: NatsBackendConfig) -> str:
        return str((await link.api(f"STREAM.INFO.{config.dlq_stream}", {}, dict[str, Any]))["created"])

    @pytest.mark.parametrize("gone", [[2], [3], [1, 2]], ids=["in between", "the last", "the first ones"])
    async def test_does_not_bring_it_back(
        self,
        link: Link,
        prepared: NatsBackendConfig,
        following: Any,
        late: asyncio.Queue[WatchBatch],
        gone: list[int],
    ) -> None:
        await buried(link, prepared, 3)
        epoch = await self.created(link, prepared)
        for letter_id in gone:
            await JetStreamDeadLetters(link, prepared).delete(letter_id)
        heard = following(prepared)
        late.put_nowait(WatchBatch((), False, epoch))
        await eventually(lambda: len(heard) == 2)  # the look at the stream
        late.put_nowait(WatchBatch(tuple(Entry("a", letter_id, b"{}", 1.0) for letter_id in (1, 2, 3)), True, epoch))
        await eventually(lambda: len(heard) == 3)
        assert came(heard) == [letter_id for letter_id in (1, 2, 3) if letter_id not in gone]

    async def test_of_a_stream_that_is_gone_is_not_mixed_with_what_is_there_now(
        self, link: Link, prepared: NatsBackendConfig, following: Any, late: asyncio.Queue[WatchBatch]
    ) -> None:
        await buried(link, prepared, 3)
        await JetStreamDeadLetters(link, prepared).delete(1)
        heard = following(prepared)
        late.put_nowait(WatchBatch((Entry("a", 1, b"{}", 1.0),), True, "the old one"))
        await eventually(lambda: len(heard) == 1)
        await asyncio.sleep(4 * QUICK)
        assert len(heard) == 1, "a look at the new stream says nothing of the old one"
        assert left(heard) == {1}
        assert not heard[-1].caught_up


#: What strangers may publish there; the server takes any bytes.
STRANGE = [b"", b"no JSON", b"[]", b"\xff\xfe", b"[" * 100_000, b"null", b'{"reason":']


class TestStrangers:
    async def test_messages_that_are_no_letters_are_passed_over(
        self, link: Link, prepared: NatsBackendConfig, caplog: pytest.LogCaptureFixture
    ) -> None:
        letters = JetStreamDeadLetters(link, prepared, QUICK)
        for body in STRANGE:
            await link.store(f"{prepared.dlq_subject_prefix}.a", body)
        await buried(link, prepared, 1)
        seen = await told(letters, is_true)
        assert came(seen) == [len(STRANGE) + 1]
        assert "skipping messages that are not dead letters" in caplog.text
        for letter_id in range(1, len(STRANGE) + 1):
            assert await letters.find(letter_id) is None

    async def test_a_feed_of_nothing_but_strange_messages_is_true(
        self, link: Link, prepared: NatsBackendConfig
    ) -> None:
        for body in STRANGE:
            await link.store(f"{prepared.dlq_subject_prefix}.a", body)
        assert came(await told(JetStreamDeadLetters(link, prepared, QUICK), is_true)) == []

    async def test_a_letter_of_little_sense_shows_what_it_tells(self, link: Link, prepared: NatsBackendConfig) -> None:
        letters = JetStreamDeadLetters(link, prepared, QUICK)
        await link.store(f"{prepared.dlq_subject_prefix}.a.b", json.dumps({"flow_name": "f", "tags": 3}).encode())
        [item] = [item for changes in await told(letters, is_true) for item in changes.items]
        stored_at = item.dead_letter.timestamp
        assert item.dead_letter == DeadLetter(
            timestamp=stored_at, reason="unknown", error=None, tag="a.b", flow_name="f"
        )
        assert stored_at > 1_700_000_000
        assert await letters.find(1) == item

    async def test_a_marker_of_deletion_is_no_letter(self, link: Link, prepared: NatsBackendConfig) -> None:
        await link.store(f"{prepared.dlq_subject_prefix}.a", b"{}", {"KV-Operation": "DEL"})
        assert came(await told(JetStreamDeadLetters(link, prepared, QUICK), is_true)) == []

    async def test_what_else_lies_in_the_stream_is_none_of_ours(self, link: Link, prepared: NatsBackendConfig) -> None:
        """FLOW-285: an operator may have given the stream more subjects"""
        stream = f"STREAM.INFO.{prepared.dlq_stream}"
        config = (await link.api(stream, {}, dict[str, Any]))["config"]
        config["subjects"].append(f"else.{prepared.dlq_subject_prefix}")
        await link.api(f"STREAM.UPDATE.{prepared.dlq_stream}", config, dict[str, Any])
        await link.store(f"else.{prepared.dlq_subject_prefix}", b"{}")
        await buried(link, prepared, 1)
        letters = JetStreamDeadLetters(link, prepared, QUICK)
        assert await letters.find(1) is None
        assert came(await told(letters, is_true)) == [2]

    async def test_a_subject_that_is_no_text_stops_nothing(
        self, link: Link, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        """The server takes any bytes for a subject, and gives them to every gateway"""
        host, port = nats_url.removeprefix("nats://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        subject = prepared.dlq_subject_prefix.encode() + b".\xff\xfe"
        writer.write(b'CONNECT {"verbose":false}\r\nPUB ' + subject + b" 2\r\n{}\r\nPING\r\n")
        await reader.readuntil(b"PONG\r\n")
        writer.close()
        await writer.wait_closed()
        await buried(link, prepared, 1)
        letters = JetStreamDeadLetters(link, prepared, QUICK)
        assert came(await told(letters, is_true)) == [1, 2]
        assert await letters.find(1) is not None


async def test_a_stream_made_anew_is_another_one(link: Link, prepared: NatsBackendConfig, following: Any) -> None:
    heard = following(prepared)
    await buried(link, prepared, 3)
    await heard.has(1, 2, 3)
    epoch = heard[-1].epoch
    await link.api(f"STREAM.DELETE.{prepared.dlq_stream}", {}, dict[str, Any])
    await ensure(link, resources_of(prepared))
    await buried(link, prepared, 1)
    await heard.has(1)
    assert heard[-1].epoch != epoch


async def test_a_feed_survives_an_outage(own_nats_server: NatsServer) -> None:
    link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.2))
    config = config_for(own_nats_server.url)
    await ensure(link, resources_of(config))
    letters = JetStreamDeadLetters(link, config, QUICK)
    heard = Told()

    async def follow() -> None:
        async with aclosing(letters.changes()) as feed:
            async for changes in feed:
                heard.append(changes)

    following = asyncio.create_task(follow())
    await buried(link, config, 3)
    await heard.has(1, 2, 3)
    await asyncio.to_thread(own_nats_server.kill)
    await eventually(lambda: not link.is_up)
    for call in (letters.find(1), letters.delete(1)):
        with pytest.raises(Unavailable):
            await call
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: link.is_up)
    await letters.delete(2)
    await JetStreamQueue(link, config).bury(a_letter(), "later")
    await heard.has(1, 3, 4)
    assert came(heard) == [1, 2, 3, 4]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await link.close()


@pytest.mark.usefixtures("abandoned_consumers_stay")
async def test_a_feed_leaves_no_consumer_behind(link: Link, prepared: NatsBackendConfig) -> None:
    await told(JetStreamDeadLetters(link, prepared, QUICK), is_true)

    async def none_left() -> bool:
        info = await link.api(f"STREAM.INFO.{prepared.dlq_stream}", {}, dict[str, Any])
        return bool(info["state"]["consumer_count"] == 0)

    await eventually(none_left)
