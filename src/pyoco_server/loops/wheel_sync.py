"""Keeps a worker's installed wheels in sync with the registry (section 12.3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from pyoco_server.actions.list_wheels import wheels_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.wheel import Skipped, WheelChoice, choose
from pyoco_server.core.wheel_needs import Extras, Option, Provided, provided_by, resolve, tell_lacks, unmet
from pyoco_server.core.wheel_sync import Environment, FailedWheel, Hurdle, InstalledWheel, SyncReport, WheelTrouble
from pyoco_server.errors import PyocoError, WheelSyncFailed
from pyoco_server.executors.wheels.file_work import file_work
from pyoco_server.executors.wheels.install import Installer, Lacking, Ready, Surroundings, tell_os_error
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf
from pyoco_server.executors.wheels.worker_packages import WorkerPackages, look_at_worker, supported_tags
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.wheel_jobs import WheelJobs, WheelOrder, WheelResult
from pyoco_server.loops.wheel_stage import HostStartLimits, Shown, WheelStage
from pyoco_server.loops.wheel_troubles import Troubles
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo, Objects

__all__ = ["WheelSync"]

log = get_logger(__name__)

#: Each part of a pass has its own limit; this one covers their sum.
_TURN_SECONDS_MAX = 3600.0
#: A starting worker waits at most this long for its wheels and installs the rest while it executes runs.
_START_SECONDS = 60.0
#: So a wheel that hangs leaves time for the others. Wheels that do not become visible in time are retried with a longer
#: limit.
_START_PATIENCE = HostStartLimits(seconds=20.0, each_seconds=10.0)
#: Takes the place of the wheel name in the report if the problem is not with a single wheel.
_ALL = "*"


def _nothing() -> None:
    """Default callback: do nothing."""


class WheelSync(Loop):
    """Compares the registry with the installed wheels, installs and removes wheels, and makes the result visible to new
    runs.

        with open_shelf(Path(config.wheel_sync_dir)) as shelf:
            sync = WheelSync(backend.wheels, shelf, tags, config, clock, executor.renew, lambda: executor.paths_in_use)
            await sync.first_sync()   # one pass, now
            await sync.start()        # and one every PYOCO_WHEEL_SYNC_INTERVAL_SEC

    The wheels of a run in progress never change (FLOW-230): every installation has its own directory, a run keeps the
    directories it began with, and they are removed after its end. A failing wheel affects only itself: others are
    installed, an older version that is installed and still registered stays, and the wheel is retried with increasing
    delays. A wheel with which no host started is recorded for the next worker on this machine, which starts without it
    and then retries it.

    A pass without changes costs one read of the list of wheels, O(wheels). A crash leaves behind files that the
    manifest does not list; the next pass removes them.

    What it cannot do: verify that a wheel works. It only checks that the wheel installs and that hosts start with it.
    """

    def __init__(
        self,
        objects: Objects,
        shelf: Shelf,
        tags: Sequence[str],
        config: NatsBackendConfig,
        clock: Callable[[], float],
        renew: Callable[[Environment], Awaitable[None]],
        in_use: Callable[[], frozenset[str]],
    ) -> None:
        super().__init__(every_seconds=config.wheel_sync_interval_sec, turn_seconds_max=_TURN_SECONDS_MAX)
        self._objects, self._shelf, self._tags, self._clock, self._in_use = objects, shelf, tags, clock, in_use
        self._installer = Installer(shelf, Pip(config.wheel_install_timeout_sec, config.wheel_index), clock)
        self._jobs = WheelJobs(objects, self._installer)
        self._troubles = Troubles(clock, config.wheel_sync_interval_sec)
        self._stage = WheelStage(renew, self._troubles)
        self._one_at_a_time = asyncio.Lock()
        self._turning: asyncio.Task[SyncReport] | None = None
        self._next_at = 0.0
        #: The installed wheels by name, as in the manifest. None: the manifest has not been read.
        self._ready: dict[str, Ready] | None = None
        #: The registry generation that was fully processed; None: run a full pass even if the registry has not changed.
        self._generation: int | None = None
        self._infos: dict[str, ObjectInfo] = {}
        self._choice = WheelChoice((), ())
        self._removed: tuple[str, ...] = ()
        #: All installed wheels that could be made visible.
        self._candidates: list[Shown] = []
        #: The content of the manifest; None: unknown.
        self._saved: dict[str, InstalledWheel] | None = None
        self._is_swept = False
        #: Uploads that hosts started with when this worker last ran.
        self._proven: frozenset[str] = frozenset()
        self._saved_refused: dict[str, WheelTrouble] = {}
        #: The first pass left work for the next one.
        self._has_left_some = False
        #: The result of the last pass; None before the first.
        self.report: SyncReport | None = None
        #: Called after a pass whose result differs from the previous one, so that a listener need not poll.
        self.when_changed: Callable[[], None] = _nothing

    @property
    def environment(self) -> Environment:
        """The environment that runs see."""
        return self._stage.environment

    @property
    def is_installing(self) -> bool:
        """Whether a later pass may make more wheels visible than the last one."""
        return bool(self._jobs.wheels) or self._has_left_some

    async def turn(self) -> None:
        self._turning = asyncio.create_task(self.sync())
        try:
            await asyncio.wait({self._turning})
        finally:
            self._turning.cancel()

    async def stop(self) -> None:
        """Stop the loop and cancel installations in progress. May be called without `start`."""
        self._stopping.set()
        if self._turning is not None:
            self._turning.cancel()
        await super().stop()
        await self._jobs.stop()

    async def sync_if_due(self) -> SyncReport:
        """Run a pass if the interval has elapsed since the last one (FLOW-229); otherwise return the last report."""
        if self.report is not None and time.monotonic() < self._next_at:
            return self.report
        return await self.sync()

    async def first_sync(self) -> SyncReport:
        """Run the first pass of a starting worker: it ends within a minute. The next pass does the rest."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                return await self.sync()
        except TimeoutError:
            self._has_left_some = True
            words = (
                f"not all wheels were dealt with in the first {_START_SECONDS:g} s; the worker starts with what it has"
            )
            self.report = self._describe(WheelSyncFailed(words))
            log.error("wheel sync failed", error=WheelSyncFailed(words))
            return self.report

    async def sync(self) -> SyncReport:
        """Run one pass: read the registry and apply the changes. Never raises, except when it is cancelled."""
        async with self._one_at_a_time:
            problem = None
            try:
                try:
                    await self._pass()
                finally:
                    self._has_left_some = self.report is None and self._troubles.try_remembered()
            except PyocoError as error:
                problem = WheelSyncFailed(f"the registry of wheels cannot be read: {error}")
            except OSError as error:
                problem = WheelSyncFailed(tell_os_error(error))
            except Exception as error:  # top level of a pass: a defect in our code must not end the worker
                log.exception("wheel sync pass failed; retrying later")
                problem = WheelSyncFailed(f"unexpectedly: {error!r}")
            if problem is not None:
                log.error("wheel sync failed", error=problem)
            self._next_at = time.monotonic() + self._every_seconds
            last, self.report = self.report, self._describe(problem)
            if last is None or replace(last, last_sync_at=self.report.last_sync_at) != self.report:
                self.when_changed()
            return self.report

    async def _pass(self) -> None:
        if self._ready is None:
            await self._begin()
        try:
            catalogue = await self._objects.catalogue()
        except PyocoError:
            if self.report is None:  # the first pass: better the wheels of the previous worker than none
                await self._stage.change_to(self._as_it_was(), (), _START_PATIENCE)
            raise
        is_news = catalogue.generation != self._generation
        if not is_news and not self._jobs.wheels and not self._troubles.is_any_due:
            if not self._is_swept:
                await self._sweep()
            return
        self._generation = None
        around = await self._look_around(catalogue)
        wanted = {wheel.nuid for wheel in self._choice.wanted}
        if orders := self._orders(around, is_news):
            log.info("installing wheels", count=len(orders), wheel_name=orders[0].wheel.name.file_name)
        for ended in await self._jobs.bring(orders, around, wanted):
            self._note(ended)
        await self._show(around)
        self._generation = catalogue.generation

    async def _begin(self) -> None:
        """Read what is installed."""
        ready, refused = await asyncio.to_thread(self._load)
        self._troubles.remember(refused)
        uploads = {(name, trouble.nuid) for name, trouble in refused.items()}
        self._proven = frozenset(one.entry.nuid for name, one in ready.items() if (name, one.entry.nuid) not in uploads)
        self._ready, self._saved_refused = ready, refused

    def _load(self) -> tuple[dict[str, Ready], dict[str, WheelTrouble]]:
        found = {name: self._installer.look(entry) for name, entry in self._shelf.load().items()}
        self._installer.look_at_fetched()
        return {name: ready for name, ready in found.items() if ready is not None}, self._shelf.load_refused()

    def _as_it_was(self) -> dict[str, Shown]:
        """Return the newest wheel of each package that hosts started with, with the dependencies fetched for it."""
        assert self._ready is not None
        proven = [ready for ready in self._ready.values() if ready.entry.nuid in self._proven]
        proven.sort(key=lambda ready: ready.version)
        return {ready.entry.package_name: Shown(ready, self._installer.fetched_for(ready)) for ready in proven}

    async def _look_around(self, catalogue: Catalogue) -> Surroundings:
        assert self._ready is not None
        worker, self._choice = await asyncio.to_thread(self._choose, catalogue)
        self._infos = {info.name: info for info in catalogue.objects}
        wheels = {}
        for wheel in self._choice.wanted:
            installed = self._ready.get(wheel.name.file_name)
            is_current = installed is not None and installed.entry.nuid == wheel.nuid
            extras = installed.needs.extras if installed is not None and is_current else Extras()
            wheels[wheel.name.package] = Provided(wheel.name.version, "the registry has", extras)
        return Surroundings(worker, wheels, self._in_use())

    def _choose(self, catalogue: Catalogue) -> tuple[WorkerPackages, WheelChoice]:
        """Choose the wheels to install. O(wheels), and parses each name, so it does not run on the event loop."""
        worker = look_at_worker(self._shelf.directory)
        choice = choose(wheels_of(catalogue), self._tags, supported_tags())
        own = [wheel.name for wheel in choice.wanted if wheel.name.package in worker.own]
        skipped = [Skipped(name.file_name, "it is part of the worker itself") for name in own]
        wanted = tuple(wheel for wheel in choice.wanted if wheel.name.package not in worker.own)
        return worker, WheelChoice(wanted, (*choice.skipped, *skipped))

    def _orders(self, around: Surroundings, is_news: bool) -> list[WheelOrder]:
        """Return the installations to start: wheels that are wanted and not installed, unless it is too early to retry.
        A wheel with missing dependencies is retried on any change of the registry."""
        assert self._ready is not None
        hurdles = {Hurdle.INSTALLING} if is_news else {Hurdle.INSTALLING, Hurdle.NEEDS}
        orders = []
        for wheel in self._choice.wanted:
            name = wheel.name.file_name
            installed = self._ready.get(name)
            if installed is not None and installed.entry.nuid != wheel.nuid:  # FLOW-234
                installed = None
            if installed is not None:
                lacks = self._installer.to_be_fetched(installed, around)
                if not lacks or self._installer.has_fetched(self._installer.fetched_home(installed.home, lacks)):
                    continue
            if not self._troubles.must_wait(name, wheel.nuid, *hurdles):
                orders.append(WheelOrder(wheel, self._infos[name], installed))
        return orders

    def _note(self, ended: WheelResult) -> None:
        assert self._ready is not None
        name, nuid = ended.wheel.name.file_name, ended.wheel.nuid
        match ended.how:
            case Ready() as ready:
                self._ready[name] = ready
                self._troubles.over(name, nuid, Hurdle.INSTALLING, Hurdle.NEEDS)
            case Lacking(error):
                self._troubles.add(name, nuid, Hurdle.NEEDS, error)
            case WheelSyncFailed() as error:
                self._troubles.add(name, nuid, Hurdle.INSTALLING, str(error))

    async def _show(self, around: Surroundings) -> None:
        """Make the installed wheels visible to runs, and remove those that are no longer visible."""
        options = self._options(around)
        self._candidates = [one for some in options for one in some]
        chosen = resolve([[one.option for one in some] for some in options], around.worker.provided)
        provided = provided_by(chosen, around.worker.provided)
        for one in self._candidates:
            self._tell_needs(one.option, one.ready.entry.nuid, provided)
        by_name = {one.option.wheel_name: one for one in self._candidates}
        wanted = {package: by_name[option.wheel_name] for package, option in chosen.items()}
        if self.report is None:  # the worker is starting
            proven = [package for package, one in wanted.items() if one.ready.entry.nuid in self._proven]
            is_changed = await self._stage.change_to(wanted, proven, _START_PATIENCE)
        else:
            is_changed = await self._stage.change_to(wanted)
        for package, one in wanted.items():
            if self._stage.shown.get(package) == one:
                self._troubles.over(one.ready.entry.wheel_name, one.ready.entry.nuid, Hurdle.HOSTS)
        await self._tidy(is_changed)

    def _options(self, around: Surroundings) -> list[list[Shown]]:
        """Return the candidates of each wanted package: the wanted wheel, then older registered ones."""
        assert self._ready is not None
        by_package: dict[str, list[Ready]] = {}
        for name, ready in self._ready.items():
            if name in self._infos and not self._troubles.must_wait(name, ready.entry.nuid, Hurdle.HOSTS):
                by_package.setdefault(ready.entry.package_name, []).append(ready)
        options = []
        for wheel in self._choice.wanted:
            some = by_package.get(wheel.name.package, [])
            some.sort(key=lambda ready: (ready.entry.nuid == wheel.nuid, ready.version), reverse=True)
            options.append([self._with_fetched(ready, around) for ready in some])
        return options

    def _with_fetched(self, ready: Ready, around: Surroundings) -> Shown:
        lacks = self._installer.to_be_fetched(ready, around)
        home = self._installer.fetched_home(ready.home, lacks)
        if not lacks or not self._installer.has_fetched(home):
            return Shown(ready)
        return Shown(ready, home, frozenset(lack.package for lack in lacks))

    def _tell_needs(self, option: Option, nuid: str, provided: Mapping[str, Provided]) -> None:
        """Record missing dependencies: an installed wheel may lack a package that was removed since, or that failed."""
        if lacks := unmet(option, provided):
            if self._troubles.has_failed(option.wheel_name, nuid, Hurdle.INSTALLING):
                return  # it was to be fetched, and that failure is already reported
            self._troubles.add(option.wheel_name, nuid, Hurdle.NEEDS, tell_lacks(lacks))
        else:
            self._troubles.over(option.wheel_name, nuid, Hurdle.NEEDS)

    async def _tidy(self, is_changed: bool) -> None:
        """Forget wheels that are neither wanted nor visible, write the manifest, and remove their files (FLOW-240)."""
        assert self._ready is not None
        names = self._wanted_names | self._shown_names
        removed = sorted(self._ready.keys() - names)
        for name in removed:
            del self._ready[name]
        shown = {(one.ready.entry.wheel_name, one.ready.entry.nuid) for one in self._stage.shown.values()}
        self._troubles.keep_only({(wheel.name.file_name, wheel.nuid) for wheel in self._choice.wanted} | shown)
        if removed or is_changed:
            self._removed = tuple(removed)
            log.info("the wheels of this worker changed", installed=sorted(self._shown_names), removed=removed)
        try:
            refused = self._troubles.at(Hurdle.HOSTS)
            if refused != self._saved_refused:
                await file_work(self._shelf.save_refused, refused)
                self._saved_refused = refused
            entries = {name: ready.entry for name, ready in self._ready.items()}
            if entries != self._saved:
                await file_work(self._shelf.save, entries)
                self._saved = entries
        finally:
            await self._sweep()

    async def _sweep(self) -> None:
        assert self._ready is not None
        files = {self._shelf.file_of(name) for name in self._wanted_names | self._ready.keys()}
        homes = {ready.home for ready in self._ready.values()}
        homes |= {one.fetched for one in self._candidates if one.fetched is not None}
        under_way = {
            self._shelf.home_of(one.name.package, str(one.name.version), one.nuid) for one in self._jobs.wheels
        }
        self._is_swept = await file_work(self._shelf.sweep, files, homes, under_way, self._in_use())
        await file_work(self._installer.forget_removed)

    @property
    def _wanted_names(self) -> set[str]:
        return {wheel.name.file_name for wheel in self._choice.wanted}

    @property
    def _shown_names(self) -> set[str]:
        return {one.ready.entry.wheel_name for one in self._stage.shown.values()}

    def _describe(self, problem: WheelSyncFailed | None) -> SyncReport:
        failed = [FailedWheel(_ALL, str(problem))] if problem is not None else []
        wanted = {wheel.name.file_name: wheel.name.package for wheel in self._choice.wanted}
        for name, trouble in self._troubles.by_name():
            failed.append(FailedWheel(name, trouble.error + self._instead_of(wanted.get(name), trouble.nuid)))
        return SyncReport(
            last_sync_at=self._clock(),
            installed=tuple(sorted(self._shown_names)),
            installing=tuple(sorted(wheel.name.file_name for wheel in self._jobs.wheels)),
            skipped=self._choice.skipped,
            removed=self._removed,
            failed=tuple(failed),
        )

    def _instead_of(self, package: str | None, nuid: str) -> str:
        """Suffix for the error of a wanted wheel: the version of its package that runs see meanwhile."""
        shown = self._stage.shown.get(package) if package is not None else None
        if shown is None or shown.ready.entry.nuid == nuid:
            return ""
        return f"; {shown.package} {shown.ready.version} stays in use"
