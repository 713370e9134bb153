"""Read a registered wheel."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pyoco_server.actions.list_wheels import wheel_of
from pyoco_server.core.wheel import Wheel, read_wheel_name
from pyoco_server.errors import InvalidWheel, ObjectNotFound, WheelNotFound
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import ObjectInfo

__all__ = ["FoundWheel", "find_wheel", "read_wheel"]


@dataclass(frozen=True)
class FoundWheel:
    """A wheel, and the object that stores it."""

    wheel: Wheel
    info: ObjectInfo


async def find_wheel(backend: Backend, wheel_name: str) -> FoundWheel:
    """Return the description of a wheel: one round trip. Raises WheelNotFound (FLOW-159), Unavailable."""
    try:
        read_wheel_name(wheel_name)  # do not look up an invalid wheel name
        info = await backend.wheels.info(wheel_name)
    except (InvalidWheel, ObjectNotFound) as error:
        raise WheelNotFound from error
    wheel = wheel_of(info)
    if wheel is None:
        raise WheelNotFound
    return FoundWheel(wheel, info)


async def read_wheel(backend: Backend, found: FoundWheel) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a wheel in chunks; memory does not grow with its size. Close the generator if you stop early.

    The last chunk is yielded only after the digest of the complete content was verified. Raises WheelNotFound if the
    wheel was deleted or replaced meanwhile, Corrupt if the bytes are not those that were registered, Unavailable.
    """
    held: bytes | None = None
    try:
        async with contextlib.aclosing(backend.wheels.read(found.info)) as chunks:
            async for chunk in chunks:
                if held is not None:
                    yield held
                held = chunk
    except ObjectNotFound as error:
        raise WheelNotFound("the wheel was deleted or replaced while it was read") from error
    if held is not None:
        yield held
