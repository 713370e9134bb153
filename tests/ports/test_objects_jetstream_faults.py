"""Objects in JetStream: lost answers, concurrent changes, damage, and a server that is down."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from unittest import mock

import pytest

from contracts.objects import NotAdmitted, anything, pieces_of, put, put_admitted, read_all
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Corrupt, NotStored, Unavailable
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.objects import jetstream, reader
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.objects.port import Catalogue
from support.faults import open_faulty_link
from support.object_streams import messages_in, store
from support.servers import NatsServer, config_for
from support.waiting import eventually

__all__ = ["store"]


class TestAWriteWithoutAnAnswer:
    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_of_a_chunk_fails_the_upload_and_leaves_nothing(
        self, nats_url: str, prepared: NatsBackendConfig, fault: str
    ) -> None:
        link = await open_faulty_link(nats_url)
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        link.faults.extend(["", "", fault])
        with pytest.raises(Unavailable):
            await put(store, "one", bytes(2_000_000))
        assert await messages_in(link, prepared) == 0
        await link.close()

    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_of_the_meta_is_found_out(self, nats_url: str, prepared: NatsBackendConfig, fault: str) -> None:
        link = await open_faulty_link(nats_url)
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        link.faults.extend(["", fault])
        made = await put(store, "one", b"abc")
        assert await read_all(store, await store.info("one")) == b"abc"
        assert (await store.info("one")).object_id == made.object_id
        await link.close()

    async def test_of_the_meta_that_stays_open_keeps_the_chunks(
        self, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        """It may be there: whoever reads it then must find the bytes."""
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.1))
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        link.faults.extend(["", "after", *["unheard"] * 20])
        with pytest.raises(Unavailable) as raised:
            await put(store, "one", b"abc")
        assert not isinstance(raised.value, NotStored)
        assert await read_all(store, await store.info("one")) == b"abc"
        await link.close()

    async def test_of_a_meta_that_nobody_ever_heard_leaves_nothing(
        self, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.1))
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        link.faults.extend(["", *["unheard"] * 20])
        with pytest.raises(NotStored):
            await put(store, "one", b"abc")
        assert await messages_in(link, prepared) == 0
        await link.close()

    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_of_an_admitted_meta_is_found_out(
        self, nats_url: str, prepared: NatsBackendConfig, fault: str
    ) -> None:
        """FLOW-213: its own first try is no change by another."""
        link = await open_faulty_link(nats_url)
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        await put(store, "other", b"x")
        link.faults.extend(["", fault])
        asked: list[Catalogue] = []
        made = await put_admitted(store, "one", b"abc", asked.append)
        assert await read_all(store, await store.info("one")) == b"abc"
        assert (await store.info("one")).object_id == made.object_id
        assert len(asked) == 1
        await link.close()

    @pytest.mark.parametrize("is_admitted", [True, False], ids=["admitted", "any"])
    async def test_of_a_meta_that_was_replaced_since_shows_no_object_without_bytes(
        self, nats_url: str, prepared: NatsBackendConfig, is_admitted: bool
    ) -> None:
        """Who replaced it removed its chunks: to write its meta again would name nothing."""
        link = await open_faulty_link(nats_url)
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        other = await open_link(nats_url, "other")
        write = store._metas.write

        async def replaced_meanwhile(key: str, value: bytes, revision: int, *more: Any) -> Any:
            await write(key, value, revision, *more)
            await put(JetStreamObjects(other, prepared.wheel_object_store_bucket), "one", b"theirs")
            return None  # as after silence and a refusal: what is there now is not ours

        store._metas.write = replaced_meanwhile  # type: ignore[method-assign, assignment]
        with pytest.raises(Unavailable) as raised:
            await (put_admitted if is_admitted else put)(store, "one", b"ours")
        assert not isinstance(raised.value, NotStored)
        assert await read_all(store, await store.info("one")) == b"theirs"
        assert await messages_in(link, prepared) == 2
        await link.close()
        await other.close()

    @pytest.mark.parametrize("lost", ["chunk", "catalogue"])
    async def test_before_the_meta_is_known_as_not_stored(
        self, nats_url: str, prepared: NatsBackendConfig, lost: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So whoever put it may put it again."""
        link = await open_faulty_link(nats_url)
        store = JetStreamObjects(link, prepared.wheel_object_store_bucket)
        if lost == "chunk":
            link.faults.append("after")
        else:
            monkeypatch.setattr(store, "catalogue", mock.AsyncMock(side_effect=Unavailable("injected")))
        with pytest.raises(NotStored):
            await put_admitted(store, "one", b"abc")
        assert await messages_in(link, prepared) == 0
        await link.close()


