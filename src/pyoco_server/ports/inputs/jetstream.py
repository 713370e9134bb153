"""Inputs in a JetStream object store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

from pyoco_server.config import PricedConfig
from pyoco_server.errors import Corrupt, DependencyUnavailable, ObjectNotFound, TooLarge
from pyoco_server.ports.inputs.landing import Landing
from pyoco_server.ports.inputs.port import ANY_TYPE, InputHead
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.resources import inputs_resources
from pyoco_server.ports.objects.own import OwnStore
from pyoco_server.ports.objects.port import ObjectInfo, Objects

__all__ = ["JetStreamInputs"]

_CONTENT_TYPE = "Content-Type"


class JetStreamInputs:
    """Each file is an object under its key. The store expires all objects after the retention."""

    def __init__(self, link: Link, objects: Objects, config: PricedConfig, replicas: int) -> None:
        """`objects` must be the store named by `config.pack_input_bucket`."""
        self.bucket = config.pack_input_bucket
        self._objects = objects
        self._store = OwnStore(link, objects, self.bucket, inputs_resources(config, replicas), "input", _store_errors)

    async def start(self) -> None:
        await self._store.ensure()

    async def close(self) -> None:
        """Do nothing: another component owns the connection."""

    async def put(self, key: str, data: AsyncIterator[bytes], size: int, content_type: str, sha256: str) -> None:
        try:
            with _store_errors("store an input"):
                await self._objects.put(key, _checked(data, size, sha256), size, {_CONTENT_TYPE: content_type})
        except TooLarge:
            raise ValueError("there are more bytes than were announced") from None

    async def head(self, key: str) -> InputHead | None:
        info = await self._store.info(key)
        return None if info is None else _head(info)

    async def fetch(self, key: str, into: Path, bytes_max: int) -> InputHead | None:
        info = await self._store.info(key)
        if info is None:
            return None
        if info.size_bytes > bytes_max:
            raise TooLarge(f"the file has {info.size_bytes} bytes, and may have {bytes_max}")
        try:
            async with Landing(into, bytes_max) as landing, aclosing(self._store.read(info)) as chunks:
                async for chunk in chunks:
                    await landing.write(chunk)
                await landing.finish(info.sha256_hex)
        except ObjectNotFound:
            return None
        except Corrupt as error:
            raise self._store.damaged(error) from None
        return _head(info)

    async def delete(self, key: str) -> None:
        try:
            with _store_errors("delete an input"):
                await self._objects.delete(key)
        except Corrupt as error:
            raise self._store.damaged(error) from None

    async def ping(self) -> None:
        await self._store.ping()


async def _checked(data: AsyncIterator[bytes], size: int, sha256: str) -> AsyncIterator[bytes]:
    """Pass the bytes on.

    Raises ValueError at their end, before the object becomes visible, if size or digest differ.
    """
    digest, count = hashlib.sha256(), 0
    async for chunk in data:
        await asyncio.to_thread(digest.update, chunk)
        count += len(chunk)
        yield chunk
    if count != size or digest.hexdigest() != sha256:
        raise ValueError("the bytes are not those of the size and the digest")


def _head(info: ObjectInfo) -> InputHead:
    return InputHead(info.size_bytes, info.headers.get(_CONTENT_TYPE, ANY_TYPE), info.sha256_hex or None)


@contextlib.contextmanager
def _store_errors(doing: str) -> Iterator[None]:
    """Like `dependency_errors`, but report only a class and a code, and drop the cause.

    Subjects and object names contain keys, and those end with file names of users (PRICED-171).
    """
    try:
        with dependency_errors(doing):
            yield
    except DependencyUnavailable as error:
        cause = error.__cause__
        code = f" {cause.code}" if isinstance(cause, Rejected) else ""
        raise DependencyUnavailable(f"cannot {doing}: {type(cause).__name__}{code}") from None
