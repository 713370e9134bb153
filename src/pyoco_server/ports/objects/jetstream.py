"""Objects in a JetStream object store (ADR-20), in the format of all NATS clients.

The bytes are stored in chunks, on a new subject for each put; a small meta message under the object's name refers to
them. So a new object becomes visible by one write, and is never seen half written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from pyoco_server.errors import Corrupt, NotStored, ObjectNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link, gave_up
from pyoco_server.ports.nats.watch import next_batch, watch
from pyoco_server.ports.objects.chunks import Chunks
from pyoco_server.ports.objects.meta import Meta, digest_text, info_of, key_of, listed_info, meta_of, named_by, now_text
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo, Stray
from pyoco_server.ports.objects.reader import ChunkReader
from pyoco_server.ports.objects.writer import CHUNK_BYTES, ChunkWriter

__all__ = ["JetStreamObjects"]

log = get_logger(__name__)

#: Time for one write that competes with many others: in each round one of them succeeds.
_ROUNDS_SECONDS = 30.0
_REPLACE = {"Nats-Rollup": "sub"}


@dataclass
class _Draft:
    """An object whose chunks are stored, but which is not visible yet."""

    meta: Meta
    writer: ChunkWriter
    #: True while the object is or may be visible: then its chunks must be kept.
    may_show: bool = False

    @property
    def key(self) -> str:
        return key_of(self.meta.name)


class JetStreamObjects:
    def __init__(self, link: Link, bucket: str) -> None:
        self._link, self._name = link, bucket
        self._stream = f"OBJ_{bucket}"
        self._metas = Bucket(link, bucket, stream=self._stream, prefix=f"$O.{bucket}.M.")
        #: Makes a write conditional on the newest of all metas instead of its own.
        self._if_store_unchanged = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{self._metas.prefix}>"}
        self._chunks = Chunks(link, self._stream, f"$O.{bucket}.C.")
        self._tidying: set[asyncio.Task[None]] = set()

    async def put(
        self, name: str, chunks: AsyncIterable[bytes], bytes_max: int, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        return await self._put(name, chunks, bytes_max, headers, self._show)

    async def put_admitted(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        admit: Callable[[Catalogue], None],
    ) -> ObjectInfo:
        return await self._put(name, chunks, bytes_max, headers, lambda draft: self._show_admitted(draft, admit))

    async def _put(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        show: Callable[[_Draft], Awaitable[str | None]],
    ) -> ObjectInfo:
        """Store the chunks, then call `show`, which returns the id of the object it replaced."""
        nuid = uuid.uuid4().hex
        writer = ChunkWriter(self._link, self._stream, self._chunk_subject(nuid), bytes_max)
        draft = _Draft(Meta(name=name, bucket=self._name, nuid=nuid), writer)
        try:
            await writer.send(chunks)
            draft.meta = Meta(
                name=name,
                bucket=self._name,
                nuid=nuid,
                size=writer.size_bytes,
                mtime=now_text(),
                chunks=writer.count,
                digest=digest_text(writer.digest),
                headers={key: [value] for key, value in headers.items()} if headers else None,
                options={"max_chunk_size": CHUNK_BYTES},
            )
            replaced = await show(draft)
        finally:
            if not draft.may_show:
                await self._in_background(self._abandon(writer, nuid))
        if replaced is not None:
            await self._purge(replaced)
        return ObjectInfo(name, writer.size_bytes, writer.digest.hex(), nuid, time.time(), dict(headers or {}))

    async def _show(self, draft: _Draft) -> str | None:
        """Publish the meta on the condition that the entry just read is still current.

        So it replaces exactly that entry, and no replaced chunks are forgotten.
        """
        deadline = time.monotonic() + _ROUNDS_SECONDS
        while True:
            with _nothing_shows():
                entry = await self._metas.get(draft.key)
            if await self._write(draft, entry.revision if entry else 0):
                return _replaced(entry) if entry is not None else None
            await self._check_again(draft, deadline)

    async def _show_admitted(self, draft: _Draft, admit: Callable[[Catalogue], None]) -> str | None:
        """Publish the meta on the condition that the store is unchanged since `admit` saw the catalogue.

        So what was admitted, and what is replaced, are as the catalogue says.
        """
        deadline = time.monotonic() + _ROUNDS_SECONDS
        while True:
            with _nothing_shows():
                catalogue = await self.catalogue()
            admit(catalogue)
            if await self._write(draft, catalogue.generation, self._if_store_unchanged):
                ids = {info.name: info.object_id for info in catalogue.objects}
                return ids.get(draft.meta.name)
            await self._check_again(draft, deadline)

    async def _write(self, draft: _Draft, revision: int, conditions: Mapping[str, str] | None = None) -> bool:
        """Write the meta. False: another writer was faster, and the object is not visible."""
        draft.writer.check_idle()
        draft.may_show = True  # until it is certain that it is not visible
        try:
            data = msgspec.json.encode(draft.meta)
            draft.may_show = (
                await self._metas.write(draft.key, data, revision, _REPLACE | dict(conditions or {})) is not None
            )
        except NotStored:
            draft.may_show = False
            raise
        return draft.may_show

    async def _check_again(self, draft: _Draft, deadline: float) -> None:
        """Check whether a write that lost a race may be retried. Raises NotStored or Unavailable.

        A write whose answer was lost may have made the object visible, and another client may have replaced or deleted
        it since: then its chunks are deleted, and a second meta would refer to nothing.
        """
        if time.monotonic() > deadline:
            raise NotStored(f"{self._name} changes too fast")
        with _nothing_shows():
            counted = await self._chunks.count(draft.meta.nuid)
        if counted.by_id.get(draft.meta.nuid, 0) != draft.writer.count:
            raise Unavailable(f"object {draft.meta.name} has been replaced or deleted since, or was never stored")

    async def info(self, name: str) -> ObjectInfo:
        entry = await self._metas.get(key_of(name))
        info = info_of(entry) if entry is not None else None
        if info is None:
            raise ObjectNotFound(f"there is no object {name}")
        return info

    async def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        async def check_current() -> None:
            if (await self.info(info.name)).object_id != info.object_id:
                raise ObjectNotFound(f"object {info.name} has been replaced")

        subject = self._chunk_subject(info.object_id)
        reader = ChunkReader(self._link, self._stream, subject, info.size_bytes, check_current)
        async with contextlib.aclosing(reader.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
        if reader.digest.hex() != info.sha256_hex:
            raise Corrupt(f"the bytes of object {info.name} do not match its digest")

    async def catalogue(self) -> Catalogue:
        generation, entries = await self._entries()
        infos = (info for entry in entries if (info := listed_info(entry)) is not None)
        return Catalogue(generation, tuple(sorted(infos, key=lambda info: info.name)))

    async def _entries(self) -> tuple[int, tuple[Entry, ...]]:
        """Return the newest entry of each name, and the revision of the newest of all."""
        last = await self._metas.last_revision()
        found: dict[str, Entry] = {}
        seen = 0
        async with contextlib.aclosing(watch(self._link, self._metas)) as batches:
            while seen < last:
                batch = await next_batch(batches, f"cannot list {self._name}")
                for entry in batch.entries:
                    seen = entry.revision
                    found[entry.key] = entry
                if batch.caught_up and seen < last:
                    # Either the newest entry has expired since, or we read from a node that lags behind the leader.
                    # Mistaking the second for the first would yield a catalogue that lacks what its generation
                    # promises.
                    last = await self._metas.last_revision()
        return max(seen, last), tuple(found.values())

    async def delete(self, name: str) -> bool:
        deadline = time.monotonic() + _ROUNDS_SECONDS
        while time.monotonic() < deadline:
            entry = await self._metas.get(key_of(name))
            meta = meta_of(entry) if entry is not None else None
            if entry is None or meta is None:
                return False
            gone = msgspec.json.encode(
                Meta(name=name, bucket=self._name, nuid=meta.nuid, mtime=now_text(), deleted=True)
            )
            if await self._metas.write(key_of(name), gone, entry.revision, _REPLACE) is not None:
                await self._purge(meta.nuid)
                return True
        raise Unavailable(f"object {name} changes too fast")

    async def strays(self, older_than_seconds: float) -> tuple[Stray, ...]:
        counted = await self._chunks.count()  # before the names: chunks precede their meta
        _, entries = await self._entries()
        named = {named_by(entry) for entry in entries}
        return await self._chunks.strays(counted, counted.by_id.keys() - named, older_than_seconds)

    async def sweep(self, stray: Stray) -> bool:
        return await self._chunks.remove(stray.object_id, stray.last_sequence) > 0

    async def _abandon(self, writer: ChunkWriter, nuid: str) -> None:
        await writer.settle()  # a chunk still in flight would arrive after the purge
        await self._purge(nuid)

    async def _purge(self, nuid: str) -> None:
        """Delete an object's chunks, best effort: chunks without a meta only cost space until they are swept."""
        try:
            await self._chunks.remove(nuid)
        except Unavailable as error:
            log.warning(
                "cannot delete the chunks of an object, left for the sweeper",
                bucket=self._name,
                object_id=nuid,
                error=error,
            )

    async def _in_background(self, work: Coroutine[None, None, None]) -> None:
        """Wait for `work`; if the wait is cancelled, `work` continues."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)
        await asyncio.shield(task)

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._name}.C.{nuid}"


@contextlib.contextmanager
def _nothing_shows() -> Iterator[None]:
    """Turn Unavailable into NotStored: errors in this block occur while the object is certainly not visible."""
    try:
        yield
    except NotStored:
        raise
    except Unavailable as error:
        raise gave_up("nothing shows", error, ambiguous=False) from error


def _replaced(entry: Entry) -> str | None:
    """Return the id of the replaced object.

    None also if its meta cannot be read: no meta refers to its chunks any more, so they are swept.
    """
    try:
        return named_by(entry)
    except Corrupt:
        return None
