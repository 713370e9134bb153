"""What every store of objects promises."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

import pytest

from pyoco_server.errors import ObjectNotFound, TooLarge
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo, Objects

__all__ = ["NotAdmitted", "ObjectsContract", "anything", "pieces_of", "put", "put_admitted", "read_all"]

_PIECE_BYTES = 50_000
#: Chunks of the store are of this size, or so the tests hope: they try both sides of it.
_CHUNK_BYTES = 128 * 1024


async def pieces_of(data: bytes, piece_bytes: int = _PIECE_BYTES) -> AsyncIterator[bytes]:
    for start in range(0, len(data), piece_bytes):
        yield data[start : start + piece_bytes]


async def put(objects: Objects, name: str, data: bytes, headers: dict[str, str] | None = None) -> ObjectInfo:
    return await objects.put(name, pieces_of(data), len(data), headers)


class NotAdmitted(Exception):
    """Of no kind that a store knows."""


def anything(_: Catalogue) -> None:
    """Admits whatever it is asked about."""


async def put_admitted(
    objects: Objects,
    name: str,
    data: bytes,
    admit: Callable[[Catalogue], None] = anything,
    headers: dict[str, str] | None = None,
) -> ObjectInfo:
    return await objects.put_admitted(name, pieces_of(data), len(data), headers, admit)


async def read_all(objects: Objects, info: ObjectInfo) -> bytes:
    async with asyncio.timeout(200):
        return b"".join([chunk async for chunk in objects.read(info)])


class ObjectsContract:
    """An adapter passes all of it or does not ship."""

    @pytest.mark.parametrize(
        "size", [0, 1, 49_999, _CHUNK_BYTES - 1, _CHUNK_BYTES, _CHUNK_BYTES + 1, 40 * _CHUNK_BYTES, 5_000_017]
    )
    async def test_the_bytes_that_were_put_come_back(self, objects: Objects, size: int) -> None:
        data = os.urandom(size)
        made = await put(objects, "one", data)
        assert made.size_bytes == size
        assert made.sha256_hex == hashlib.sha256(data).hexdigest()
        assert await read_all(objects, made) == data

    @pytest.mark.parametrize("piece_bytes", [1, 1000, 3 * _CHUNK_BYTES])
    async def test_the_size_of_the_pieces_does_not_matter(self, objects: Objects, piece_bytes: int) -> None:
        data = os.urandom(2000 if piece_bytes == 1 else 500_000)
        made = await objects.put("one", pieces_of(data, piece_bytes), len(data))
        assert await read_all(objects, made) == data

    async def test_an_object_is_described_as_it_was_put(self, objects: Objects) -> None:
        began = time.time()
        made = await put(objects, "a name/with spaces.日本語", b"abc", {"Requires": "python>=3.11", "note": "ü"})
        found = await objects.info(made.name)
        assert found.headers == {"Requires": "python>=3.11", "note": "ü"}
        assert (found.name, found.size_bytes, found.sha256_hex) == (made.name, 3, made.sha256_hex)
        assert found.object_id == made.object_id
        assert began - 5 < found.modified < time.time() + 5
        assert await read_all(objects, found) == b"abc"

    async def test_an_object_that_is_not_there_is_not_found(self, objects: Objects) -> None:
        with pytest.raises(ObjectNotFound):
            await objects.info("none")
        assert not await objects.delete("none")

    async def test_a_put_replaces_the_object_of_that_name(self, objects: Objects) -> None:
        old = await put(objects, "one", b"old", {"v": "1"})
        new = await put(objects, "one", b"newer")
        assert new.object_id != old.object_id
        found = await objects.info("one")
        assert (found.object_id, found.headers) == (new.object_id, {})
        assert await read_all(objects, found) == b"newer"
        assert len((await objects.catalogue()).objects) == 1

    @pytest.mark.parametrize("size", [0, 10, 1_000_000])
    async def test_a_replaced_object_is_not_found_any_more(self, objects: Objects, size: int) -> None:
        old = await put(objects, "one", b"x" * size)
        await put(objects, "one", b"new")
        with pytest.raises(ObjectNotFound):
            await read_all(objects, old)

    @pytest.mark.parametrize("size", [0, 10, 1_000_000])
    async def test_a_deleted_object_is_not_found_any_more(self, objects: Objects, size: int) -> None:
        old = await put(objects, "one", b"x" * size)
        assert await objects.delete("one")
        assert not await objects.delete("one")
        with pytest.raises(ObjectNotFound):
            await objects.info("one")
        with pytest.raises(ObjectNotFound):
            await read_all(objects, old)

    async def test_an_object_deleted_while_it_is_read_is_not_found(self, objects: Objects) -> None:
        made = await put(objects, "one", os.urandom(10_000_000))
        async with asyncio.timeout(200), aclosing(objects.read(made)) as chunks:
            await anext(chunks)
            await objects.delete("one")
            with pytest.raises(ObjectNotFound):
                async for _ in chunks:
                    pass

    async def test_a_deleted_name_can_be_used_again(self, objects: Objects) -> None:
        await put(objects, "one", b"old")
        await objects.delete("one")
        assert await read_all(objects, await put(objects, "one", b"new")) == b"new"

    async def test_all_objects_are_listed_by_name(self, objects: Objects) -> None:
        assert (await objects.catalogue()).objects == ()
        for name in ("b", "a", "gone", "c"):
            await put(objects, name, name.encode())
        await objects.delete("gone")
        await put(objects, "b", b"replaced")
        listed = list((await objects.catalogue()).objects)
        assert [info.name for info in listed] == ["a", "b", "c"]
        assert listed[1] == await objects.info("b")
        for info in listed:
            await objects.delete(info.name)
        assert (await objects.catalogue()).objects == ()

    async def test_too_large_a_body_is_refused_as_soon_as_it_shows(self, objects: Objects) -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 1
                yield b"x" * 100_000

        async with asyncio.timeout(200):
            with pytest.raises(TooLarge):
                await objects.put("one", endless(), 1_000_000)
        assert sent == 11
        assert (await objects.catalogue()).objects == ()

    async def test_a_broken_upload_leaves_the_old_object_as_it_was(self, objects: Objects) -> None:
        await put(objects, "one", b"old")

        async def broken() -> AsyncIterator[bytes]:
            yield b"x" * 1_000_000
            raise ConnectionError("the client went away")

        with pytest.raises(ConnectionError):
            await objects.put("one", broken(), 10_000_000)
        assert await read_all(objects, await objects.info("one")) == b"old"

    async def test_nobody_sees_an_object_before_it_is_whole(self, objects: Objects) -> None:
        half_way, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 500_000
            half_way.set()
            await go_on.wait()
            yield b"y"

        putting = asyncio.create_task(objects.put("one", slow(), 1_000_000))
        await half_way.wait()
        assert (await objects.catalogue()).objects == ()
        with pytest.raises(ObjectNotFound):
            await objects.info("one")
        go_on.set()
        assert (await putting).size_bytes == 500_001

    async def test_of_many_puts_of_one_name_one_whole_object_remains(self, objects: Objects) -> None:
        bodies = [bytes([n]) * 300_000 for n in range(8)]
        made = await asyncio.gather(*(put(objects, "one", body) for body in bodies))
        found = await objects.info("one")
        assert found.object_id in {info.object_id for info in made}
        assert await read_all(objects, found) in bodies

    async def test_a_reader_that_stops_half_way_harms_nobody(self, objects: Objects) -> None:
        made = await put(objects, "one", os.urandom(3_000_000))
        async with aclosing(objects.read(made)) as chunks:
            await anext(chunks)
        assert len(await read_all(objects, made)) == 3_000_000

    async def test_a_catalogue_is_of_another_generation_after_every_change(self, objects: Objects) -> None:
        generations = [(await objects.catalogue()).generation]
        await put(objects, "one", b"1")
        generations.append((await objects.catalogue()).generation)
        assert (await objects.catalogue()).generation == generations[-1]
        await put(objects, "one", b"1")
        generations.append((await objects.catalogue()).generation)
        await put(objects, "two", b"2")
        generations.append((await objects.catalogue()).generation)
        await objects.delete("one")
        generations.append((await objects.catalogue()).generation)
        assert sorted(set(generations)) == generations

    async def test_a_put_that_is_admitted_is_a_put(self, objects: Objects) -> None:
        first = await put_admitted(objects, "one", b"1", headers={"k": "v"})
        second = await put_admitted(objects, "two", b"2")
        third = await put_admitted(objects, "one", b"3")  # over one that is there, too
        assert await read_all(objects, await objects.info("one")) == b"3"
        assert first.headers == {"k": "v"}
        assert [info.object_id for info in (await objects.catalogue()).objects] == [third.object_id, second.object_id]
        with pytest.raises(ObjectNotFound):
            await read_all(objects, first)

    async def test_what_admit_raises_goes_to_the_caller_and_nothing_remains(self, objects: Objects) -> None:
        """FLOW-213"""
        old = await put(objects, "one", b"old")

        def refuse(catalogue: Catalogue) -> None:
            assert [info.object_id for info in catalogue.objects] == [old.object_id]
            raise NotAdmitted

        with pytest.raises(NotAdmitted):
            await put_admitted(objects, "one", bytes(500_000), refuse)
        with pytest.raises(NotAdmitted):
            await put_admitted(objects, "two", bytes(500_000), refuse)
        assert [info.object_id for info in (await objects.catalogue()).objects] == [old.object_id]
        assert await read_all(objects, old) == b"old"
        assert await objects.strays(-60) == ()

    async def test_admit_is_asked_about_what_came_in_with_the_bytes(self, objects: Objects) -> None:
        """FLOW-213: and of what went"""
        await put(objects, "gone", b"x")

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 500_000
            await put(objects, "other", b"y")
            await objects.delete("gone")
            yield b"z"

        seen: list[list[str]] = []
        await objects.put_admitted(
            "one", slow(), 1_000_000, None, lambda catalogue: seen.append([info.name for info in catalogue.objects])
        )
        assert seen == [["other"]]

    @pytest.mark.parametrize("names", [["one"] * 8, [f"name{n}" for n in range(8)]], ids=["one name", "many names"])
    async def test_of_many_who_admit_nobody_beside_them_one_wins(self, objects: Objects, names: list[str]) -> None:
        """FLOW-213, FLOW-219: duplicate uploads at once."""
        before = await put(objects, "before", b"x")
        bodies = [bytes([n]) * 300_000 for n in range(8)]

        def alone(catalogue: Catalogue) -> None:
            if catalogue.objects != (before_as_listed,):
                raise NotAdmitted

        (before_as_listed,) = (await objects.catalogue()).objects
        ends = await asyncio.gather(
            *(put_admitted(objects, name, body, alone) for name, body in zip(names, bodies, strict=True)),
            return_exceptions=True,
        )
        [winner] = [end for end in ends if isinstance(end, ObjectInfo)]
        assert sum(isinstance(end, NotAdmitted) for end in ends) == 7
        listed = {info.name: info.object_id for info in (await objects.catalogue()).objects}
        assert listed == {"before": before.object_id, winner.name: winner.object_id}
        assert await read_all(objects, winner) == bodies[ends.index(winner)]
        assert await objects.strays(-60) == ()

    async def test_of_many_at_once_each_is_admitted_by_what_was_there_before_it(self, objects: Objects) -> None:
        """FLOW-213: one after the other, in any order; none is refused."""
        asked: dict[str, list[int]] = {f"name{n}": [] for n in range(12)}

        def note(name: str, catalogue: Catalogue) -> None:
            asked[name].append(len(catalogue.objects))

        await asyncio.gather(*(put_admitted(objects, name, bytes(200_000), partial(note, name)) for name in asked))
        assert sorted(counts[-1] for counts in asked.values()) == list(range(12))

    async def test_too_large_a_put_is_not_even_asked_about(self, objects: Objects) -> None:
        asked: list[Catalogue] = []
        with pytest.raises(TooLarge):
            await objects.put_admitted("one", pieces_of(bytes(1001)), 1000, None, asked.append)
        assert asked == []
        assert (await objects.catalogue()).objects == ()

    async def test_what_is_whole_replaced_deleted_or_broken_off_leaves_no_stray(self, objects: Objects) -> None:
        for size in (300_000, 200_000, 0):
            await put(objects, "one", bytes(size))
        await put(objects, "two", bytes(300_000))
        await put(objects, "three", bytes(300_000))
        await objects.delete("two")
        with pytest.raises(TooLarge):
            await objects.put("four", pieces_of(bytes(300_000)), 200_000)
        assert await objects.strays(-60) == ()

    async def test_bytes_without_a_name_are_strays_once_they_are_old_and_can_be_swept(self, objects: Objects) -> None:
        await put(objects, "whole", bytes(300_000))
        half_way = asyncio.Event()

        async def hanging() -> AsyncIterator[bytes]:
            yield bytes(3 * _CHUNK_BYTES)
            yield b"x"
            half_way.set()
            await asyncio.Event().wait()

        putting = asyncio.create_task(objects.put("one", hanging(), 1_000_000))
        await half_way.wait()
        async with asyncio.timeout(200):
            while not (found := await objects.strays(-60)) or found[0].size_bytes < 3 * _CHUNK_BYTES:
                await asyncio.sleep(0.005)
        (stray,) = found
        assert stray.size_bytes == 3 * _CHUNK_BYTES
        assert await objects.strays(60) == ()
        assert await objects.sweep(stray)
        assert not await objects.sweep(stray)
        assert await objects.strays(-60) == ()
        assert len(await read_all(objects, await objects.info("whole"))) == 300_000
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
