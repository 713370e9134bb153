"""NATS as `nats-bootstrap` starts it, and what the guide on operating it says: each command there is run here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contracts.backups import back_up, put_back
from contracts.program_queue import taken
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.operating import open_backups
from support.backends import opened_backend, submitted
from support.chaos import free_port, impatient
from support.grid.stores import a_job, client_queue_of
from support.servers import NatsServer, config_for, unique
from support.stacks import until
from support.surroundings import variables_without
from support.waiting import eventually
from system.test_backup_restore import Work, all_runs, working
from system.test_up import Up

BIN = Path(sys.executable).parent
COMMAND = BIN / "nats-bootstrap"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "operating-nats.md"


def block(info: str) -> str:
    """What the guide shows under this name."""
    (found,) = re.findall(rf"^```{info}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def environment(**more: str) -> dict[str, str]:
    clean = variables_without("PYOCO_")
    return {**clean, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYOCO_LOAD_DOTENV": "false", **more}


def bootstrap(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def processes_below(folder: Path) -> list[psutil.Process]:
    """Whoever works in this folder or was told its name."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                str(folder) in " ".join(process.cmdline()) or process.cwd().startswith(str(folder))
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_up_with_nats_bootstrap_runs_a_flow_and_leaves_no_process(tmp_path: Path) -> None:
    """FLOW-454 to FLOW-457"""
    client, monitor = free_port(), free_port()
    ports = ("--nats-client-port", str(client), "--nats-http-port", str(monitor))
    up = Up(tmp_path, "--with-nats-bootstrap", *ports, "--with-examples", "--no-keeper", PYOCO_PRICED_ENABLED="0")
    try:
        up.until_up()
        names = {process.name() for process in processes_below(tmp_path)}
        assert {"nats-bootstrap", "nats-server"} <= names
        assert httpx.get(f"http://127.0.0.1:{monitor}/healthz", timeout=60).json() == {"status": "ok"}
        up.until_status(up.run("hello"), "COMPLETED")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(120) == 0
    finally:
        if up.process.poll() is None:
            up.process.kill()
    until(lambda: not processes_below(tmp_path), what="the end of every process")


def test_killing_up_takes_the_nats_of_nats_bootstrap_with_it(tmp_path: Path) -> None:
    """FLOW-454: kill -9, so that nobody can stop it in order."""
    up = Up(tmp_path, "--with-nats-bootstrap", "--nats-client-port", "0", "--nats-http-port", "0", "--no-worker")
    up.until_up()
    up.process.kill()
    up.process.wait(60)
    until(lambda: not processes_below(tmp_path), what="the end of every process")


