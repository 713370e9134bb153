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
    """A wheel, and the object it is."""

    wheel: Wheel
    info: ObjectInfo


async def find_wheel(backend: Backend, wheel_name: str) -> FoundWheel:
    """What is known of a wheel: one round trip. Raises WheelNotFound (FLOW-159), Unavailable."""
    try:
        read_wheel_name(wheel_name)  # what cannot be a wheel's name is not asked for
        info = await backend.wheels.info(wheel_name)
    except (InvalidWheel, ObjectNotFound) as error:
        raise WheelNotFound from error
    wheel = wheel_of(info)
    if wheel is None:
        raise WheelNotFound
    return FoundWheel(wheel, info)


async def read_wheel(backend: Backend, found: FoundWheel) -> AsyncGenerator[bytes, None]:
    """Its bytes, in chunks; memory does not grow with them. Close it when done early.

    The last chunk is given only after the digest of all of them was found right. Raises WheelNotFound when the wheel
    was deleted or replaced meanwhile, Corrupt when the bytes are not those that were registered, Unavailable.
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
