"""The set of installed wheels that runs see, and the change from one set to the next."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.core.wheel_needs import Option
from pyoco_server.core.wheel_sync import Environment, Hurdle
from pyoco_server.errors import UsageError
from pyoco_server.executors.wheels.install import Ready
from pyoco_server.loops.wheel_troubles import Troubles

__all__ = ["HostStartLimits", "Shown", "WheelStage", "environment_of"]

#: A change that failed after this time is not retried together with the others: an import that hangs will hang again.
_SLOW_SECONDS = 5.0


@dataclass(frozen=True)
class Shown:
    """One wheel visible to runs."""

    ready: Ready
    #: Directory of the dependencies fetched for it.
    fetched: Path | None = None
    #: Names of the fetched packages.
    fetched_packages: frozenset[str] = frozenset()

    @property
    def package(self) -> str:
        return self.ready.entry.package_name

    @property
    def option(self) -> Option:
        ready = self.ready
        return Option(ready.entry.wheel_name, self.package, ready.version, ready.needs, self.fetched_packages)


def environment_of(wheels: Iterable[Shown]) -> Environment:
    """Build the environment. Wheels precede fetched packages: a wheel registered later wins over a copy from an index.

    A module named like one of the standard library is never found in a wheel, so it is not offered either.
    """
    wheels = sorted(wheels, key=lambda one: one.package)
    paths = [str(one.ready.home) for one in wheels] + [str(one.fetched) for one in wheels if one.fetched is not None]
    modules = {name for one in wheels for name in one.ready.modules} - sys.stdlib_module_names
    return Environment(tuple(paths), tuple(sorted(modules)))


#: Changes by package; None: remove the package.
_Step = dict[str, Shown | None]


@dataclass(frozen=True)
class HostStartLimits:
    """How long hosts may take to start with another set of wheels; the executor has its own limit."""

    #: With all changes at once.
    seconds: float | None = None
    #: With one of them.
    each_seconds: float | None = None


_ANY = HostStartLimits()


@dataclass(frozen=True)
class _Failure:
    step: _Step
    error: UsageError
    #: It took so long that it is not worth retrying.
    is_slow: bool


class WheelStage:
    """The wheels that runs see, and `renew` to change them. `renew` raises UsageError if no host can start with the new
    set."""

    def __init__(self, renew: Callable[[Environment], Awaitable[None]], troubles: Troubles) -> None:
        self._renew, self._troubles = renew, troubles
        #: By package.
        self.shown: dict[str, Shown] = {}

    @property
    def environment(self) -> Environment:
        return environment_of(self.shown.values())

    async def change_to(
        self, wanted: dict[str, Shown], proven: Collection[str] = (), patience: HostStartLimits = _ANY
    ) -> bool:
        """Make these wheels visible. If hosts fail to start with one of them, or without one, that package stays as it
        was.

        `proven`: packages that hosts are known to start with. They are applied first, whether or not the others
        succeed.

        Costs one `renew`, or if that fails at most two per change: no change may work before a wheel that the resolver
        imports is in place. Returns False if nothing has changed. A cancellation keeps what was reached until then.
        """
        if environment_of(wanted.values()) == self.environment:
            self.shown = wanted
            return False
        steps: list[_Step] = [
            {package: wanted.get(package)}
            for package in sorted(self.shown.keys() | wanted.keys())
            if self.shown.get(package) != wanted.get(package)
        ]
        sure = [step for step in steps if step.keys() <= set(proven)]
        if 0 < len(sure) < len(steps) and await self._try(_merged(sure), patience.seconds) is None:
            steps = [step for step in steps if step not in sure]
            is_changed = True
        else:
            is_changed = False
        if len(steps) > 1 and await self._try(_merged(steps), patience.seconds) is None:
            return True
        return await self._change_each(steps, patience.each_seconds) or is_changed

    async def _change_each(self, steps: list[_Step], seconds: float | None) -> bool:
        failures = await self._try_each(steps, seconds)
        for failure in failures:
            if failure.is_slow:
                self._report(failure)
        left = [failure for failure in failures if not failure.is_slow]
        if len(failures) < len(steps):
            left = await self._try_each([failure.step for failure in left], seconds)
        for failure in left:
            self._report(failure)
        return len(failures) < len(steps)

    async def _try_each(self, steps: list[_Step], seconds: float | None) -> list[_Failure]:
        """Return the changes that failed."""
        return [failure for step in steps if (failure := await self._try(step, seconds)) is not None]

    async def _try(self, step: _Step, seconds: float | None) -> _Failure | None:
        after = {package: one for package, one in (self.shown | step).items() if one is not None}
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._renew(environment_of(after.values()))
        except (UsageError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                error = UsageError(f"it was not ready within {seconds or 0:g} s")
            return _Failure(step, error, is_slow=time.monotonic() - began >= _SLOW_SECONDS)
        self.shown = after
        return None

    def _report(self, failure: _Failure) -> None:
        for package, one in failure.step.items():
            entry = (one or self.shown[package]).ready.entry
            why = "no host process starts with it" if one is not None else "it stays: no host process starts without it"
            self._troubles.add(entry.wheel_name, entry.nuid, Hurdle.HOSTS, f"{why}: {failure.error}")


def _merged(steps: Iterable[_Step]) -> _Step:
    return {package: one for step in steps for package, one in step.items()}
