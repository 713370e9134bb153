"""Another set of wheels: what runs goes on with the old one, what begins has the new one, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
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

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Died, Failed, Outcome
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import pool
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Execution, Work
from waiting import eventually

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
    registry.register_callable(register, name="others/tell")
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


class TestTheNextRun:
    async def test_sees_the_new_wheels_and_no_longer_the_old(self, tmp_path: Path) -> None:
        """FLOW-241, issue item 3: by `callable` and by `use`, without a restart; what is removed is gone."""
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

    async def test_waits_for_nobody(self, tmp_path: Path) -> None:
        """At no moment of a renewal is a slot without a host: whoever begins has one at once."""
        async with executor(slots=1, environment=an_environment(tmp_path, "1.0")) as hosts:
            await told(hosts)
            seen: list[str] = []
            renewing = asyncio.ensure_future(hosts.renew(an_environment(tmp_path, "2.0")))
            while not renewing.done() or len(seen) < 3:
                assert hosts._has_live_host(), "it would have to wait for a host"
                execution = await hosts.begin(calling("tell"), lambda: None)
                assert execution is not None
                seen.append(output_of(await execution.outcome()))
            assert seen == sorted(seen)  # never back to the old one
            assert await told(hosts) == "2.0"

    async def test_has_wheels_that_came_before_the_first_host(self, tmp_path: Path) -> None:
        """FLOW-229: a resolver may live in a wheel."""
        environment = an_environment(tmp_path, "1.0", flows=FLOWS)
        async with executor(resolver=f"{MODULE}.flows:resolve", environment=environment) as hosts:
            job = Job(run_id=str(uuid.uuid4()), flow_name="named", tag="t", submitted_at=1.0)
            outcome = await outcome_of(hosts, Work(job, encode_job(job)))
            assert isinstance(outcome, Completed), outcome
            assert await told(hosts) == "1.0"

    async def test_is_the_same_when_nothing_has_changed(self, tmp_path: Path) -> None:
        environment = an_environment(tmp_path, "1.0")
        async with executor(environment=environment) as hosts:
            await eventually(lambda: hosts._idle.qsize() == 2)  # a spare that comes later would be the next to be taken
            before = output_of(await outcome_of(hosts, calling("who")))
            await hosts.renew(Environment(environment.paths, environment.modules))
            assert output_of(await outcome_of(hosts, calling("who"))) == before


class TestWhatRuns:
    async def test_ends_with_what_it_began_with(self, tmp_path: Path) -> None:
        """FLOW-230: a run is never changed under way, although the next ones see other wheels meanwhile."""
        old, new = an_environment(tmp_path, "1.0"), an_environment(tmp_path, "2.0")
        go = tmp_path / "go"
        async with executor(slots=2, environment=old) as hosts:
            long = await begun(hosts, calling("wait_for", path=str(go)))
            await hosts.renew(new)
            assert await told(hosts) == "2.0"
            assert hosts.paths_in_use == {*old.paths, *new.paths}
            go.touch()
            assert output_of(await long.outcome()) == ["1.0", "1.0"]
            # Its host is gone with it, and the old wheel may be deleted.
            await eventually(lambda: hosts.paths_in_use == set(new.paths))
            assert len(hosts._hosts) == 3

    async def test_dies_alone_when_its_host_does(self, tmp_path: Path) -> None:
        async with executor(slots=2, environment=an_environment(tmp_path, "1.0")) as hosts:
            began = tmp_path / "began"
            long = await begun(hosts, calling("wait_for", path=str(tmp_path / "never"), began=str(began)))
            await eventually(began.exists)
            await hosts.renew(an_environment(tmp_path, "2.0"))
            long.kill()
            assert not isinstance(await long.outcome(), Completed)
            assert [await told(hosts) for _ in range(3)] == ["2.0"] * 3
            await eventually(lambda: len(hosts._hosts) == 3)
            assert hosts.restarts == 1

    async def test_fills_every_slot_on_both_sides_of_a_renewal(self, tmp_path: Path) -> None:
        """The old runs keep their slots: no more run at once than before."""
        go = tmp_path / "go"
        async with executor(slots=2, environment=an_environment(tmp_path, "1.0")) as hosts:
            old = [await begun(hosts, calling("wait_for", path=str(go))) for _ in range(2)]
            await hosts.renew(an_environment(tmp_path, "2.0"))
            assert await hosts.begin(calling("tell"), lambda: None) is None
            go.touch()
            assert [output_of(await each.outcome())[0] for each in old] == ["1.0", "1.0"]
            assert await told(hosts) == "2.0"


class TestAnEnvironmentThatCannotWork:
    @pytest.mark.parametrize(
        "source",
        ["import no_such_module\n", "import os\nos._exit(9)\n", "resolve = 1\n"],
        ids=["fails", "ends the process", "is no resolver"],
    )
    async def test_leaves_all_as_it_was(self, tmp_path: Path, source: str) -> None:
        good = "def resolve(name):\n    raise KeyError(name)\n"
        old = an_environment(tmp_path, "1.0", flows=good)
        async with executor(resolver=f"{MODULE}.flows:resolve", environment=old) as hosts:
            await eventually(lambda: len(hosts._hosts) == 2)
            before = {host.pid for host in hosts._hosts}
            with pytest.raises(UsageError):
                await hosts.renew(an_environment(tmp_path, "2.0", flows=source))
            assert await told(hosts) == "1.0"
            assert {host.pid for host in hosts._hosts} == before
            assert hosts.paths_in_use == set(old.paths)
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
    async def test_is_one_whose_plug_in_takes_the_process_with_it(self, tmp_path: Path, word: str) -> None:
        """A wheel that would kill every run is found out by a host that has none."""
        async with executor(environment=an_environment(tmp_path, "1.0")) as hosts:
            bad = an_environment(tmp_path, "2.0")
            (Path(bad.paths[0]) / MODULE / "__init__.py").write_text(word)
            with pytest.raises(UsageError):
                await hosts.renew(bad)
            assert await told(hosts) == "1.0"

    @pytest.mark.parametrize(
        "word",
        [
            "raise RuntimeError('on purpose')",
            "def (",
            "import sys\ndef register(registry): sys.exit(3)",
            "def register(registry): raise KeyboardInterrupt",
        ],
    )
    async def test_is_one_with_a_new_plug_in_that_does_not_work(self, tmp_path: Path, word: str) -> None:
        """FLOW-242: it fails by itself and is told of, before any run wants it."""
        good, bad = an_environment(tmp_path, "1.0"), an_environment(tmp_path, "1.0", OTHERS)
        (Path(bad.paths[0]) / OTHERS / "__init__.py").write_text(word)
        async with executor(environment=good) as hosts:
            with pytest.raises(UsageError, match=f"Plug-in '{OTHERS}' failed to load"):
                await hosts.renew(both(good, bad))
            assert hosts.paths_in_use == set(good.paths)
            assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0"

    @pytest.mark.parametrize("word", ["import time\ntime.sleep(600)", HANGS], ids=["at import", "when it is called"])
    async def test_is_one_whose_plug_in_hangs(self, tmp_path: Path, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is given up long before a worker's own imports would be."""
        good, bad = an_environment(tmp_path, "1.0"), an_environment(tmp_path, "1.0", OTHERS)
        (Path(bad.paths[0]) / OTHERS / "__init__.py").write_text(word)
        async with executor(environment=good) as hosts:
            monkeypatch.setattr(pool, "_RENEWAL_SECONDS", 0.1)  # or three times what a host takes
            with pytest.raises(UsageError, match=r"did not get ready within [\d.]+ s"):
                await hosts.renew(both(good, bad))
            assert await told(hosts) == "1.0"
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

    @pytest.mark.parametrize(
        "deed", ["os._exit(3)", "time.sleep(600)", "raise KeyboardInterrupt"], ids=["exits", "hangs", "interrupts"]
    )
    async def test_is_not_one_whose_plug_in_goes_mad_later(self, tmp_path: Path, deed: str) -> None:
        """A run calls the plug-ins it wants and no others."""
        good, bad = an_environment(tmp_path, "1.0"), an_environment(tmp_path, "1.0", OTHERS)
        (Path(bad.paths[0]) / OTHERS / "__init__.py").write_text(TRAP.format(deed=deed))
        async with executor(environment=both(good, bad)) as hosts:
            for _ in range(2):
                assert await told(hosts) == "1.0"
                assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0"
                assert not isinstance(await outcome_of(hosts, using("demo/unknown")), Died)
            assert hosts.restarts == 0
            if "sleep" not in deed:
                assert not isinstance(await outcome_of(hosts, using("others/tell")), Completed)
                assert output_of(await outcome_of(hosts, using("demo/tell"))) == "1.0"

    async def test_is_told_when_the_machine_has_no_room_for_more_processes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of the new hosts or none: the second one does not start."""
        async with executor(slots=3, environment=an_environment(tmp_path, "1.0")) as hosts:
            await eventually(lambda: hosts._idle.qsize() == 4)
            spawn, left, kept = Host.spawn, 1, set(hosts._hosts)

            async def hesitant(settings: Settings) -> Host:
                nonlocal left
                if not left:
                    raise BlockingIOError(11, "Resource temporarily unavailable")
                left -= 1
                return await spawn(settings)

            monkeypatch.setattr(Host, "spawn", hesitant)
            with pytest.raises(UsageError, match="temporarily unavailable"):
                await hosts.renew(an_environment(tmp_path, "2.0"))
            assert hosts._hosts == kept
            assert await told(hosts) == "1.0"


class TestAtOnce:
    async def test_of_several_renewals_the_last_counts(self, tmp_path: Path) -> None:
        async with executor(environment=an_environment(tmp_path, "1.0")) as hosts:
            new = [an_environment(tmp_path, f"{n}.0") for n in (2, 3, 4)]
            await asyncio.gather(*map(hosts.renew, new))
            assert await told(hosts) == "4.0"
            await eventually(lambda: len(hosts._hosts) == 2)
            assert hosts.paths_in_use == set(new[-1].paths)

    async def test_hosts_that_die_meanwhile_are_replaced_by_new_ones(self, tmp_path: Path) -> None:
        async with executor(slots=2, environment=an_environment(tmp_path, "1.0")) as hosts:
            renewing = asyncio.ensure_future(hosts.renew(an_environment(tmp_path, "2.0")))
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
            assert [await told(hosts) for _ in range(3)] == ["2.0"] * 3
            await eventually(lambda: len(hosts._hosts) == 3)
            assert all(host.settings is hosts._settings for host in hosts._hosts)

    async def test_a_host_that_is_ready_too_late_is_of_no_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was begun for the old environment, and must not serve a run of the new one."""
        ready, go, late = Host.ready, asyncio.Event(), list[Host]()
        old = an_environment(tmp_path, "1.0")

        async def hesitate(host: Host, seconds: float) -> None:
            await ready(host, seconds)
            if host.settings.paths == old.paths and host.settings is hosts._settings:
                late.append(host)
                await go.wait()

        async with executor(environment=old) as hosts:
            await eventually(lambda: len(hosts._hosts) == 2)
            await eventually(lambda: hosts._idle.qsize() == 2)
            monkeypatch.setattr(Host, "ready", hesitate)
            hosts._spawn_in_background()
            await eventually(lambda: len(late) == 1)
            await hosts.renew(an_environment(tmp_path, "2.0"))
            go.set()
            await eventually(lambda: late[0] not in hosts._hosts)
            assert [await told(hosts) for _ in range(3)] == ["2.0"] * 3
            assert hosts._idle.qsize() == 2

    @pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.6])
    async def test_a_stop_ends_a_renewal_and_leaves_nothing_behind(self, tmp_path: Path, seconds: float) -> None:
        hosts = HostExecutor(settings(), 2, 1000, 0.0)
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

    async def test_a_renewal_that_is_given_up_leaves_all_as_it_was(self, tmp_path: Path) -> None:
        async with executor(slots=2, environment=an_environment(tmp_path, "1.0")) as hosts:
            await eventually(lambda: hosts._idle.qsize() == 3)
            kept = set(hosts._hosts)
            for so_far in (0, 1, 2):
                renewing = asyncio.ensure_future(hosts.renew(an_environment(tmp_path, "2.0")))
                await asyncio.sleep(0)
                while len(hosts._hosts - kept) < so_far:
                    await asyncio.sleep(0.005)
                renewing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await renewing
                assert hosts._hosts == kept
            assert await told(hosts) == "1.0"


