"""Disks, processes, clocks and copies: each fault does what it says, spares what it must, and heals."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.ports.nats.link import Link, Missing, open_link
from storm.faults.all import all_faults
from storm.faults.clocks import MovedClock
from storm.faults.disks import FullDisk, SlowDisk, SmallDisk, make_disk
from storm.faults.duplicates import QUEUES, Duplicates
from storm.faults.processes import (
    KillNode,
    KillPair,
    KillProcess,
    RestartNode,
    RestartProcess,
    StopNode,
    StopProcess,
    is_stopped,
)
from storm.port import Fault, Role, Site, Struck
from support.chaos import Process
from support.servers import NatsServer
from support.waiting import eventually

_IDLE = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit()); print('up', flush=True); time.sleep(600)"


class Idler(Process):
    """A process that does nothing, in the role of one of a site's."""

    def __init__(self, name: str, role: Role, folder: Path) -> None:
        super().__init__(name, [sys.executable, "-I", "-c", _IDLE], {}, folder)
        self.role = role
        self.clock: Path | None = folder / f"{name}.clock"
        self.clock.write_text("0")

    async def kill(self) -> None:
        await asyncio.to_thread(self.end)

    async def terminate(self) -> None:
        await eventually(lambda: self.has_said("up"))
        assert self._process is not None
        self._process.terminate()
        await eventually(lambda: not self.is_alive)


_ROLES = {
    "gateway": Role.GATEWAY,
    "anna": Role.WORKER,
    "bert": Role.WORKER,
    "keeper": Role.KEEPER,
    "n1": Role.NATS,
    "n2": Role.NATS,
    "n3": Role.NATS,
}


@pytest.fixture(scope="module")
def idlers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Idler]]:
    folder = tmp_path_factory.mktemp("idlers")
    found = [Idler(name, role, folder) for name, role in _ROLES.items()]
    for idler in found:
        idler.start()
    yield found
    for idler in found:
        idler.end()


@pytest.fixture
def site(idlers: list[Idler]) -> Site:
    """Three nodes, and all well."""
    site = Site(nodes=3, processes=idlers)
    assert struck_processes(site) == set()
    return site


def struck_processes(site: Site) -> set[str]:
    return {
        each.name
        for each in site.processes
        if not each.is_alive or is_stopped(each) or (each.clock and float(each.clock.read_text()) != 0.0)
    }


OF_NODES = [KillNode, StopNode, RestartNode]
OF_OURS = [KillProcess, StopProcess, RestartProcess, MovedClock]


@pytest.mark.parametrize("kind", [*OF_NODES, *OF_OURS, KillPair], ids=lambda kind: kind.__name__)
async def test_a_fault_of_processes_strikes_what_it_names_and_heals_it(kind: type[Fault], site: Site) -> None:
    fault = kind()
    assert fault.can_strike(site)
    struck = await fault.strike(site, random.Random(3))
    names = set(struck.target.split(","))
    try:
        await eventually(lambda: struck_processes(site) == names)
        roles = {each.role for each in site.processes if each.name in names}
        assert len(names) == len(roles) == (2 if kind is KillPair else 1)
        assert (Role.NATS in roles) == (kind in OF_NODES) or kind is KillPair
        assert site.hurt == {name for name in names if _ROLES[name] is Role.NATS}
    finally:
        await fault.heal(site, struck)
        await fault.heal(site, struck)
    await eventually(lambda: not struck_processes(site))
    assert site.hurt == set()


async def test_the_same_seed_strikes_the_same(site: Site) -> None:
    for fault in (StopProcess(), MovedClock(), StopNode()):
        struck = []
        for _ in range(2):
            struck.append(await fault.strike(site, random.Random(17)))
            await fault.heal(site, struck[-1])
        assert struck[0] == struck[1]
        await eventually(lambda: not struck_processes(site))


async def test_never_more_than_one_node_of_three_is_struck(site: Site, tmp_path: Path) -> None:
    site.disks = {name: SmallDisk(name, tmp_path, "ext4", None) for name in ("n1", "n2", "n3")}
    others = [fault for fault in all_faults() if "node" in fault.name or "disk" in fault.name]
    stop = StopNode()
    struck = await stop.strike(site, random.Random(1))
    try:
        assert len(others) >= 5
        assert not any(fault.can_strike(site) for fault in others)
        pair = KillPair()
        assert Role.NATS not in pair._roles(site)
    finally:
        await stop.heal(site, struck)
    assert stop.can_strike(site)


