"""Installations of wheels under way. One that takes long does not hold up those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from dataclasses import dataclass

from pyoco_server.core.wheel import Wheel
from pyoco_server.errors import PyocoError, WheelSyncFailed
from pyoco_server.executors.wheels.install import Installer, Lacking, Ready, Surroundings
from pyoco_server.logs import get_logger
from pyoco_server.ports.objects.port import ObjectInfo, Objects

__all__ = ["Ended", "Order", "WheelJobs"]

log = get_logger(__name__)

#: A pass waits this long for what it has begun; what takes longer is seen by a later pass.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Order:
    """One wheel to be brought."""

    wheel: Wheel
    info: ObjectInfo
    #: It is installed already, and something it needs is to be fetched.
    there: Ready | None


@dataclass(frozen=True)
class Ended:
    """How that ended."""

    wheel: Wheel
    how: Ready | Lacking | WheelSyncFailed


class WheelJobs:
    def __init__(self, objects: Objects, installer: Installer) -> None:
        self._objects, self._installer = objects, installer
        self._tasks: dict[str, asyncio.Task[Ended]] = {}
        self._wheels: dict[str, Wheel] = {}

    @property
    def wheels(self) -> list[Wheel]:
        """What is being brought."""
        return list(self._wheels.values())

    async def bring(self, orders: Iterable[Order], around: Surroundings, wanted: Collection[str]) -> list[Ended]:
        """Begin with these, and wait for them for a while. Returns everything that has ended by then.

        `wanted`: ids of uploads. What is under way of others is ended.
        """
        await self._end([name for name, wheel in self._wheels.items() if wheel.nuid not in wanted])
        begun = []
        for order in orders:
            name = order.wheel.name.file_name
            if name not in self._tasks:
                self._wheels[name] = order.wheel
                self._tasks[name] = asyncio.create_task(self._bring(order, around), name=f"bring {name}")
                begun.append(self._tasks[name])
        if begun:
            await asyncio.wait(begun, timeout=_PATIENCE_SECONDS)
        ended = [name for name, task in self._tasks.items() if task.done()]
        for name in ended:
            del self._wheels[name]
        return [self._tasks.pop(name).result() for name in ended]

    async def _bring(self, order: Order, around: Surroundings) -> Ended:
        def read() -> AsyncGenerator[bytes, None]:
            return self._objects.read(order.info)

        how: Ready | Lacking | WheelSyncFailed
        try:
            how = await self._installer.bring(order.wheel, read, order.there, around)
        except WheelSyncFailed as error:
            how = error
        except (
            PyocoError
        ) as error:  # the registry: away, its bytes are others than they should be, or replaced just now
            how = WheelSyncFailed(f"the wheel cannot be read from the registry: {error}")
        except Exception as error:  # the top of one wheel: a defect of ours must cost this wheel only
            log.exception("a wheel was not dealt with; it is tried again", wheel_name=order.wheel.name.file_name)
            how = WheelSyncFailed(f"unexpectedly: {error!r}")
        return Ended(order.wheel, how)

    async def stop(self) -> None:
        """End what is under way; nothing of it is left."""
        await self._end(list(self._tasks))

    async def _end(self, names: Iterable[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names if self._wheels.pop(name, None) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
