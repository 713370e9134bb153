"""Another set of wheels: what runs goes on with the old one, what begins has the new one, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Died, Failed, Outcome
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import pool
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Execution, Work
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULE = "wheel_of_tests"
TASKS = """
import os, time
from pathlib import Path

VERSION = {version!r}

def tell():
    return VERSION

def who():
    return os.getpid()

def wait_for(path, began=""):
    if began:
        Path(began).touch()
    while not Path(path).exists():
        time.sleep(0.005)
    from {module}.late import VERSION as late  # what is imported late is of the same version
    return [VERSION, late]

def register(registry):
    registry.register_callable(tell, name="demo/tell")
"""

OTHERS = "wheel_of_others"
HANGS = "import time\ndef register(registry): time.sleep(600)\n"
#: Well-behaved when it is called for the first time.
TRAP = """
import os, time
CALLS = []
def register(registry):
    CALLS.append(1)
    if len(CALLS) > 1:
        {deed}
    registry.register_callable(register, name="{name}/tell")
"""

FLOWS = """
from pyoco import Flow, task

@task
def named():
    return 7

resolve = {"named": Flow() >> named}.__getitem__
"""


def settings(resolver: str | None = None, **more: Any) -> Settings:
    values: dict[str, Any] = {"callable_allow": (), "workflow_bytes_max": 262_144, "records_bytes_max": 65_536}
    return Settings(resolver=resolver, **{**values, "memory_bytes_max": 2 << 30, **more})


def an_environment(folder: Path, version: str, module: str = MODULE, **files: str) -> Environment:
    """What is left of a wheel when it is installed in a directory of its own."""
    home = folder / f"{module}-{version}-{uuid.uuid4().hex[:6]}"
    package, info = home / module, home / f"{module}-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(TASKS.format(version=version, module=module))
    (package / "late.py").write_text(f"VERSION = {version!r}\n")
    for name, text in files.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[pyoco.tasks]\n{module} = {module}:register\n")
    return Environment((str(home),), (module,))


def both(*environments: Environment) -> Environment:
    return Environment(
        tuple(path for each in environments for path in each.paths),
        tuple(module for each in environments for module in each.modules),
    )


def calling(name: str, module: str = MODULE, **inputs: Any) -> Work:
    return _work(f"tasks: {{it: {{callable: '{module}:{name}', inputs: {json.dumps(inputs)}}}}}\nflow: {{graph: it}}")


def using(name: str) -> Work:
    return _work(f"tasks: {{it: {{use: '{name}'}}}}\nflow: {{graph: it}}")


def _work(text: str) -> Work:
    job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="default", submitted_at=1.0, workflow_yaml=text)
    return Work(job, encode_job(job))


@contextlib.asynccontextmanager
async def executor(slots: int = 1, environment: Environment = NO_WHEELS, **more: Any) -> AsyncIterator[HostExecutor]:
    hosts = HostExecutor(settings(**more), slots, 1000, 0.0)
    try:
        await hosts.renew(environment)
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()


async def begun(hosts: HostExecutor, what: Work) -> Execution:
    async with asyncio.timeout(100):
        while True:
            execution: Execution | None = await hosts.begin(what, lambda: None)
            if execution is not None:
                return execution


async def outcome_of(hosts: HostExecutor, what: Work) -> Outcome:
    async with asyncio.timeout(100):
        return await (await begun(hosts, what)).outcome()


def output_of(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.progress.task_records["it"]["output"]


async def told(hosts: HostExecutor) -> Any:
    return output_of(await outcome_of(hosts, calling("tell")))


class Stage:
    """Hosts that many tests share, one after another, and the wheel that their runs see."""

    def __init__(self, hosts: HostExecutor, folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        self._numbers, self._made = itertools.count(1001), dict[str, tuple[str, Environment]]()

    @property
    def version(self) -> str:
        return self._made[self.hosts._settings.paths[0]][0]

    @property
    def environment(self) -> Environment:
        return self._made[self.hosts._settings.paths[0]][1]

    def another(self) -> Environment:
        """A newer version, not installed yet."""
        version = f"{next(self._numbers)}.0"
        made = an_environment(self._folder, version)
        self._made[made.paths[0]] = version, made
        return made

    def is_whole(self) -> bool:
        """What died while it had nothing to do is replaced when somebody looks for a host."""
        pool, count = self.hosts, self.hosts._slots + 1
        is_ready = pool._has_live_host() and not pool._tasks and len(pool._hosts) == pool._idle.qsize() == count
        return is_ready and all(host.is_alive and host.settings is pool._settings for host in pool._hosts)

    @contextlib.asynccontextmanager
    async def scene(self) -> AsyncIterator[Stage]:
        """For one test. All hosts are there at its beginning and have nothing to do."""
        await eventually(self.is_whole)
        self.hosts.restarts = 0
        yield self
        for host in filter(is_busy, self.hosts._hosts):  # of a test that failed: the next one must not meet its run
            host.kill_now()
        await eventually(self.is_whole)


def is_busy(host: Host) -> bool:
    answer = host._work_reader._waiting
    return host.runs > 0 and answer is not None and not answer.done()


@contextlib.asynccontextmanager
async def a_stage(slots: int, folder: Path) -> AsyncIterator[Stage]:
    hosts = HostExecutor(settings(), slots, 1000, 0.0)
    stage = Stage(hosts, folder)
    try:
        await hosts.renew(stage.another())
        await hosts.start()
        yield stage
    finally:
        await hosts.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def for_one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_stage(1, tmp_path_factory.mktemp("one")) as stage:
        yield stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def for_two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_stage(2, tmp_path_factory.mktemp("two")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(for_one: Stage) -> AsyncIterator[Stage]:
    """With one slot and the spare."""
    async with for_one.scene():
        yield for_one


@pytest_asyncio.fixture(loop_scope="module")
async def wide_stage(for_two: Stage) -> AsyncIterator[Stage]:
    """With two slots and the spare."""
    async with for_two.scene():
        yield for_two


class TestTheNextRun:
    async def test_sees_the_new_wheels_and_no_longer_the_old(self, tmp_path: Path) -> None:
        """FLOW-241: by `callable` and by `use`, without a restart; what is removed is gone."""
        async with executor(environment=an_environment(tmp_path, "1.0")) as hosts:
            assert await told(hosts) == "1.0"
            await hosts.renew(an_environment(tmp_path, "2.0"))
            assert await told(hosts) == "2.0"
            assert output_of(await outcome_of(hosts, using("demo/tell"))) == "2.0"
            await hosts.renew(NO_WHEELS)
            outcome = await outcome_of(hosts, calling("tell"))
            assert isinstance(outcome, Failed)
            assert outcome.message.startswith("ERR-PYOCO-0031: ")
            outcome = await outcome_of(hosts, using("demo/tell"))
            assert isinstance(outcome, Failed)
            assert "demo/tell" in outcome.message
            assert hosts.restarts == 0

    async def test_waits_for_nobody(self, stage: Stage) -> None:
        """At no moment of a renewal is a slot without a host: whoever begins has one at once."""
        hosts, old = stage.hosts, stage.version
        assert await told(hosts) == old
        seen: list[str] = []
        renewing = asyncio.ensure_future(hosts.renew(stage.another()))
        while not renewing.done() or len(seen) < 3:
            assert hosts._has_live_host(), "it would have to wait for a host"
            execution = await hosts.begin(calling("tell"), lambda: None)
            assert execution is not None
            seen.append(output_of(await execution.outcome()))
        assert seen == sorted(seen)  # never back to the old one
        assert old < await told(hosts) == stage.version

    async def test_has_wheels_that_came_before_the_first_host(self, tmp_path: Path) -> None:
        """FLOW-229: a resolver may live in a wheel."""
        environment = an_environment(tmp_path, "1.0", flows=FLOWS)
        async with executor(resolver=f"{MODULE}.flows:resolve", environment=environment) as hosts:
            job = Job(run_id=str(uuid.uuid4()), flow_name="named", tag="t", submitted_at=1.0)
            outcome = await outcome_of(hosts, Work(job, encode_job(job)))
            assert isinstance(outcome, Completed), outcome
            assert await told(hosts) == "1.0"

    async def test_is_the_same_when_nothing_has_changed(self, stage: Stage) -> None:
        environment = stage.environment
        before = output_of(await outcome_of(stage.hosts, calling("who")))
        await stage.hosts.renew(Environment(environment.paths, environment.modules))
        assert output_of(await outcome_of(stage.hosts, calling("who"))) == before


class TestWhatRuns:
    async def test_ends_with_what_it_began_with(self, wide_stage: Stage, tmp_path: Path) -> None:
        """FLOW-230: a run is never changed under way, although the next ones see other wheels meanwhile."""
        hosts, old, version = wide_stage.hosts, wide_stage.environment, wide_stage.version
        new, go = wide_stage.another(), tmp_path / "go"
        long = await begun(hosts, calling("wait_for", path=str(go)))
        await hosts.renew(new)
        assert version < await told(hosts) == wide_stage.version
        assert hosts.paths_in_use == {*old.paths, *new.paths}
        go.touch()
        assert output_of(await long.outcome()) == [version, version]
        # Its host is gone with it, and the old wheel may be deleted.
        await eventually(lambda: hosts.paths_in_use == set(new.paths))
        assert len(hosts._hosts) == 3

    async def test_dies_alone_when_its_host_does(self, wide_stage: Stage, tmp_path: Path) -> None:
        hosts, old, began = wide_stage.hosts, wide_stage.version, tmp_path / "began"
        long = await begun(hosts, calling("wait_for", path=str(tmp_path / "never"), began=str(began)))
        await eventually(began.exists)
        await hosts.renew(wide_stage.another())
        long.kill()
        assert not isinstance(await long.outcome(), Completed)
        assert old < wide_stage.version
        assert [await told(hosts) for _ in range(3)] == [wide_stage.version] * 3
        await eventually(lambda: len(hosts._hosts) == 3)
        assert hosts.restarts == 1

    async def test_fills_every_slot_on_both_sides_of_a_renewal(
        self, wide_stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The old runs keep their slots: no more run at once than before."""
        monkeypatch.setattr(pool, "_ROOM_SECONDS", 0.2)
        hosts, version, go = wide_stage.hosts, wide_stage.version, tmp_path / "go"
        old = [await begun(hosts, calling("wait_for", path=str(go))) for _ in range(2)]
        await hosts.renew(wide_stage.another())
        assert await hosts.begin(calling("tell"), lambda: None) is None
        go.touch()
        assert [output_of(await each.outcome())[0] for each in old] == [version, version]
        assert version < await told(hosts) == wide_stage.version


