"""Which installed wheels runs see, and the change from one set of them to the next."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.core.wheel_needs import Option
from pyoco_server.core.wheel_sync import Environment, Hurdle
from pyoco_server.errors import UsageError
from pyoco_server.executors.wheels.install import Ready
from pyoco_server.loops.wheel_troubles import Troubles

__all__ = ["Shown", "WheelStage", "environment_of"]


@dataclass(frozen=True)
class Shown:
    """One wheel that runs see."""

    ready: Ready
    #: Where that lies which was fetched for it.
    fetched: Path | None = None
    #: Packages that were.
    fetched_packages: frozenset[str] = frozenset()

    @property
    def package(self) -> str:
        return self.ready.entry.package_name

    @property
    def option(self) -> Option:
        ready = self.ready
        return Option(ready.entry.wheel_name, self.package, ready.version, ready.needs, self.fetched_packages)


def environment_of(wheels: Iterable[Shown]) -> Environment:
    """Wheels come before whatever was fetched: one that is registered later wins over a copy from an index.

    A module that is named like one of the standard library is never found in a wheel, so it is not offered either.
    """
    wheels = sorted(wheels, key=lambda one: one.package)
    paths = [str(one.ready.home) for one in wheels] + [str(one.fetched) for one in wheels if one.fetched is not None]
    modules = {name for one in wheels for name in one.ready.modules} - sys.stdlib_module_names
    return Environment(tuple(paths), tuple(sorted(modules)))


#: What is to change, by package; None: it is to be seen no more.
_Step = dict[str, Shown | None]


class WheelStage:
    """What runs see, and `renew` to change it. `renew` raises UsageError when no host can start there."""

    def __init__(self, renew: Callable[[Environment], Awaitable[None]], troubles: Troubles) -> None:
        self._renew, self._troubles = renew, troubles
        #: By package.
        self.shown: dict[str, Shown] = {}

    @property
    def environment(self) -> Environment:
        return environment_of(self.shown.values())

    async def change_to(self, wanted: dict[str, Shown]) -> bool:
        """Show these. Where hosts do not start with one of them, or without one, that one stays as it was.

        Costs one `renew`, or when that fails two for each change at most: one wheel may hold what the resolver needs
        for any other to be tried. False: nothing has changed.
        """
        if environment_of(wanted.values()) == self.environment:
            self.shown = wanted
            return False
        steps: list[_Step] = [
            {package: wanted.get(package)}
            for package in sorted(self.shown.keys() | wanted.keys())
            if self.shown.get(package) != wanted.get(package)
        ]
        at_once = {package: one for step in steps for package, one in step.items()}
        if len(steps) > 1 and await self._try(at_once) is None:
            return True
        left = await self._try_each(steps)
        if len(steps) > len(left) > 0:
            left = await self._try_each([step for step, _ in left])
        for step, error in left:
            self._tell(step, error)
        return len(left) < len(steps)

    async def _try_each(self, steps: list[_Step]) -> list[tuple[_Step, UsageError]]:
        """Returns those that failed."""
        return [(step, error) for step in steps if (error := await self._try(step)) is not None]

    async def _try(self, step: _Step) -> UsageError | None:
        after = {package: one for package, one in (self.shown | step).items() if one is not None}
        try:
            await self._renew(environment_of(after.values()))
        except UsageError as error:
            return error
        self.shown = after
        return None

    def _tell(self, step: _Step, error: UsageError) -> None:
        for package, one in step.items():
            entry = (one or self.shown[package]).ready.entry
            why = "no host process starts with it" if one is not None else "it stays: no host process starts without it"
            self._troubles.add(entry.wheel_name, entry.nuid, Hurdle.HOSTS, f"{why}: {error}")