async def test_what_stands_still_or_is_dead_is_not_struck_again(site: Site) -> None:
    stop = StopProcess()
    struck = [await stop.strike(site, random.Random(n)) for n in range(4)]
    try:
        assert {each.target for each in struck} == {"gateway", "anna", "bert", "keeper"}
        assert not stop.can_strike(site)
        assert not KillProcess().can_strike(site)
    finally:
        for each in struck:
            await stop.heal(site, each)


async def test_clocks_of_workers_and_keepers_go_wrong_by_minutes_either_way(site: Site) -> None:
    fault, moved = MovedClock(), []
    for seed in range(40):
        struck = await fault.strike(site, random.Random(seed))
        assert _ROLES[struck.target] in {Role.WORKER, Role.KEEPER}
        (wrong,) = [each.clock for each in site.processes if each.name == struck.target]
        assert wrong is not None
        moved.append(float(wrong.read_text()))
        await fault.heal(site, struck)
    assert min(moved) < -60
    assert max(moved) > 60
    assert max(map(abs, moved)) <= 300


def test_all_faults_have_names_of_their_own_and_end() -> None:
    faults = all_faults()
    assert len({fault.name for fault in faults}) == len(faults)
    assert all(0.0 <= fault.lasts[0] <= fault.lasts[1] <= 30.0 for fault in faults)


def test_a_site_that_has_nothing_is_spared() -> None:
    assert [fault.name for fault in all_faults() if fault.can_strike(Site(nodes=1, processes=[]))] == []


# Disks.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = make_disk("n1", tmp_path, 16)
    yield disk
    disk.remove()
    assert str(disk.path) not in Path("/proc/mounts").read_text()
    assert not disk.path.exists()


def test_a_disk_that_is_full_refuses_and_takes_again_once_healed(disk: SmallDisk) -> None:
    if not disk.can_fill:
        pytest.skip("this machine lets nobody mount")
    (disk.path / "before").write_bytes(b"before")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.path / "more").write_bytes(b"more")
    assert (disk.path / "before").read_bytes() == b"before"
    disk.heal()
    disk.heal()
    (disk.path / "more").write_bytes(bytes(1_000_000))


def test_a_slow_disk_makes_writers_wait_and_readers_not(disk: SmallDisk) -> None:
    if not disk.can_slow:
        pytest.skip("this machine lets nobody mount a file")
    file = disk.path / "file"
    file.write_bytes(b"x")
    disk.slow(0.3)
    waits: list[float] = []
    deadline = time.monotonic() + 100.0
    while len(waits) < 2 and time.monotonic() < deadline:
        began = time.monotonic()
        file.write_bytes(b"y")
        if time.monotonic() - began > 0.1:
            waits.append(time.monotonic() - began)
    assert len(waits) == 2
    assert file.read_bytes() == b"y"
    disk.heal()
    took = []
    for _ in range(5):  # a busy machine may be slow, but not each time
        began = time.monotonic()
        for _ in range(50):
            file.write_bytes(b"z")
        took.append(time.monotonic() - began)
        if took[-1] < 10.0:
            break
    assert min(took) < 10.0, "50 waits of 0.3 s"


def test_a_disk_goes_with_whoever_made_it(tmp_path: Path) -> None:
    """Also when it is killed while the disk is frozen: nobody may wait for that one for ever."""
    script = (
        "import sys, time; from pathlib import Path; from storm.faults.disks import make_disk\n"
        "disk = make_disk('n1', Path(sys.argv[1]), 16); can = disk.can_slow; can and disk.slow(0.5)\n"
        "print(can, flush=True); time.sleep(600)"
    )
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={"PYTHONPATH": tests, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    ) as maker:
        assert maker.stdout is not None
        can_slow = maker.stdout.readline() == b"True\n"
        maker.kill()
    if not can_slow:
        pytest.skip("this machine lets nobody mount a file")
    deadline = time.monotonic() + 100.0
    while str(tmp_path) in Path("/proc/mounts").read_text() or (tmp_path / "n1.img").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _PretendedDisk:
    can_fill = can_slow = True

    def __init__(self, path: Path) -> None:
        self.name, self.path, self.told = "n1", path, [""]

    def fill(self) -> None:
        self.told.append("fill")

    def slow(self, seconds: float) -> None:
        self.told.append("slow")

    def heal(self) -> None:
        self.told.append("heal")


