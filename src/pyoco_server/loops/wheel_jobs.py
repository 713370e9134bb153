"""Wheel installations in progress. A slow one does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from dataclasses import dataclass

from pyoco_server.core.wheel import Wheel
from pyoco_server.errors import PyocoError, WheelSyncFailed
from pyoco_server.executors.wheels.install import Installer, Lacking, Ready, Surroundings
from pyoco_server.logs import get_logger
from pyoco_server.ports.objects.port import ObjectInfo, Objects

__all__ = ["WheelJobs", "WheelOrder", "WheelResult"]

log = get_logger(__name__)

#: A pass waits this long for the installations it has begun; slower ones are collected by a later pass.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class WheelOrder:
    """One wheel to install."""

    wheel: Wheel
    info: ObjectInfo
    #: Set if the wheel is installed already and only its dependencies have to be fetched.
    installed: Ready | None


@dataclass(frozen=True)
class WheelResult:
    """The result of one installation."""

    wheel: Wheel
    how: Ready | Lacking | WheelSyncFailed


class WheelJobs:
    def __init__(self, objects: Objects, installer: Installer) -> None:
        self._objects, self._installer = objects, installer
        self._tasks: dict[str, asyncio.Task[WheelResult]] = {}
        self._wheels: dict[str, Wheel] = {}

    @property
    def wheels(self) -> list[Wheel]:
        """The wheels being installed."""
        return list(self._wheels.values())

    async def bring(
        self, orders: Iterable[WheelOrder], around: Surroundings, wanted: Collection[str]
    ) -> list[WheelResult]:
        """Start these installations and wait for them for a limited time. Returns all results available by then.

        `wanted`: ids of uploads. Installations of other uploads are cancelled.
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

    async def _bring(self, order: WheelOrder, around: Surroundings) -> WheelResult:
        def read() -> AsyncGenerator[bytes, None]:
            return self._objects.read(order.info)

        how: Ready | Lacking | WheelSyncFailed
        try:
            how = await self._installer.bring(order.wheel, read, order.installed, around)
        except WheelSyncFailed as error:
            how = error
        except (
            PyocoError
        ) as error:  # the registry is unavailable, the bytes do not match, or the wheel was just replaced
            how = WheelSyncFailed(f"the wheel cannot be read from the registry: {error}")
        except Exception as error:  # top level for one wheel: a defect in our code must affect this wheel only
            log.exception("installing a wheel failed; retrying later", wheel_name=order.wheel.name.file_name)
            how = WheelSyncFailed(f"unexpectedly: {error!r}")
        return WheelResult(order.wheel, how)

    async def stop(self) -> None:
        """Cancel the installations in progress; nothing of them remains."""
        await self._end(list(self._tasks))

    async def _end(self, names: Iterable[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names if self._wheels.pop(name, None) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
