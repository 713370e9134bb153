"""Fetches inputs that did not fit into AssignJob, from the current door (GRID-147)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import InputFile
from pyoco_server.errors import ObjectNotFound, Unavailable
from pyoco_server.frames.wire import WireClosed
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.session import DoorRefused, DoorSession

__all__ = ["fetch"]

log = get_logger(__name__)

_SILENCE_SECONDS = 60.0
_TRIES = 5
_PAUSE_SECONDS, _LOST_SECONDS = 1.0, 0.1


async def fetch(
    session: Callable[[], Awaitable[DoorSession]],
    job_id: str,
    file: InputFile,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[bytes]:
    """Yield the bytes of one input, in order. After a lost door, only the rest is fetched. The reader checks the hash.

    Waits for a door as long as there is none. Raises ObjectNotFound if the door reports that, and Unavailable after
    five refusals or timeouts in a row.
    """
    offset, failures = 0, 0
    while True:
        door = await session()
        try:
            async with aclosing(_from_here(door, job_id, file, offset)) as parts:
                async for data in parts:
                    offset += len(data)
                    failures = 0
                    yield data
        except WireClosed:  # continue at the next door
            if 0 < file.size <= offset:
                return
            await sleep(_LOST_SECONDS)
            continue
        except DoorRefused as refused:
            if refused.error.code == Code.NOT_FOUND:
                raise ObjectNotFound(f"the input {file.name} is no longer kept") from None
            reason = refused.error.code
        except TimeoutError:
            reason = "silence"
        except GridRefused as error:
            reason = error.code
        else:
            return
        failures += 1
        log.warning("could not fetch an input", job_id=job_id, reason=reason, failures=failures)
        if failures >= _TRIES:
            raise Unavailable("an input cannot be fetched through the door")
        # A door that has just reattached this worker may not have reattached the attempt yet.
        await sleep(_PAUSE_SECONDS)


async def _from_here(door: DoorSession, job_id: str, file: InputFile, offset: int) -> AsyncGenerator[bytes]:
    with door.answers() as answers:
        await answers.ask(Type.OBJECT_GET, ObjectGet(job_id=job_id, name=file.name, offset=offset).to_payload())
        while True:
            part = BinaryPart.read((await answers.next(_SILENCE_SECONDS)).payload)
            if part.offset != offset or part.size != file.size:
                raise GridRefused(Code.BAD_OBJECT, "a part that does not follow the one before", job_id=job_id)
            offset += len(part.data)
            if part.data:
                yield part.data
            if part.last:
                return