@pytest.mark.parametrize(("kind", "word", "restarts"), [(FullDisk, "fill", True), (SlowDisk, "slow", False)])
async def test_a_fault_of_disks_strikes_one_node_and_a_full_one_is_restarted(
    kind: type[Fault], word: str, restarts: bool, site: Site, tmp_path: Path
) -> None:
    """A stream that met a full disk writes nothing until NATS is restarted."""
    site.disks = disks = {name: _PretendedDisk(tmp_path) for name in ("n1", "n2", "n3")}
    lives = {each.name: each.pid for each in site.processes}
    fault = kind()
    struck = await fault.strike(site, random.Random(5))
    assert site.hurt == {struck.target}
    assert {name for name, disk in disks.items() if disk.told[-1] == word} == {struck.target}
    await fault.heal(site, struck)
    assert disks[struck.target].told[-1] == "heal"
    again = {each.name for each in site.processes if each.pid != lives[each.name]}
    assert again == ({struck.target} if restarts else set())
    assert site.hurt == set()


# Copies.


@pytest.fixture
async def own_link(own_nats_server: NatsServer) -> AsyncIterator[Link]:
    """The queues have the names that every deployment has: a shared server may have them, too."""
    link = await open_link(own_nats_server.url, "tests")
    yield link
    await link.close()


@pytest.fixture
async def queues(own_link: Link) -> Link:
    for stream, subject in QUEUES.items():
        config: dict[str, Any] = {"name": stream, "subjects": [subject], "retention": "workqueue"}
        if stream == "PYOCO_EXEC":
            config |= {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
        await own_link.api(f"STREAM.CREATE.{stream}", config, dict[str, Any])
    return own_link


async def count(link: Link, stream: str) -> int:
    return int((await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any]))["state"]["messages"])


async def take_all(link: Link, stream: str) -> None:
    await link.api(f"STREAM.PURGE.{stream}", {}, dict[str, Any])


async def test_what_waits_is_copied_and_what_was_done_comes_again(queues: Link, own_nats_server: NatsServer) -> None:
    """GRID-8: while a program's message is there, a second one is refused."""
    site = Site(nodes=1, processes=[], nats_url=own_nats_server.url)
    fault = Duplicates()
    await queues.store("pyoco.work.default", b"flow", {"Nats-Msg-Id": "1", "Trace": "kept"})
    await queues.store("pyoco.exec.g.e.c.r", b"program")
    struck: Struck = await fault.strike(site, random.Random(1))
    assert await count(queues, "PYOCO_WORK") == 2
    assert await count(queues, "PYOCO_EXEC") == 1
    await queues.store("dpp.runs", b"pack", {"Nats-Msg-Id": "2"})
    await eventually(lambda: any(copy.body == b"pack" for copy in fault.kept))
    for stream in QUEUES:
        await take_all(queues, stream)
    await fault.heal(site, struck)
    await fault.heal(site, struck)
    assert await count(queues, "DPP_RUNS") >= 1, "one that was done long ago"
    assert all("Nats-Msg-Id" not in copy.headers for copy in fault.kept)
    assert any(copy.headers == {"Trace": "kept"} for copy in fault.kept)
    await take_all(queues, "PYOCO_WORK")
    again = await fault.strike(site, random.Random(2))
    await fault.heal(site, again)
    assert await count(queues, "PYOCO_WORK") >= 1


async def test_a_site_without_queues_has_nothing_to_copy(own_link: Link, own_nats_server: NatsServer) -> None:
    fault = Duplicates()
    site = Site(nodes=1, processes=[], nats_url=own_nats_server.url)
    struck = await fault.strike(site, random.Random(1))
    await fault.heal(site, struck)
    with pytest.raises(Missing):
        await count(own_link, "PYOCO_WORK")