class ChangingStore(JetStreamObjects):
    """Each of its first writes of a meta is outrun by another object's."""

    def __init__(self, link: Link, bucket: str, changes: int) -> None:
        super().__init__(link, bucket)
        write, others = self._metas.write, JetStreamObjects(link, bucket)
        left = list(range(changes))

        async def outrun(*args: Any) -> Any:
            if left:
                await put(others, f"other{left.pop()}", b"x")
            return await write(*args)

        self._metas.write = outrun  # type: ignore[method-assign, assignment]


class TestAChangeMeanwhile:
    async def test_has_admit_asked_again_and_sends_no_byte_again(
        self, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        """FLOW-213"""
        link = await open_faulty_link(nats_url)
        store = ChangingStore(link, prepared.wheel_object_store_bucket, changes=25)
        asked: list[int] = []
        data = os.urandom(1_000_000)
        with mock.patch.object(link, "store", wraps=link.store) as stored:
            made = await put_admitted(store, "one", data, lambda found: asked.append(len(found.objects)))
        assert asked == list(range(26))
        assert await read_all(store, made) == data
        chunk_subject = f"$O.{prepared.wheel_object_store_bucket}.C.{made.object_id}"
        assert sum(call.args[0] == chunk_subject for call in stored.call_args_list) == 8
        await link.close()

    async def test_that_is_not_admitted_ends_it(self, link: Link, prepared: NatsBackendConfig) -> None:
        store = ChangingStore(link, prepared.wheel_object_store_bucket, changes=1)

        def first(catalogue: Catalogue) -> None:
            if catalogue.objects:
                raise NotAdmitted

        with pytest.raises(NotAdmitted):
            await put_admitted(store, "one", bytes(1_000_000), first)
        assert await messages_in(link, prepared) == 2

    async def test_after_meanwhile_is_not_waited_out_for_ever(
        self, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jetstream, "_ROUNDS_SECONDS", 0.05)
        store = ChangingStore(link, prepared.wheel_object_store_bucket, changes=10_000)
        with pytest.raises(NotStored, match="too fast"):
            await put_admitted(store, "one", bytes(1_000_000))
        assert "one" not in [info.name for info in (await store.catalogue()).objects]
        assert await store.strays(-60) == ()


class TestDamage:
    async def test_another_byte_is_noticed_at_the_end(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        made = await put(store, "one", b"x" * 1000)
        stream, subject = await chunks_of(link, prepared, made.object_id)
        await link.api(f"STREAM.PURGE.{stream}", {"filter": subject}, dict[str, Any])
        await link.store(subject, b"y" * 1000)
        with pytest.raises(Corrupt):
            await read_all(store, made)

    async def test_too_many_bytes_are_noticed(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        made = await put(store, "one", b"x" * 1000)
        _, subject = await chunks_of(link, prepared, made.object_id)
        stream, _ = await chunks_of(link, prepared, made.object_id)
        await link.api(f"STREAM.PURGE.{stream}", {"filter": subject}, dict[str, Any])
        await link.store(subject, b"x" * 1001)
        with pytest.raises(Corrupt):
            await read_all(store, made)

    async def test_a_missing_chunk_is_noticed(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reader, "_SILENCE_SECONDS", 0.5)
        made = await put(store, "one", b"x" * 1000)
        stream, subject = await chunks_of(link, prepared, made.object_id)
        await link.api(f"STREAM.PURGE.{stream}", {"filter": subject}, dict[str, Any])
        with pytest.raises(Corrupt):
            await read_all(store, made)

    async def test_a_description_nobody_can_read_spoils_no_list(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await put(store, "one", b"x")
        await link.store(f"$O.{prepared.wheel_object_store_bucket}.M.b2Rk", b"not json")
        assert [info.name for info in (await store.catalogue()).objects] == ["one"]
        with pytest.raises(Corrupt):
            await store.info("odd")
        made = await put(store, "odd", b"new")  # and may be replaced
        assert await read_all(store, await store.info("odd")) == b"new"
        assert made.object_id == (await store.info("odd")).object_id

    @pytest.mark.parametrize(
        "odd",
        [
            b"\xff",
            b'{"name": "odd", "bucket": "b", "nuid": "\xff"}',
            b'{"options": ' + b"[" * 100_000,
            {"digest": "SHA-256=\u65e5\u672c"},
            {"digest": "SHA-256=A"},
            {"digest": "SHA-256=AAAA"},
            {"digest": None},
            {"size": -1},
            {"size": 2**63},
            {"size": 1.5},
            {"name": "one"},
        ],
        ids=lambda odd: repr(odd)[:40],
    )
    async def test_whatever_a_stranger_says_of_an_object_spoils_no_list(
        self,
        store: JetStreamObjects,
        link: Link,
        prepared: NatsBackendConfig,
        odd: bytes | dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """FLOW-149: one odd description must not stop every worker's sync."""
        one = await put(store, "one", b"x")
        theirs = {"name": "odd", "bucket": "b", "nuid": "n", "size": 1, "digest": f"SHA-256={'A' * 43}="}
        data = odd if isinstance(odd, bytes) else json.dumps(theirs | odd).encode()
        await link.store(f"$O.{prepared.wheel_object_store_bucket}.M.b2Rk", data)
        assert [info.object_id for info in (await store.catalogue()).objects] == [one.object_id]
        assert "unreadable object description" in caplog.text
        with pytest.raises(Corrupt):
            await store.info("odd")
        await store.put_admitted("two", pieces_of(b"y"), 1, None, anything)
        await put(store, "odd", b"new")
        assert [info.name for info in (await store.catalogue()).objects] == ["odd", "one", "two"]

    @pytest.mark.parametrize("nuid", [">", "*", "", "a b"])
    async def test_an_id_that_is_none_takes_nobody_elses_bytes_away(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, nuid: str
    ) -> None:
        one = await put(store, "one", b"x")
        for name in ("odd", "odd2"):
            theirs = {"name": name, "bucket": "b", "nuid": nuid, "size": 1, "digest": f"SHA-256={'A' * 43}="}
            subject = f"$O.{prepared.wheel_object_store_bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
            await link.store(subject, json.dumps(theirs).encode())
        assert await store.delete("odd")
        await put(store, "odd2", b"new")
        assert [info.name for info in (await store.catalogue()).objects] == ["odd2", "one"]
        assert await read_all(store, one) == b"x"


async def chunks_of(link: Link, config: NatsBackendConfig, object_id: str) -> tuple[str, str]:
    bucket = config.wheel_object_store_bucket
    return f"OBJ_{bucket}", f"$O.{bucket}.C.{object_id}"


class TestAServerThatGoesAway:
    @pytest.fixture
    async def own(self, own_nats_server: NatsServer) -> AsyncIterator[tuple[Link, NatsBackendConfig]]:
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
        config = config_for(own_nats_server.url)
        await ensure(link, resources_of(config))
        yield link, config
        await link.close()

    async def test_and_comes_back_does_not_break_a_read(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        link, config = own
        link.patience = Patience(down_seconds=60.0)
        store = JetStreamObjects(link, config.wheel_object_store_bucket)
        data = os.urandom(10_000_000)
        made = await put(store, "one", data)
        read = bytearray()
        async with asyncio.timeout(200), aclosing(store.read(made)) as chunks:
            async for chunk in chunks:
                if not read:
                    await asyncio.to_thread(own_nats_server.restart)
                read += chunk
        assert bytes(read) == data

    async def test_for_good_ends_a_read_in_time(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-48"""
        link, config = own
        store = JetStreamObjects(link, config.wheel_object_store_bucket)
        made = await put(store, "one", os.urandom(10_000_000))
        async with asyncio.timeout(200), aclosing(store.read(made)) as chunks:
            await anext(chunks)
            monkeypatch.setattr(reader, "_SILENCE_SECONDS", 1.0)
            own_nats_server.kill()
            with pytest.raises(Unavailable):
                async for _ in chunks:
                    pass
        with pytest.raises(Unavailable):
            await store.catalogue()

    async def test_ends_an_upload_as_not_stored(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        link, config = own
        store = JetStreamObjects(link, config.wheel_object_store_bucket)

        async def body() -> AsyncIterator[bytes]:
            yield bytes(1_000_000)
            own_nats_server.kill()
            await eventually(lambda: not link.is_up)
            yield bytes(1_000_000)

        async with asyncio.timeout(200):
            with pytest.raises(Unavailable):
                await store.put("one", body(), 10_000_000)
