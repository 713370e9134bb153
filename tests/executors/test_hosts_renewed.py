"""Another set of wheels: what runs goes on with the old one, what begins has the new one, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Died, Failed
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import pool
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Work
from support.renewed_hosts import (
    MODULE,
    Stage,
    an_environment,
    begun,
    calling,
    executor,
    for_one,
    for_two,
    outcome_of,
    output_of,
    settings,
    stage,
    told,
    using,
    wide_stage,
)
from support.waiting import eventually

__all__ = ["for_one", "for_two", "stage", "wide_stage"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("warm_hosts_of_module")]
FLOWS = """
from pyoco import Flow, task

@task
def named():
    return 7

resolve = {"named": Flow() >> named}.__getitem__
"""


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
            assert hosts._pool.has_idle(), "it would have to wait for a host"
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
        assert len(hosts._pool._processes) == 3

    async def test_dies_alone_when_its_host_does(self, wide_stage: Stage, tmp_path: Path) -> None:
        hosts, old, began = wide_stage.hosts, wide_stage.version, tmp_path / "began"
        long = await begun(hosts, calling("wait_for", path=str(tmp_path / "never"), began=str(began)))
        await eventually(began.exists)
        await hosts.renew(wide_stage.another())
        long.kill()
        assert not isinstance(await long.outcome(), Completed)
        assert old < wide_stage.version
        assert [await told(hosts) for _ in range(3)] == [wide_stage.version] * 3
        await eventually(lambda: len(hosts._pool._processes) == 3)
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


class TestAtOnce:
    async def test_of_several_renewals_the_last_counts(self, stage: Stage) -> None:
        hosts, new = stage.hosts, [stage.another() for _ in range(3)]
        await asyncio.gather(*map(hosts.renew, new))
        assert stage.environment == new[-1]
        assert await told(hosts) == stage.version
        await eventually(lambda: len(hosts._pool._processes) == 2)
        assert hosts.paths_in_use == set(new[-1].paths)

    async def test_hosts_that_die_meanwhile_are_replaced_by_new_ones(self, wide_stage: Stage) -> None:
        hosts, old = wide_stage.hosts, wide_stage.version
        renewing = asyncio.ensure_future(hosts.renew(wide_stage.another()))
        for _ in range(5):
            for host in list(hosts._pool._processes):
                if host.settings is hosts._pool._settings:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(host.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
        await renewing
        lost = list(hosts._pool._processes)
        for host in lost:
            host.kill_now()
        await eventually(lambda: not any(host.is_alive for host in lost))
        assert old < wide_stage.version
        assert [await told(hosts) for _ in range(3)] == [wide_stage.version] * 3
        await eventually(lambda: len(hosts._pool._processes) == 3)
        assert all(host.settings is hosts._pool._settings for host in hosts._pool._processes)

    async def test_a_host_that_is_ready_too_late_is_of_no_use(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was begun for the old environment, and must not serve a run of the new one."""
        hosts, old = stage.hosts, stage.environment
        ready, go, late = Host.ready, asyncio.Event(), list[Host]()

        async def hesitate(host: Host, seconds: float) -> None:
            await ready(host, seconds)
            if host.settings.paths == old.paths and host.settings is hosts._pool._settings:
                late.append(host)
                await go.wait()

        monkeypatch.setattr(Host, "ready", hesitate)
        hosts._pool._grow()
        await eventually(lambda: len(late) == 1)
        await hosts.renew(stage.another())
        go.set()
        await eventually(lambda: late[0] not in hosts._pool._processes)
        assert stage.environment != old
        assert [await told(hosts) for _ in range(3)] == [stage.version] * 3
        assert len(hosts._pool._idle) == 2

    @pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.6])
    async def test_a_stop_ends_a_renewal_and_leaves_nothing_behind(self, tmp_path: Path, seconds: float) -> None:
        hosts = HostExecutor(settings(), 1, 1000, 0.0)
        await hosts.start()
        renewing = asyncio.ensure_future(hosts.renew(an_environment(tmp_path, "2.0")))
        await asyncio.sleep(seconds)
        processes = [psutil.Process(host.pid) for host in hosts._pool._processes if psutil.pid_exists(host.pid)]
        async with asyncio.timeout(100):
            await hosts.stop()
        await asyncio.wait({renewing})
        assert renewing.exception() is None or isinstance(renewing.exception(), UsageError)
        assert not renewing.cancelled()  # whoever waits for it is not cancelled for that
        with pytest.raises(UsageError):
            await hosts.renew(an_environment(tmp_path, "3.0"))
        assert hosts._pool._processes == set()
        assert not any(process.is_running() for process in processes)

    async def test_a_renewal_that_is_given_up_leaves_all_as_it_was(self, wide_stage: Stage) -> None:
        hosts, version = wide_stage.hosts, wide_stage.version
        kept = set(hosts._pool._processes)
        for so_far in (0, 1, 2):
            renewing = asyncio.ensure_future(hosts.renew(wide_stage.another()))
            await asyncio.sleep(0)
            while len(hosts._pool._processes - kept) < so_far:
                await asyncio.sleep(0.005)
            renewing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await renewing
            assert hosts._pool._processes == kept
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
    warm_all = hosts._pool._warm_all

    async def lose_one(settings: Settings, count: int, check: Callable[[Host], None]) -> list[Host]:
        fresh = await warm_all(settings, count, check)
        os.kill(fresh[-1].pid, signal.SIGKILL)
        await eventually(lambda: not fresh[-1].is_alive)
        return fresh

    monkeypatch.setattr(hosts._pool, "_warm_all", lose_one)
    await hosts.renew(stage.another())
    assert old < stage.version
    for _ in range(3):
        outcome = await outcome_of(hosts, calling("tell"))
        assert not isinstance(outcome, Died)
        assert output_of(outcome) == stage.version
    await eventually(lambda: len(hosts._pool._processes) == 2)