class TestAnEnvironmentThatCannotWork:
    async def test_leaves_all_as_it_was(self, tmp_path: Path) -> None:
        good = "def resolve(name):\n    raise KeyError(name)\n"
        bad = {
            "fails": "import no_such_module\n",
            "ends the process": "import os\nos._exit(9)\n",
            "is no resolver": "resolve = 1\n",
        }
        old = an_environment(tmp_path, "1.0", flows=good)
        async with executor(resolver=f"{MODULE}.flows:resolve", environment=old) as hosts:
            await eventually(lambda: len(hosts._hosts) == 2)
            before = {host.pid for host in hosts._hosts}
            for case, source in bad.items():
                with pytest.raises(UsageError):
                    await hosts.renew(an_environment(tmp_path, "2.0", flows=source))
                assert await told(hosts) == "1.0", case
                assert {host.pid for host in hosts._hosts} == before, case
                assert hosts.paths_in_use == set(old.paths), case
            await hosts.renew(an_environment(tmp_path, "3.0", flows=good))
            assert await told(hosts) == "3.0"

    async def test_is_found_out_before_the_start_too(self, tmp_path: Path) -> None:
        broken = an_environment(tmp_path, "1.0")
        (Path(broken.paths[0]) / MODULE / "__init__.py").write_text("import os\nos._exit(5)\n")
        hosts = HostExecutor(settings(), 1, 1000, 0.0)
        try:
            with pytest.raises(UsageError, match="exit status 5"):
                await hosts.renew(broken)
            assert hosts._hosts == set()
            await hosts.start()
            outcome = await outcome_of(hosts, calling("tell"))
            assert isinstance(outcome, Failed)
        finally:
            await hosts.stop()

    @pytest.mark.parametrize(
        "word",
        [
            "import os\nos._exit(9)\n",
            "import ctypes\nctypes.string_at(0)\n",
            "import os\ndef register(registry): os._exit(9)\n",
        ],
        ids=["at import", "by a fault", "when it is called"],
    )
    async def test_is_one_whose_plug_in_takes_the_process_with_it(self, stage: Stage, word: str) -> None:
        """A wheel that would kill every run is found out by a host that has none."""
        version, bad = stage.version, stage.another()
        (Path(bad.paths[0]) / MODULE / "__init__.py").write_text(word)
        with pytest.raises(UsageError):
            await stage.hosts.renew(bad)
        assert await told(stage.hosts) == version

    @pytest.mark.parametrize(
        "word",
        [
            "raise RuntimeError('on purpose')",
            "def (",
            "import sys\ndef register(registry): sys.exit(3)",
            "def register(registry): raise KeyboardInterrupt",
        ],
    )
    async def test_is_one_with_a_new_plug_in_that_does_not_work(self, stage: Stage, tmp_path: Path, word: str) -> None:
        """FLOW-242: it fails by itself and is told of, before any run wants it."""
        hosts, version, good = stage.hosts, stage.version, stage.environment
        bad = an_environment(tmp_path, "1.0", OTHERS)
        (Path(bad.paths[0]) / OTHERS / "__init__.py").write_text(word)
        with pytest.raises(UsageError, match=f"Plug-in '{OTHERS}' failed to load"):
            await hosts.renew(both(good, bad))
        assert hosts.paths_in_use == set(good.paths)
        assert output_of(await outcome_of(hosts, using("demo/tell"))) == version

    @pytest.mark.parametrize("word", ["import time\ntime.sleep(600)", HANGS], ids=["at import", "when it is called"])
    async def test_is_one_whose_plug_in_hangs(
        self, stage: Stage, tmp_path: Path, word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is given up long before a worker's own imports would be."""
        hosts, version, good = stage.hosts, stage.version, stage.environment
        bad = an_environment(tmp_path, "1.0", OTHERS)
        (Path(bad.paths[0]) / OTHERS / "__init__.py").write_text(word)
        monkeypatch.setattr(pool, "_RENEWAL_SECONDS", 0.1)  # or three times what a host takes
        with pytest.raises(UsageError, match=r"did not get ready within [\d.]+ s"):
            await hosts.renew(both(good, bad))
        assert await told(hosts) == version
        assert {host.settings.paths for host in hosts._hosts} == {good.paths}

    async def test_is_not_one_whose_plug_in_lost_what_it_needs(self, tmp_path: Path) -> None:
        """A wheel can be taken away, although another one imports it without a word: runs that want that are told."""
        lost, good = an_environment(tmp_path, "1.0", "wheel_that_goes"), an_environment(tmp_path, "1.0")
        needs = an_environment(tmp_path, "1.0", OTHERS)
        source = "from wheel_that_goes import tell\ndef register(registry): registry.task(tell, name='others/tell')\n"
        (Path(needs.paths[0]) / OTHERS / "__init__.py").write_text(source)
        async with executor(environment=both(lost, good, needs)) as hosts:
            assert output_of(await outcome_of(hosts, using("others/tell"))) == "1.0"
            await hosts.renew(both(good, needs))
            assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0"
            outcome = await outcome_of(hosts, using("others/tell"))
            assert isinstance(outcome, Failed)
            assert f"Plug-in '{OTHERS}' failed to load: ModuleNotFoundError" in outcome.message

    async def test_is_not_one_whose_plug_in_goes_mad_later(self, tmp_path: Path) -> None:
        """A run calls the plug-ins it wants and no others."""
        deeds = {"exits": "os._exit(3)", "hangs": "time.sleep(600)", "interrupts": "raise KeyboardInterrupt"}
        good, bad = an_environment(tmp_path, "1.0"), [an_environment(tmp_path, "1.0", name) for name in deeds]
        for environment, (name, deed) in zip(bad, deeds.items(), strict=True):
            (Path(environment.paths[0]) / name / "__init__.py").write_text(TRAP.format(name=name, deed=deed))
        async with executor(environment=both(good, *bad)) as hosts:
            for _ in range(2):
                assert await told(hosts) == "1.0"
                assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0"
                assert not isinstance(await outcome_of(hosts, using("demo/unknown")), Died)
            assert hosts.restarts == 0
            for name in ("exits", "interrupts"):
                assert not isinstance(await outcome_of(hosts, using(f"{name}/tell")), Completed), name
                assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0", name

    async def test_is_told_when_the_machine_has_no_room_for_more_processes(
        self, wide_stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of the new hosts or none: the second one does not start."""
        hosts, version = wide_stage.hosts, wide_stage.version
        spawn, left, kept = Host.spawn, 1, set(hosts._hosts)

        async def hesitant(settings: Settings) -> Host:
            nonlocal left
            if not left:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            left -= 1
            return await spawn(settings)

        monkeypatch.setattr(Host, "spawn", hesitant)
        with pytest.raises(UsageError, match="temporarily unavailable"):
            await hosts.renew(wide_stage.another())
        assert hosts._hosts == kept
        assert await told(hosts) == version


class TestAtOnce:
    async def test_of_several_renewals_the_last_counts(self, stage: Stage) -> None:
        hosts, new = stage.hosts, [stage.another() for _ in range(3)]
        await asyncio.gather(*map(hosts.renew, new))
        assert stage.environment == new[-1]
        assert await told(hosts) == stage.version
        await eventually(lambda: len(hosts._hosts) == 2)
        assert hosts.paths_in_use == set(new[-1].paths)

    async def test_hosts_that_die_meanwhile_are_replaced_by_new_ones(self, wide_stage: Stage) -> None:
        hosts, old = wide_stage.hosts, wide_stage.version
        renewing = asyncio.ensure_future(hosts.renew(wide_stage.another()))
        for _ in range(5):
            for host in list(hosts._hosts):
                if host.settings is hosts._settings:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(host.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
        await renewing
        lost = list(hosts._hosts)
        for host in lost:
            host.kill_now()
        await eventually(lambda: not any(host.is_alive for host in lost))
        assert old < wide_stage.version
        assert [await told(hosts) for _ in range(3)] == [wide_stage.version] * 3
        await eventually(lambda: len(hosts._hosts) == 3)
        assert all(host.settings is hosts._settings for host in hosts._hosts)

    async def test_a_host_that_is_ready_too_late_is_of_no_use(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was begun for the old environment, and must not serve a run of the new one."""
        hosts, old = stage.hosts, stage.environment
        ready, go, late = Host.ready, asyncio.Event(), list[Host]()

        async def hesitate(host: Host, seconds: float) -> None:
            await ready(host, seconds)
            if host.settings.paths == old.paths and host.settings is hosts._settings:
                late.append(host)
                await go.wait()

        monkeypatch.setattr(Host, "ready", hesitate)
        hosts._spawn_in_background()
        await eventually(lambda: len(late) == 1)
        await hosts.renew(stage.another())
        go.set()
        await eventually(lambda: late[0] not in hosts._hosts)
        assert stage.environment != old
        assert [await told(hosts) for _ in range(3)] == [stage.version] * 3
        assert hosts._idle.qsize() == 2

    @pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.6])
    async def test_a_stop_ends_a_renewal_and_leaves_nothing_behind(self, tmp_path: Path, seconds: float) -> None:
        hosts = HostExecutor(settings(), 1, 1000, 0.0)
        await hosts.start()
        renewing = asyncio.ensure_future(hosts.renew(an_environment(tmp_path, "2.0")))
        await asyncio.sleep(seconds)
        processes = [psutil.Process(host.pid) for host in hosts._hosts if psutil.pid_exists(host.pid)]
        async with asyncio.timeout(100):
            await hosts.stop()
        await asyncio.wait({renewing})
        assert renewing.exception() is None or isinstance(renewing.exception(), UsageError)
        assert not renewing.cancelled()  # whoever waits for it is not cancelled for that
        with pytest.raises(UsageError):
            await hosts.renew(an_environment(tmp_path, "3.0"))
        assert hosts._hosts == set()
        assert not any(process.is_running() for process in processes)

    async def test_a_renewal_that_is_given_up_leaves_all_as_it_was(self, wide_stage: Stage) -> None:
        hosts, version = wide_stage.hosts, wide_stage.version
        kept = set(hosts._hosts)
        for so_far in (0, 1, 2):
            renewing = asyncio.ensure_future(hosts.renew(wide_stage.another()))
            await asyncio.sleep(0)
            while len(hosts._hosts - kept) < so_far:
                await asyncio.sleep(0.005)
            renewing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await renewing
            assert hosts._hosts == kept
        assert await told(hosts) == version


