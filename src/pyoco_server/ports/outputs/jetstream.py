"""Outputs in a JetStream object store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

from pyoco_server.errors import Corrupt
from pyoco_server.ports.objects.port import Objects, Stray
from pyoco_server.ports.outputs.port import StoredOutput

__all__ = ["JetStreamOutputs"]

_TENANT = "Tenant"


class JetStreamOutputs:
    """The object store cannot begin in the middle of an object: a slice is read from the object's beginning."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, name: str, chunks: AsyncIterable[bytes], size_bytes: int, tenant_id: str) -> None:
        await self._objects.put(name, chunks, size_bytes, {_TENANT: tenant_id} if tenant_id else None)

    async def read(self, name: str, start: int, length: int) -> AsyncGenerator[bytes, None]:
        info = await self._objects.info(name)
        if info.size_bytes < start + length:
            raise Corrupt(f"object {name} has {info.size_bytes} bytes")
        at, end = 0, start + length
        if not length:
            return
        async with aclosing(self._objects.read(info)) as chunks:
            async for chunk in chunks:
                piece = chunk[max(0, start - at) : end - at]
                at += len(chunk)
                if piece:
                    yield piece
                if at >= end:
                    return

    async def all(self) -> tuple[StoredOutput, ...]:
        found = await self._objects.catalogue()
        return tuple(
            StoredOutput(each.name, each.size_bytes, each.headers.get(_TENANT, ""), each.modified)
            for each in found.objects
        )

    async def delete(self, name: str) -> bool:
        return await self._objects.delete(name)

    async def strays(self, older_than_seconds: float) -> tuple[Stray, ...]:
        return await self._objects.strays(older_than_seconds)

    async def sweep(self, stray: Stray) -> bool:
        return await self._objects.sweep(stray)
