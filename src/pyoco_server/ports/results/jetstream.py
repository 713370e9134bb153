"""Results in a JetStream object store, opened by our own tokens (PRICED-81)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from pyoco_server.config import PricedConfig
from pyoco_server.core.priced import result_token
from pyoco_server.errors import Corrupt, ObjectNotFound
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import results_resources
from pyoco_server.ports.objects.own import OwnStore
from pyoco_server.ports.objects.port import ObjectInfo, Objects
from pyoco_server.ports.results.port import EXISTS_DIFFERENT, ExistsDifferent, ResultHead

__all__ = ["PATH", "JetStreamResults"]

#: The path on this server that accepts tokens.
PATH = "/v1/results/"
_CONTENT_TYPE = "Content-Type"
_METADATA = "Meta-"


class JetStreamResults:
    """Checks for an existing result before it writes: a run starts at most once, so a key has one writer
    (PRICED-126)."""

    def __init__(self, link: Link, objects: Objects, config: PricedConfig, replicas: int, secret: bytes) -> None:
        """`objects` must be the store named by `config.results_bucket`.

        A worker passes no secret: it neither signs nor opens tokens.
        """
        self._objects, self._secret = objects, secret
        self.bucket = config.results_bucket
        resources = results_resources(config, replicas)
        self._store = OwnStore(link, objects, self.bucket, resources, "result", dependency_errors)

    async def start(self) -> None:
        await self._store.ensure()

    async def close(self) -> None:
        """Do nothing: another component owns the connection."""

    async def put(
        self, key: str, data: bytes, content_type: str, sha256: str, metadata: Mapping[str, str]
    ) -> ResultHead | ExistsDifferent:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("the digest is not that of the bytes")
        found = await self.head(key)
        if found is not None:
            return found if found.sha256 == sha256 else EXISTS_DIFFERENT
        headers = {_CONTENT_TYPE: content_type, **{_METADATA + name: value for name, value in metadata.items()}}
        with dependency_errors("store a result"):
            return _head(await self._objects.put(key, _one_piece(data), len(data), headers))

    async def head(self, key: str) -> ResultHead | None:
        info = await self._store.info(key)
        return None if info is None else _head(info)

    async def get(self, key: str) -> tuple[bytes, ResultHead] | None:
        info = await self._store.info(key)
        if info is None:
            return None
        pieces = bytearray()
        try:
            async with aclosing(self._store.read(info)) as chunks:
                async for chunk in chunks:
                    pieces += chunk
        except ObjectNotFound:
            return None
        except Corrupt as error:
            raise self._store.damaged(error) from None
        return bytes(pieces), _head(info)

    async def signed_url(self, key: str, expires_at: int) -> str:
        """Return a path on this server. Raises ValueError without a secret."""
        return PATH + result_token.sign(key, expires_at, self._secret)

    def opens(self, token: str, now: int) -> str | None:
        return result_token.open_token(token, now, self._secret)

    async def ping(self) -> None:
        await self._store.ping()


def _head(info: ObjectInfo) -> ResultHead:
    metadata = {
        name.removeprefix(_METADATA): value for name, value in info.headers.items() if name.startswith(_METADATA)
    }
    return ResultHead(info.sha256_hex, info.size_bytes, info.headers.get(_CONTENT_TYPE, ""), metadata)


async def _one_piece(data: bytes) -> AsyncIterator[bytes]:
    yield data
