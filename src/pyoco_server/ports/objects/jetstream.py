"""Objects in a JetStream object store (ADR-20), as every NATS client reads and writes it.

The bytes lie in chunks on a subject that is new for each put; a small meta message under the object's name says
which. So a new object shows by one write, and nobody meets half of one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from pyoco_server.errors import Corrupt, NotStored, ObjectNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.watch import watch
from pyoco_server.ports.objects.port import CHANGED, Catalogue, Changed, ObjectInfo
from pyoco_server.ports.objects.reader import ChunkReader
from pyoco_server.ports.objects.writer import CHUNK_BYTES, ChunkWriter

__all__ = ["JetStreamObjects"]

log = get_logger(__name__)

#: Time without progress, not for the whole (FLOW-48).
_SILENCE_SECONDS = 5.0
_ROUNDS_MAX = 20
_DIGEST = "SHA-256="
_REPLACE = {"Nats-Rollup": "sub"}


class _Meta(msgspec.Struct, omit_defaults=True):
    """What lies under an object's name. Members we do not use are those of other clients."""

    name: str
    bucket: str
    nuid: str
    size: int | None = 0
    mtime: str | None = None
    chunks: int | None = 0
    digest: str | None = None
    deleted: bool | None = False
    headers: dict[str, list[str] | str] | None = None
    options: dict[str, Any] | None = None


_read_meta = msgspec.json.Decoder(_Meta).decode