PROBE = """
import sys
from pyoco_server.executors.flow.paths import place_wheels
place_wheels(sys.argv[1:])
import random, yaml, json
print(json.dumps([random.__file__, yaml.__file__, sys.path.index(sys.argv[1])]))
"""


class TestWhereWheelsAreLookedFor:
    async def test_is_behind_the_standard_library_and_before_installed_packages(self, tmp_path: Path) -> None:
        """A wheel never stands in for a part of the library."""
        for name in ("random", "yaml", "sys", "collections"):
            (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n" if name != "yaml" else "mine = 1\n")
        command = [sys.executable, "-c", PROBE, str(tmp_path)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        library, package, at = json.loads(done.stdout)
        assert not library.startswith(str(tmp_path))
        assert package == str(tmp_path / "yaml.py")
        assert at > 0

    async def test_is_not_where_the_engine_and_the_worker_are(self, stage: Stage) -> None:
        """A wheel with modules of these names changes nothing."""
        old, environment = stage.version, stage.another()
        for name in ("pyoco", "yaml", "pyoco_server", "msgspec", "json"):
            (Path(environment.paths[0]) / f"{name}.py").write_text("raise RuntimeError('not me')\n")
        await stage.hosts.renew(environment)
        assert old < await told(stage.hosts) == stage.version


async def test_a_host_killed_before_the_switch_does_not_fail_a_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run that begins after a renewal ends well, although one of the new hosts was lost on the way."""
    hosts, old = stage.hosts, stage.version
    warm_all = hosts._warm_all

    async def lose_one(settings: Settings, count: int) -> list[Host]:
        fresh = await warm_all(settings, count)
        os.kill(fresh[-1].pid, signal.SIGKILL)
        await eventually(lambda: not fresh[-1].is_alive)
        return fresh

    monkeypatch.setattr(hosts, "_warm_all", lose_one)
    await hosts.renew(stage.another())
    assert old < stage.version
    for _ in range(3):
        outcome = await outcome_of(hosts, calling("tell"))
        assert not isinstance(outcome, Died)
        assert output_of(outcome) == stage.version
    await eventually(lambda: len(hosts._hosts) == 2)
