"""An object on its way to a peer, in parts (GRID-146)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.frames.wire import Wire, fresh

__all__ = ["send_object"]

#: As the store has them. The wire holds 64 frames for a peer that does not read: of the largest parts that would be
#: 16 MiB for each of them.
_PART_BYTES = 128 * 1024


async def send_object(
    wire: Wire, asked: ObjectGet, corr_id: UUID, size: int, sha256: str, pieces: AsyncIterator[bytes]
) -> None:
    """From the asked offset to the end; memory: one part, and what the wire holds. A slow peer is waited for.

    Raises GridRefused: BAD_OBJECT for an offset behind the end; WireClosed; whatever reading raises.
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
    if offset == asked.offset:  # nothing was left to send: say that this is the end
        await send(b"")


async def _parts(pieces: AsyncIterator[bytes], skip: int) -> AsyncIterator[bytes]:
    """Without the first `skip` bytes, in parts of one size."""
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
