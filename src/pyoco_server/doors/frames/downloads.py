"""Sends an object to a peer in parts (GRID-146)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.frames.wire import Wire, fresh

__all__ = ["send_object"]

#: The size of the store's parts. The wire buffers 64 frames for a peer that does not read: with the largest parts, that
#: would be 16 MiB for each peer.
_PART_BYTES = 128 * 1024


async def send_object(
    wire: Wire, asked: ObjectGet, corr_id: UUID, size: int, sha256: str, pieces: AsyncIterator[bytes]
) -> None:
    """Send an object from the requested offset to its end. Memory: one part, and the buffer of the wire.

    Waits for a slow peer. Raises GridRefused: BAD_OBJECT for an offset behind the end; WireClosed; and what reading
    raises.
    """
    if asked.offset > size:
        raise GridRefused(Code.BAD_OBJECT, "the offset lies behind the end", field="Offset", job_id=asked.job_id)
    offset = asked.offset

    async def send(data: bytes) -> None:
        nonlocal offset
        last = offset + len(data) == size
        part = BinaryPart(
            job_id=asked.job_id,
            name=asked.name,
            offset=offset,
            size=size,
            last=last,
            data=data,
            sha256=sha256 if last else None,
        )
        await wire.send(fresh(Type.OBJECT_CHUNK, part.to_payload(), corr_id=corr_id))
        offset += len(data)

    async for part in _parts(pieces, asked.offset):
        await send(part)
    if offset == asked.offset:  # nothing was left to send: mark the end
        await send(b"")


async def _parts(pieces: AsyncIterator[bytes], skip: int) -> AsyncIterator[bytes]:
    """Yield the bytes after the first `skip`, in parts of one size."""
    buffer = bytearray()
    async for piece in pieces:
        if skip >= len(piece):
            skip -= len(piece)
            continue
        buffer += memoryview(piece)[skip:] if skip else piece
        skip = 0
        while len(buffer) >= _PART_BYTES:
            yield bytes(buffer[:_PART_BYTES])
            del buffer[:_PART_BYTES]
    if buffer:
        yield bytes(buffer)
