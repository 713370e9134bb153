"""Objects in JetStream: the contract, what is left in the stream, and other clients' objects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from unittest import mock

import pytest
from nats.js.api import ObjectMeta

from contracts.objects import NotAdmitted, ObjectsContract, anything, pieces_of, put, put_admitted, read_all
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Corrupt, NotStored, ObjectNotFound, TooLarge, Unavailable
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import ensure, resources_of
from pyoco_server.ports.nats.watch import Batch
from pyoco_server.ports.objects import jetstream, reader
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.objects.port import Catalogue, Objects
from support.faults import open_faulty_link
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamObjects:
    return JetStreamObjects(link, prepared.wheel_object_store_bucket)


class TestJetStreamObjects(ObjectsContract):
    @pytest.fixture
    def objects(self, store: JetStreamObjects) -> Objects:
        return store


async def messages_in(link: Link, config: NatsBackendConfig) -> int:
    info = await link.api(f"STREAM.INFO.OBJ_{config.wheel_object_store_bucket}", {}, dict[str, Any])
    return int(info["state"]["messages"])


async def subjects_in(link: Link, config: NatsBackendConfig) -> dict[str, int]:
    """How many messages lie on each subject."""
    subject = f"STREAM.INFO.OBJ_{config.wheel_object_store_bucket}"
    info = await link.api(subject, {"subjects_filter": ">"}, dict[str, Any])
    return dict(info["state"].get("subjects") or {})


class TestWhatIsLeftInTheStream:
    async def test_a_refused_upload_leaves_nothing(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        with pytest.raises(TooLarge):
            await store.put("one", pieces_of(bytes(10_000_000)), 9_000_000)
        assert await messages_in(link, prepared) == 0

    async def test_a_cancelled_upload_leaves_nothing(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        sent = asyncio.Event()

        async def hanging() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield bytes(200_000)
            sent.set()
            await asyncio.Event().wait()

        putting = asyncio.create_task(store.put("one", hanging(), 10_000_000))
        await sent.wait()
        assert await messages_in(link, prepared) > 0
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert await messages_in(link, prepared) == 0

    async def test_a_replaced_object_leaves_one_meta_and_the_new_chunks(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        for size in (1_000_000, 500_000, 1):
            await put(store, "one", bytes(size))
        assert await messages_in(link, prepared) == 2

    async def test_puts_of_one_name_at_once_leave_one_object(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await asyncio.gather(*(put(store, "one", bytes(1000)) for _ in range(10)))
        assert await messages_in(link, prepared) == 2

    async def test_a_put_that_is_not_admitted_leaves_nothing(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        def first(catalogue: Catalogue) -> None:
            if catalogue.objects:
                raise NotAdmitted

        ends = await asyncio.gather(
            *(put_admitted(store, f"n{n}", bytes(500_000), first) for n in range(6)), return_exceptions=True
        )
        [winner] = [end for end in ends if not isinstance(end, BaseException)]
        bucket = prepared.wheel_object_store_bucket
        assert await subjects_in(link, prepared) == {
            f"$O.{bucket}.C.{winner.object_id}": 4,
            f"$O.{bucket}.M.{base64.urlsafe_b64encode(winner.name.encode()).decode()}": 1,
        }

    async def test_a_deleted_object_leaves_its_marker(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await put(store, "one", bytes(1_000_000))
        await store.delete("one")
        assert await messages_in(link, prepared) == 1

    async def test_a_read_leaves_no_consumer(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await read_all(store, await put(store, "one", bytes(1_000_000)))
        stream = f"OBJ_{prepared.wheel_object_store_bucket}"

        async def no_consumers() -> bool:
            return not (await link.api(f"CONSUMER.LIST.{stream}", {}, dict[str, Any]))["consumers"]

        await eventually(no_consumers)


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


async def put_and_look(store: JetStreamObjects) -> Catalogue:
    await put(store, "new", b"x")
    return await store.catalogue()


class TestACatalogue:
    async def test_of_a_thousand_objects_is_read_quickly(
        self, store: JetStreamObjects, link: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It takes some 30 ms: one question for each would take longer."""
        await asyncio.gather(*(put(store, f"name{n:04}", b"x") for n in range(1000)))
        asked: list[str] = []
        ask = link.ask

        async def note(subject: str, *args: Any, **more: Any) -> Any:
            asked.append(subject)
            return await ask(subject, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(link, "ask", note)
            catalogue = await store.catalogue()
        assert 1 <= len(asked) < 50
        assert [info.name for info in catalogue.objects] == [f"name{n:04}" for n in range(1000)]
        assert catalogue.generation == (await put_and_look(store)).generation - 2  # one chunk, one meta

    async def test_waits_for_a_node_that_is_behind(
        self, store: JetStreamObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-213: or it would lack an object and still be of the generation that has it."""
        await put(store, "one", b"1")
        entry = await store._metas.get(base64.urlsafe_b64encode(b"one").decode())
        assert entry is not None

        async def behind(*_: object, **__: object) -> AsyncIterator[Batch]:
            yield Batch((), True, "")
            yield Batch((entry,), True, "")

        monkeypatch.setattr(jetstream, "watch", behind)
        assert [info.name for info in (await store.catalogue()).objects] == ["one"]

    async def test_does_not_wait_for_what_has_expired(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = prepared.wheel_object_store_bucket

        async def empty(*_: object, **__: object) -> AsyncIterator[Batch]:
            await link.api(f"STREAM.PURGE.OBJ_{bucket}", {}, dict[str, Any])
            yield Batch((), True, "")

        await put(store, "one", b"1")
        monkeypatch.setattr(jetstream, "watch", empty)
        assert (await store.catalogue()).objects == ()


class TestOtherClients:
    async def test_read_what_we_put(self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig) -> None:
        theirs = await network_client(link).jetstream().object_store(prepared.wheel_object_store_bucket)
        data = os.urandom(1_000_000)
        await put(store, "a name/ä", data, {"k": "v"})
        found = await theirs.get("a name/ä")
        assert found.data == data
        assert found.info.headers == {"k": ["v"]}
        assert [each.name for each in await theirs.list()] == ["a name/ä"]
        await store.delete("a name/ä")
        assert [each.deleted for each in await theirs.list()] == [True]

    async def test_put_what_we_read(self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig) -> None:
        theirs = await network_client(link).jetstream().object_store(prepared.wheel_object_store_bucket)
        data = os.urandom(1_000_000)
        await theirs.put("one", data, meta=ObjectMeta(name="one", headers={"k": ["v", "w"]}))
        info = await store.info("one")
        assert info.sha256_hex == hashlib.sha256(data).hexdigest()
        assert info.headers == {"k": "v,w"}
        assert await read_all(store, info) == data
        assert (await store.catalogue()).objects == (info,)
        await theirs.delete("one")
        assert (await store.catalogue()).objects == ()
        with pytest.raises(ObjectNotFound):
            await store.info("one")


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
        assert "lists pass it over" in caplog.text
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


async def test_memory_does_not_grow_with_size(store: JetStreamObjects) -> None:
    size = 20_000_000
    block = os.urandom(100_000)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(block)):
            yield block

    tracemalloc.start()
    made = await store.put("one", body(), size)
    read = 0
    async with aclosing(store.read(made)) as chunks:
        async for chunk in chunks:
            read += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == size
    assert peak < 10_000_000


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