PROBE = """
import sys
from pyoco_server.executors.flow.paths import place_wheels
place_wheels(sys.argv[1:])
import random, yaml, json
print(json.dumps([random.__file__, yaml.__file__, sys.path.index(sys.argv[1])]))
"""


class TestWhereWheelsAreLookedFor:
    def test_is_behind_the_standard_library_and_before_installed_packages(self, tmp_path: Path) -> None:
        """A wheel never stands in for a part of the library."""
        for name in ("random", "yaml", "sys", "collections"):
            (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n" if name != "yaml" else "mine = 1\n")
        done = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=True)
        library, package, at = json.loads(done.stdout)
        assert not library.startswith(str(tmp_path))
        assert package == str(tmp_path / "yaml.py")
        assert at > 0

    async def test_is_not_where_the_engine_and_the_worker_are(self, tmp_path: Path) -> None:
        """A wheel with modules of these names changes nothing."""
        environment = an_environment(tmp_path, "1.0")
        for name in ("pyoco", "yaml", "pyoco_server", "msgspec", "json"):
            (Path(environment.paths[0]) / f"{name}.py").write_text("raise RuntimeError('not me')\n")
        async with executor(environment=environment) as hosts:
            assert await told(hosts) == "1.0"


async def test_a_host_killed_before_the_switch_does_not_fail_a_run(tmp_path: Path) -> None:
    """Every run that begins after a renewal ends well, although one of the new hosts was lost on the way."""
    async with executor(slots=1, environment=an_environment(tmp_path, "1.0")) as hosts:
        warm_all = hosts._warm_all

        async def lose_one(settings: Settings, count: int) -> list[Host]:
            fresh = await warm_all(settings, count)
            os.kill(fresh[-1].pid, signal.SIGKILL)
            await eventually(lambda: not fresh[-1].is_alive)
            return fresh

        hosts._warm_all = lose_one  # type: ignore[method-assign]
        await hosts.renew(an_environment(tmp_path, "2.0"))
        for _ in range(3):
            outcome = await outcome_of(hosts, calling("tell"))
            assert not isinstance(outcome, Died)
            assert output_of(outcome) == "2.0"
        await eventually(lambda: len(hosts._hosts) == 2)
