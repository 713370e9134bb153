"""What broken puts leave in a JetStream object store, and who takes it for what."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest

from contracts.objects import anything, pieces_of, put, read_all
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Corrupt, NotStored, Unavailable
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.objects import chunks, writer
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.objects.port import Catalogue, Stray
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually

T = TypeVar("T")

#: Whatever is there is older than that: clocks of one machine differ by less.
ANY_AGE = -60.0

PUT_AND_HANG = """
import asyncio, sys
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.objects.jetstream import JetStreamObjects

async def pieces():
    for _ in range(40):  # more than fit on the way at once: the first are stored for certain
        yield bytes(128 * 1024)
    print("half way", flush=True)
    await asyncio.Event().wait()

async def main():
    link = await open_link(sys.argv[1], "dies")
    await JetStreamObjects(link, sys.argv[2]).put("one", pieces(), 10**9)

asyncio.run(main())
"""


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamObjects:
    return JetStreamObjects(link, prepared.wheel_object_store_bucket)


async def swept(store: JetStreamObjects) -> int:
    """Returns how many strays there were."""
    return sum([await store.sweep(stray) for stray in await store.strays(ANY_AGE)])


async def chunk_subjects(link: Link, config: NatsBackendConfig) -> dict[str, int]:
    bucket = config.wheel_object_store_bucket
    request = {"subjects_filter": f"$O.{bucket}.C.>"}
    info = await link.api(f"STREAM.INFO.OBJ_{bucket}", request, dict[str, Any])
    return dict(info["state"].get("subjects") or {})


async def leave(link: Link, config: NatsBackendConfig, object_id: str, *sizes: int) -> None:
    for size in sizes:
        await link.store(f"$O.{config.wheel_object_store_bucket}.C.{object_id}", bytes(size))


class TestAfterACrash:
    async def test_what_a_killed_process_had_sent_is_found_and_swept(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, nats_url: str
    ) -> None:
        whole = await put(store, "whole", bytes(300_000))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PUT_AND_HANG,
            nats_url,
            prepared.wheel_object_store_bucket,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(200):
            assert await process.stdout.readline() == b"half way\n"
            process.send_signal(signal.SIGKILL)
            await process.wait()
        assert await store.strays(3600) == ()
        (stray,) = await store.strays(ANY_AGE)
        assert 20 * 128 * 1024 < stray.size_bytes <= 40 * 128 * 1024
        assert await swept(store) == 1
        assert list(await chunk_subjects(link, prepared)) == [
            f"$O.{prepared.wheel_object_store_bucket}.C.{whole.object_id}"
        ]
        assert len(await read_all(store, whole)) == 300_000

    async def test_what_lay_in_a_nats_that_died_is_found_and_swept(self, own_nats_server: NatsServer) -> None:
        config = config_for(own_nats_server.url)
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
        await ensure(link, resources_of(config))
        store = JetStreamObjects(link, config.wheel_object_store_bucket)

        async def body() -> AsyncIterator[bytes]:
            for _ in range(40):  # more than fit on the way at once: the first are stored for certain
                yield bytes(128 * 1024)
            await asyncio.to_thread(own_nats_server.kill)
            await eventually(lambda: not link.is_up and link.connection > 0)  # all has been told of the loss
            yield bytes(1_000_000)

        with pytest.raises(NotStored):
            await store.put_admitted("one", body(), 10**9, None, anything)
        await asyncio.to_thread(own_nats_server.start)
        await eventually(lambda: link.is_up, 20)
        assert (await store.catalogue()).objects == ()
        assert await swept(store) == 1
        assert await chunk_subjects(link, config) == {}
        await link.close()


class TestAStray:
    async def test_is_as_young_as_what_was_added_last(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        """A put in progress looks different each time."""
        await leave(link, prepared, "left", 128 * 1024, 128 * 1024, 1000)
        (first,) = await store.strays(ANY_AGE)
        assert first == Stray("left", first.last_sequence, 2 * 128 * 1024 + 1000)
        await leave(link, prepared, "left", 10)
        (second,) = await store.strays(ANY_AGE)
        assert second.last_sequence > first.last_sequence

    @pytest.mark.parametrize("ends", ["deleted", "replaced"])
    async def test_is_what_an_object_left_whose_chunks_could_not_be_removed(
        self, store: JetStreamObjects, monkeypatch: pytest.MonkeyPatch, ends: str
    ) -> None:
        old = await put(store, "one", bytes(300_000))
        with monkeypatch.context() as patch:
            patch.setattr(store._chunks, "remove", mock.AsyncMock(side_effect=Unavailable("injected")))
            await (store.delete("one") if ends == "deleted" else put(store, "one", b"new"))
        assert [stray.object_id for stray in await store.strays(ANY_AGE)] == [old.object_id]
        assert await swept(store) == 1

    async def test_is_swept_as_it_was_found(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await leave(link, prepared, "left", 10, 10)
        (stray,) = await store.strays(ANY_AGE)
        await leave(link, prepared, "left", 10)
        assert await store.sweep(stray)
        assert list((await chunk_subjects(link, prepared)).values()) == [1]

    async def test_does_not_lie_behind_a_page(
        self, nats_url: str, prepared: NatsBackendConfig, store: JetStreamObjects, link: Link
    ) -> None:
        """NATS tells 100,000 names at a time; here it tells three."""

        class ShortPages(Link):
            async def api(self, subject: str, request: Any, answer: type[T], seconds: float | None = None) -> T:
                if "subjects_filter" not in request:
                    return await super().api(subject, request, answer, seconds)
                whole = await super().api(subject, request | {"offset": 0}, dict[str, Any], seconds)
                names = sorted(whole["state"].get("subjects") or {})[request["offset"] :][:3]
                whole["state"]["subjects"] = {name: whole["state"]["subjects"][name] for name in names}
                return msgspec.convert(whole, answer)

        for number in range(4):
            await put(store, f"whole{number}", b"x")
            await leave(link, prepared, f"left{number}", 10)
        own = ShortPages(Patience())
        await own.open(nats_url, "tests", 5.0)
        found = await JetStreamObjects(own, prepared.wheel_object_store_bucket).strays(ANY_AGE)
        assert [stray.object_id for stray in found] == [f"left{number}" for number in range(4)]
        await own.close()

    async def test_of_many_has_its_turn_when_others_are_gone(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chunks, "_STRAYS_MAX", 3)
        for number in range(5):
            await leave(link, prepared, f"left{number}", 10)
        assert [stray.object_id for stray in await store.strays(ANY_AGE)] == ["left0", "left1", "left2"]
        assert [await swept(store) for _ in range(3)] == [3, 2, 0]


class TestNoStray:
    async def test_is_what_another_client_has_put(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        theirs = await network_client(link).jetstream().object_store(prepared.wheel_object_store_bucket)
        await theirs.put("one", bytes(300_000))
        assert await store.strays(ANY_AGE) == ()

    async def test_is_what_an_object_names_whose_description_is_odd(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        """Lists pass it over; its bytes stay all the same."""
        await leave(link, prepared, "theirs", 10)
        odd = {"name": "odd", "nuid": "theirs", "size": "ten", "digest": 7}
        await link.store(f"$O.{prepared.wheel_object_store_bucket}.M.b2Rk", json.dumps(odd).encode())
        assert (await store.catalogue()).objects == ()
        assert await store.strays(ANY_AGE) == ()

    async def test_is_known_while_one_description_cannot_be_read_at_all(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig
    ) -> None:
        await leave(link, prepared, "whose", 10)
        await link.store(f"$O.{prepared.wheel_object_store_bucket}.M.b2Rk", b"not json")
        with pytest.raises(Corrupt):
            await store.strays(ANY_AGE)

    @pytest.mark.parametrize("look", ["_chunks.count", "_entries"])
    async def test_is_an_object_that_shows_while_one_looks(
        self, store: JetStreamObjects, monkeypatch: pytest.MonkeyPatch, look: str
    ) -> None:
        """Chunks are counted before names are read, so it has a name or was not counted."""
        owner = store._chunks if look == "_chunks.count" else store
        method = look.rpartition(".")[2]
        really = getattr(owner, method)

        async def and_then_put(*args: Any) -> Any:
            seen = await really(*args)
            await put(store, "late", bytes(300_000))
            return seen

        await put(store, "one", bytes(300_000))
        monkeypatch.setattr(owner, method, and_then_put)
        assert await store.strays(ANY_AGE) == ()

    async def test_is_told_without_a_store(self, link: Link, config: NatsBackendConfig) -> None:
        missing = JetStreamObjects(link, config.wheel_object_store_bucket)
        with pytest.raises(Unavailable):
            await missing.strays(ANY_AGE)
        with pytest.raises(Unavailable):
            await missing.sweep(Stray("x", 1, 1))


class TestAPutThatRests:
    """Its chunks may have been swept by then, so it never shows."""

    @pytest.mark.parametrize("piece_bytes", [1000, 200_000])
    async def test_too_long_between_two_pieces_fails_and_leaves_nothing(
        self,
        store: JetStreamObjects,
        link: Link,
        prepared: NatsBackendConfig,
        monkeypatch: pytest.MonkeyPatch,
        piece_bytes: int,
    ) -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield bytes(200_000)
            monkeypatch.setattr(writer, "IDLE_SECONDS_MAX", -1.0)
            yield bytes(piece_bytes)
            raise AssertionError("it should have ended")

        with pytest.raises(NotStored, match="nothing was added"):
            await store.put("one", slow(), 10**6)
        assert await chunk_subjects(link, prepared) == {}

    async def test_too_long_before_it_shows_fails_and_leaves_nothing(
        self, store: JetStreamObjects, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def takes_long(_: Catalogue) -> None:
            monkeypatch.setattr(writer, "IDLE_SECONDS_MAX", -1.0)

        with pytest.raises(NotStored, match="nothing was added"):
            await store.put_admitted("one", pieces_of(bytes(1000)), 1000, None, takes_long)
        assert (await store.catalogue()).objects == ()
        assert await chunk_subjects(link, prepared) == {}
