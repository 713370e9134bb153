"""A new set of wheels that hosts cannot start with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server.core.outcome import Completed, Died, Failed
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import warm_pool
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from support.renewed_hosts import (
    MODULE,
    Stage,
    an_environment,
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


def both(*environments: Environment) -> Environment:
    return Environment(
        tuple(path for each in environments for path in each.paths),
        tuple(module for each in environments for module in each.modules),
    )


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
            await eventually(lambda: len(hosts._pool._processes) == 2)
            before = {host.pid for host in hosts._pool._processes}
            for case, source in bad.items():
                with pytest.raises(UsageError):
                    await hosts.renew(an_environment(tmp_path, "2.0", flows=source))
                assert await told(hosts) == "1.0", case
                assert {host.pid for host in hosts._pool._processes} == before, case
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
            assert hosts._pool._processes == set()
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
        monkeypatch.setattr(warm_pool, "_RENEWAL_SECONDS", 0.1)  # or three times what a host takes
        with pytest.raises(UsageError, match=r"did not get ready within [\d.]+ s"):
            await hosts.renew(both(good, bad))
        assert await told(hosts) == version
        assert {host.settings.paths for host in hosts._pool._processes} == {good.paths}

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
        spawn, left, kept = Host.spawn, 1, set(hosts._pool._processes)

        async def hesitant(settings: Settings, _: object) -> Host:
            nonlocal left
            if not left:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            left -= 1
            return await spawn(settings)

        monkeypatch.setattr(Host, "spawn", hesitant)
        with pytest.raises(UsageError, match="temporarily unavailable"):
            await hosts.renew(wide_stage.another())
        assert hosts._pool._processes == kept
        assert await told(hosts) == version
