"""Objects in JetStream: the contract, what is left in the stream, and other clients' objects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from nats.js.api import ObjectMeta

from contracts.objects import NotAdmitted, ObjectsContract, pieces_of, put, put_admitted, read_all
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import ObjectNotFound, TooLarge
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.watch import WatchBatch
from pyoco_server.ports.objects import jetstream
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.objects.port import Catalogue, Objects
from support.nats_clients import network_client
from support.object_streams import messages_in, store
from support.waiting import eventually

__all__ = ["store"]


class TestJetStreamObjects(ObjectsContract):
    @pytest.fixture
    def objects(self, store: JetStreamObjects) -> Objects:
        return store


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

    @pytest.mark.usefixtures("abandoned_consumers_stay")
    async def test_a_read_leaves_no_consumer(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await read_all(store, await put(store, "one", bytes(1_000_000)))
        stream = f"OBJ_{prepared.wheel_object_store_bucket}"

        async def no_consumers() -> bool:
            return not (await link.api(f"CONSUMER.LIST.{stream}", {}, dict[str, Any]))["consumers"]

        await eventually(no_consumers)


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

        async def behind(*_: object, **__: object) -> AsyncIterator[WatchBatch]:
            yield WatchBatch((), True, "")
            yield WatchBatch((entry,), True, "")

        monkeypatch.setattr(jetstream, "watch", behind)
        assert [info.name for info in (await store.catalogue()).objects] == ["one"]

    async def test_does_not_wait_for_what_has_expired(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = prepared.wheel_object_store_bucket

        async def empty(*_: object, **__: object) -> AsyncIterator[WatchBatch]:
            await link.api(f"STREAM.PURGE.OBJ_{bucket}", {}, dict[str, Any])
            yield WatchBatch((), True, "")

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