class JetStreamObjects:
    def __init__(self, link: Link, bucket: str) -> None:
        self._link, self._name = link, bucket
        self._stream = f"OBJ_{bucket}"
        self._metas = Bucket(link, bucket, stream=self._stream, prefix=f"$O.{bucket}.M.")
        #: The condition of a write is the newest of all metas, not of its own.
        self._whole_store = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{self._metas.prefix}>"}
        self._tidying: set[asyncio.Task[None]] = set()

    async def put(
        self, name: str, chunks: AsyncIterable[bytes], bytes_max: int, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        made = await self._put(name, chunks, bytes_max, headers, None)
        assert not isinstance(made, Changed)
        return made

    async def put_if_unchanged(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        generation: int,
    ) -> ObjectInfo | Changed:
        return await self._put(name, chunks, bytes_max, headers, generation)

    async def _put(
        self,
        name: str,
        chunks: AsyncIterable[bytes],
        bytes_max: int,
        headers: Mapping[str, str] | None,
        generation: int | None,
    ) -> ObjectInfo | Changed:
        nuid = uuid.uuid4().hex
        writer = ChunkWriter(self._link, self._chunk_subject(nuid), bytes_max)
        is_kept = False
        try:
            await writer.send(chunks)
            meta = _Meta(
                name=name,
                bucket=self._name,
                nuid=nuid,
                size=writer.size_bytes,
                mtime=_now(),
                chunks=writer.count,
                digest=_DIGEST + base64.urlsafe_b64encode(writer.digest).decode(),
                headers={key: [value] for key, value in headers.items()} if headers else None,
                options={"max_chunk_size": CHUNK_BYTES},
            )
            is_kept = True  # until it is certain that the meta does not name these chunks
            replaced = await self._write_meta(meta, generation)
            is_kept = not isinstance(replaced, Changed)
        except NotStored:
            is_kept = False
            raise
        finally:
            if not is_kept:
                await self._in_background(self._abandon(writer, nuid))
        if isinstance(replaced, Changed):
            return CHANGED
        if replaced is not None:
            await self._purge(replaced.nuid)
        return ObjectInfo(name, writer.size_bytes, writer.digest.hex(), nuid, time.time(), dict(headers or {}))

    async def info(self, name: str) -> ObjectInfo:
        entry = await self._metas.get(_key(name))
        info = _info(entry) if entry is not None else None
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
        last = await self._metas.last_revision()
        found: dict[str, ObjectInfo | None] = {}
        seen = 0
        async with contextlib.aclosing(watch(self._link, self._metas)) as batches:
            while seen < last:
                try:
                    async with asyncio.timeout(_SILENCE_SECONDS):
                        batch = await anext(batches)
                except TimeoutError:
                    raise Unavailable(f"cannot list {self._name}") from None
                for entry in batch.entries:
                    seen = entry.revision
                    found[entry.key] = _readable_info(entry)
                if batch.caught_up and seen < last:
                    # Either the newest has expired since, or we read from a node that is a moment behind the leader.
                    # To take the second for the first would be a catalogue that lacks what its generation promises.
                    last = await self._metas.last_revision()
        infos = (info for info in found.values() if info is not None)
        return Catalogue(max(seen, last), tuple(sorted(infos, key=lambda info: info.name)))

    async def delete(self, name: str) -> bool:
        for _ in range(_ROUNDS_MAX):
            entry = await self._metas.get(_key(name))
            meta = _meta(entry) if entry is not None else None
            if entry is None or meta is None:
                return False
            gone = msgspec.json.encode(_Meta(name=name, bucket=self._name, nuid=meta.nuid, mtime=_now(), deleted=True))
            if await self._metas.write(_key(name), gone, entry.revision, _REPLACE) is not None:
                await self._purge(meta.nuid)
                return True
        raise Unavailable(f"object {name} changes too fast")

    async def _write_meta(self, meta: _Meta, generation: int | None) -> _Meta | Changed | None:
        """Show the new object. Returns the one it replaced: exactly that, so that nobody's chunks are forgotten."""
        key, data = _key(meta.name), msgspec.json.encode(meta)
        for _ in range(_ROUNDS_MAX):
            entry = await self._metas.get(key)
            if generation is None:
                done = await self._metas.write(key, data, entry.revision if entry else 0, _REPLACE)
            else:  # the whole store is the condition, so the object it replaces is the one just read, or it fails
                done = await self._metas.write(key, data, generation, _REPLACE | self._whole_store)
            if done is not None:
                return _meta(entry) if entry is not None else None
            if generation is not None:
                return CHANGED
        raise Unavailable(f"object {meta.name} changes too fast")

    async def _abandon(self, writer: ChunkWriter, nuid: str) -> None:
        await writer.settle()  # a chunk still on its way would arrive after the purge
        await self._purge(nuid)

    async def _purge(self, nuid: str) -> None:
        """Best effort: chunks that no meta names cost space and nothing else."""
        subject = self._chunk_subject(nuid)
        try:
            await self._link.api(f"STREAM.PURGE.{self._stream}", {"filter": subject}, dict[str, Any])
        except (Unavailable, Rejected) as error:
            log.warning("chunks of an object were left behind", bucket=self._name, object_id=nuid, error=error)

    async def _in_background(self, work: Coroutine[None, None, None]) -> None:
        """Wait for `work`, and let it go on if the wait is cancelled."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)
        await asyncio.shield(task)

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._name}.C.{nuid}"


def _key(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _meta(entry: Entry) -> _Meta | None:
    """None: deleted, or a link to something else, which we do not follow. Raises Corrupt."""
    try:
        meta = _read_meta(entry.value or b"")
    except msgspec.DecodeError as error:
        raise Corrupt(f"the description of an object cannot be read: {error}") from error
    return None if meta.deleted or "link" in (meta.options or {}) else meta


def _info(entry: Entry) -> ObjectInfo | None:
    meta = _meta(entry)
    if meta is None:
        return None
    words = (meta.headers or {}).items()
    try:
        digest = base64.urlsafe_b64decode((meta.digest or "").removeprefix(_DIGEST) + "==").hex()
    except binascii.Error as error:
        raise Corrupt(f"the digest of object {meta.name} cannot be read: {error}") from error
    return ObjectInfo(
        name=meta.name,
        size_bytes=meta.size or 0,
        sha256_hex=digest,
        object_id=meta.nuid,
        modified=round(entry.stored_at, 3),  # the two ways to a meta differ in the microseconds
        headers={key: value if isinstance(value, str) else ",".join(value) for key, value in words},
    )


def _readable_info(entry: Entry) -> ObjectInfo | None:
    try:
        return _info(entry)
    except Corrupt:
        log.exception("the description of an object cannot be read; lists pass it over", entry=entry.key)
        return None