class Cluster:
    """Three nodes, started by the script that the guide shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        base = _three_free_ports(3)
        self.ports = [base[0] + n for n in range(3)]
        ports = {"CLIENT_PORT": str(base[0]), "ROUTE_PORT": str(base[1]), "HTTP_PORT": str(base[2])}
        self.http = [base[2] + n for n in range(3)]
        subprocess.run(
            ["bash", "-eu", "-c", block("bash three-nodes")], cwd=folder, env=environment(**ports), check=True
        )

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def is_healthy(self) -> bool:
        """Each node is well, and whoever leads sees all of them."""
        try:
            answers = [self._told(port, "healthz") for port in self.http]
            seen = [self._told(port, "jsz").get("meta_cluster", {}) for port in self.http]
        except httpx.HTTPError:
            return False
        leaders = [each for n, each in enumerate(seen) if each.get("leader") == f"node{n}"]
        is_whole = len(leaders) == 1 and [node["current"] for node in leaders[0]["replicas"]] == [True, True]
        return is_whole and all(answer == {"status": "ok"} for answer in answers)

    @staticmethod
    def _told(port: int, page: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/{page}", timeout=30).json()
        return found

    def kill(self, node: int) -> None:
        os.kill(int((self.folder / f"node{node}" / "nats-server.pid").read_text()), signal.SIGKILL)

    def end(self) -> None:
        for process in processes_below(self.folder):
            process.kill()


def _three_free_ports(count: int) -> list[int]:
    """So many ports, each with two free ones behind it."""
    import socket

    found: list[int] = []
    while len(found) < count:
        with ExitStack() as held:
            first = free_port()
            try:
                for port in range(first, first + 3):
                    one = held.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
            except OSError:
                continue
            if all(abs(first - other) > 3 for other in found):
                found.append(first)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        until(cluster.is_healthy, 30, "a healthy cluster")
        yield cluster
    finally:
        cluster.end()


@asynccontextmanager
async def a_leader(config: NatsBackendConfig) -> AsyncIterator[int]:
    """The number of the node that leads the queue."""
    link = await open_link(config.nats_url, "tests")
    info = await link.api(f"STREAM.INFO.{config.work_stream}", {}, dict[str, Any])
    await link.close()
    yield int(info["cluster"]["leader"].removeprefix("node"))


async def test_a_clusters_backup_is_restored_there_and_on_a_single_server(
    cluster: Cluster, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    config = NatsBackendConfig(nats_url=cluster.url, jetstream_replicas=3)
    archive = FolderArchive(tmp_path / "backup")
    async with opened_backend(config) as backend:
        run_ids = {await submitted(backend, "count", n=number) for number in range(5)}
    async with open_backups(config) as streams:
        await back_up(config, streams, archive)
        await put_back(config, streams, archive, may_replace=True)
        restored = await streams.find(config.work_stream)
        assert restored is not None
        assert (restored.config["num_replicas"], restored.messages) == (3, 5)
    single = replace(config, nats_url=own_nats_server.url, jetstream_replicas=1)
    async with open_backups(single) as streams:
        await put_back(single, streams, archive, replicas=1)
    for each in (config, single):
        async with opened_backend(each) as backend, working(each, Work()):

            async def all_ended(backend: Any = backend) -> bool:
                runs = await all_runs(backend)
                return runs.keys() == run_ids and all(run.is_terminal for run in runs.values())

            await eventually(all_ended, 30)


async def test_programs_have_three_copies_of_everything(cluster: Cluster) -> None:
    """GRID-6, GRID-180, GRID-184: what was made with one copy before is given three"""
    config, grid = config_for(cluster.url), GridConfig(exec_replicas=3, exec_group=unique("g"))
    link = await open_link(cluster.url, "tests")
    await ensure(link, resources_of(config))
    async with wiring.open_door_backend(config, grid) as backend:
        assert backend.programs is not None
        queue, jobs = backend.programs.queue, [a_job(grid.exec_group) for _ in range(20)]
        await asyncio.gather(*(queue.put(job) for job in jobs for _ in range(3)))
        assert len(await taken(queue, client_queue_of(jobs[0]), 20)) == 20

        async def is_whole() -> bool:
            found = await queue.replicas()
            copies = Counter(each.stream for each in found if each.is_current)
            leaders = Counter(each.stream for each in found if each.is_leader)
            return set(copies.values()) == {3} and set(leaders.values()) == {1} and len(copies) == 4

        await eventually(is_whole, 30)
    runs = await link.api(f"STREAM.INFO.KV_{config.runs_kv_bucket}", {}, dict[str, Any])
    assert runs["config"]["num_replicas"] == 3
    await link.close()


async def test_the_loss_of_one_node_of_three_loses_no_run(cluster: Cluster) -> None:
    """FLOW-285: the cluster of the guide. kill -9 of the node that leads the queue, in the middle of everything."""
    config = impatient(NatsBackendConfig(nats_url=cluster.url, jetstream_replicas=3))
    work = Work()
    async with opened_backend(config) as backend, working(config, work):
        given = [await submitted(backend, "count", n=number) for number in range(10)]
        async with a_leader(config) as node:
            cluster.kill(node)
        given += [await accepted(backend, number) for number in range(10, 20)]

        async def all_ended() -> bool:
            runs = await all_runs(backend)
            return all(runs[run_id].is_terminal for run_id in given)

        await eventually(all_ended, 60)
        runs = await all_runs(backend)
        assert {runs[run_id].status for run_id in given} == {RunState.COMPLETED}


async def accepted(backend: Backend, number: int) -> str:
    """A run, however long the election takes. One that was refused before may be there all the same."""
    found: list[str] = []

    async def is_accepted() -> bool:
        with contextlib.suppress(Unavailable):
            found.append(await submitted(backend, "count", n=number))
        return bool(found)

    await eventually(is_accepted)
    return found[0]


class TestWhatTheGuideSaysOfNatsBootstrap:
    """When one of these fails, nats-bootstrap has become better or worse: then the guide has to say so."""

    def test_backup_and_restore_need_the_nats_command(self, tmp_path: Path) -> None:
        """FLOW-540"""
        (tmp_path / "in").mkdir()
        for arguments in (["backup", "--stream", "X", "--output", "out"], ["restore", "--input", "in", "--confirm"]):
            ended = bootstrap(tmp_path, *arguments)
            assert (ended.returncode, ended.stderr.strip()) == (2, "nats cli not found")

    def test_leave_needs_a_controller_and_a_confirmation(self, tmp_path: Path) -> None:
        """FLOW-541"""
        assert "--confirm is required" in bootstrap(tmp_path, "leave").stderr
        assert "controller endpoints are required" in bootstrap(tmp_path, "leave", "--confirm").stderr

    def test_leave_stop_anyway_reports_success_and_stops_nothing(self, tmp_path: Path, unused_port: int) -> None:
        """FLOW-542"""
        (tmp_path / "nats-server.pid").write_text(str(os.getpid()))
        nobody = f"http://127.0.0.1:{unused_port}"
        ended = bootstrap(tmp_path, "leave", "--confirm", "--controller", nobody, "--stop-anyway")
        assert ended.returncode == 0
        assert "stop skipped" in ended.stderr

    def test_controller_offers_start_alone(self, tmp_path: Path) -> None:
        """FLOW-543"""
        assert "{start}" in bootstrap(tmp_path, "controller", "--help").stdout

    def test_down_needs_a_confirmation_and_the_file_with_the_id(self, tmp_path: Path) -> None:
        """FLOW-544"""
        assert "--confirm is required" in bootstrap(tmp_path, "down").stderr
        assert "pid file not found" in bootstrap(tmp_path, "down", "--confirm").stderr

    def test_a_cluster_has_to_be_configured_by_hand(self, tmp_path: Path) -> None:
        """`up --cluster` and `join` of 0.1.0 end with a Python error before anything is started."""
        for arguments in (["up", "--cluster", "c"], ["join", "--cluster", "c", "--seed", "127.0.0.1"]):
            ended = bootstrap(tmp_path, *arguments)
            assert ended.returncode == 1
            assert "AttributeError" in ended.stderr

    def test_status_and_doctor_tell_of_the_program_not_of_the_server(self, tmp_path: Path) -> None:
        for command in ("status", "doctor"):
            ended = bootstrap(tmp_path, command)
            assert ended.returncode == 0
            assert f"{command}: ok" in ended.stdout
            assert "nats-server: " in ended.stdout

    def test_one_server_with_the_configuration_of_the_guide_starts_and_stops(self, tmp_path: Path) -> None:
        client, monitor = free_port(), free_port()
        text = block("text nats.conf").replace(":4222", f":{client}").replace(":8222", f":{monitor}")
        (tmp_path / "nats.conf").write_text(text)
        with (tmp_path / "log.txt").open("wb") as log:
            server = subprocess.Popen(
                [COMMAND, "up", "--nats-config", "nats.conf"], cwd=tmp_path, env=environment(), stdout=log, stderr=log
            )

        def is_healthy() -> bool:
            try:
                return bool(httpx.get(f"http://127.0.0.1:{monitor}/healthz", timeout=30).json() == {"status": "ok"})
            except httpx.HTTPError:
                return False

        try:
            until(is_healthy, what="NATS")
            ended = bootstrap(tmp_path, "down", "--confirm")
            assert ended.stdout == "down: ok\n"
            assert server.wait(60) is not None
        finally:
            server.kill()
        until(lambda: not processes_below(tmp_path), what="the end of every process")


async def test_the_script_for_cron_makes_checked_backups_and_keeps_some(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    config = NatsBackendConfig(nats_url=own_nats_server.url)
    await wiring.ensure_resources(config)
    script = tmp_path / "pyoco-backup"
    script.write_text(block("sh pyoco-backup"))
    script.chmod(0o700)
    backups = tmp_path / "backups"
    for day in range(1, 4):
        (backups / f"2020010{day}T000000Z").mkdir(parents=True)
        (backups / f"2020010{day}T000000Z" / "backup.json").write_text("{}")
    (backups / "20200105T000000Z").mkdir()  # of one that was killed
    given = environment(PYOCO_NATS_URL=config.nats_url, BACKUPS=str(backups), BACKUPS_KEPT="2")

    async def run(**more: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            script, env={**given, **more}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(200):
            said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    assert await run() == (0, "")
    kept = sorted(path.parent.name for path in backups.glob("*/backup.json"))
    assert len(kept) == 2
    assert kept[0] == "20200103T000000Z"
    code, said = await run(PYOCO_NATS_URL="nats://127.0.0.1:1")
    assert code == 1
    assert said.startswith("ERR-PYOCO-0003: ")
    assert sorted(path.parent.name for path in backups.glob("*/backup.json")) == kept
