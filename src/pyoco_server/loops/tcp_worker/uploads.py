"""Uploads what does not fit into an AckJob, in parts and before it (GRID-144)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from uuid import UUID

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import PART_BYTES_MAX, BinaryPart, ObjectAck
from pyoco_server.core.programs.faults import Code
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.finished import Damaged
from pyoco_server.loops.tcp_worker.packing import OutgoingUpload
from pyoco_server.loops.tcp_worker.session import Answers, DoorRefused, DoorSession, Key

__all__ = ["UNANSWERED_MAX", "put_object"]

log = get_logger(__name__)

UNANSWERED_MAX = 4
_TRIES = 3
#: A door acknowledges a part immediately, and the last one when the object is stored: a GiB takes a while.
_PART_SECONDS, _STORE_SECONDS = 60.0, 900.0


async def put_object(
    session: DoorSession, key: Key, upload: OutgoingUpload, corr_id: UUID, is_wanted: Callable[[], bool]
) -> str | None:
    """Send an object until the door has stored it. Restarts if the door answers BAD_OBJECT, three tries in all.

    Returns its name in the door's store. Raises Refused, WireClosed, TimeoutError: try again later if it is still
    wanted; and Damaged if the file has changed.
    """
    for remaining in reversed(range(_TRIES)):
        try:
            return await _put_once(session, key, upload, corr_id)
        except DoorRefused as refused:
            if refused.error.code != Code.BAD_OBJECT or not remaining or not is_wanted():
                raise
            log.warning("upload refused; restarting it", job_id=key[0], name=upload.name)
    raise AssertionError("the last try returns or raises")


async def _put_once(session: DoorSession, key: Key, upload: OutgoingUpload, corr_id: UUID) -> str | None:
    offset, unanswered = 0, deque[int]()
    with session.answers() as answers:
        async with aclosing(_parts(upload)) as parts:
            async for data in parts:
                last = offset + len(data) == upload.size
                part = BinaryPart(
                    job_id=key[0],
                    token=key[1],
                    name=upload.name,
                    offset=offset,
                    size=upload.size,
                    last=last,
                    data=data,
                    sha256=upload.sha256 if last else None,
                )
                # Send the first part alone, so that a refusal does not refuse three more parts as well.
                most = UNANSWERED_MAX if offset > PART_BYTES_MAX else 1
                while len(unanswered) >= most:
                    await _acknowledged(answers, unanswered, _PART_SECONDS)
                await answers.ask(Type.OBJECT_PUT, part.to_payload(), corr_id=corr_id)
                offset += len(data)
                unanswered.append(offset)
        while True:
            ack = await _acknowledged(answers, unanswered, _STORE_SECONDS)
            if ack.done:
                return ack.object


async def _acknowledged(answers: Answers, unanswered: deque[int], seconds: float) -> ObjectAck:
    frame = await answers.next(seconds)
    ack = ObjectAck.read(frame.payload)
    while unanswered and unanswered[0] <= ack.received:
        unanswered.popleft()
    return ack


async def _parts(upload: OutgoingUpload) -> AsyncGenerator[bytes]:
    """Yield the parts in order, none above 1 MiB; one empty part for an empty object.

    Raises Damaged instead of the last.
    """
    if upload.path is None:
        for start in range(0, max(upload.size, 1), PART_BYTES_MAX):
            yield upload.data[start : start + PART_BYTES_MAX]
        return
    digest, rest = hashlib.sha256(), upload.size
    try:
        file = await asyncio.to_thread(upload.path.open, "rb")
    except OSError as error:
        raise Damaged(f"its archive cannot be opened: {error.strerror}") from error
    with file:
        while True:
            data = await asyncio.to_thread(file.read, min(PART_BYTES_MAX, rest))
            rest -= len(data)
            await asyncio.to_thread(digest.update, data)
            if (not data and rest) or (not rest and digest.hexdigest() != upload.sha256):
                raise Damaged("its archive is not what it was")
            yield data
            if not rest:
                return
