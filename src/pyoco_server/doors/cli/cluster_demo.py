"""`pyoco-server cluster demo`: starts a cluster, prints its addresses, and keeps it running."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyoco_server.config import LogSettings, NatsBackendConfig
from pyoco_server.discovery.announcement import announced
from pyoco_server.doors.cli.claims import DataDir, claim_data_dir, open_port
from pyoco_server.doors.cli.cluster_plan import REPLICAS, ClusterPlan
from pyoco_server.doors.cli.cluster_settings import set_aside
from pyoco_server.doors.cli.cluster_story import Stage, tell_story
from pyoco_server.doors.cli.console import Console
from pyoco_server.doors.cli.own_nats import cluster_sync
from pyoco_server.doors.cli.serving import Serving
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.doors.release import RELEASE
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.embedded.cluster import cluster_of, cluster_url, nodes_found
from pyoco_server.errors import UsageError
from pyoco_server.logs import get_logger
from pyoco_server.loops.supervisor import Supervisor

__all__ = ["DemoOptions", "run_demo"]

log = get_logger(__name__)

_HOST = "127.0.0.1"
_GATEWAYS = 2
_DATA_DIR = ".pyoco-cluster"
_EXAMPLE = "example: pyoco-server cluster demo --data-dir .pyoco-cluster-2"


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command line. None: the option was not given."""

    once: bool
    port: int
    data_dir: str | None
    nodes: int
    workers: int
    flow_resolver: str | None


def run_demo(options: DemoOptions) -> int:
    """Return the exit code after everything has ended. Raises PyocoError if something could not be started.

    The user's settings may name the stores, users and keys of a real deployment; the demo uses none of them.
    """
    with set_aside() as notice:
        if notice is not None:
            click.echo(notice, err=True)
        return _run_in_its_place(options)


def _run_in_its_place(options: DemoOptions) -> int:
    if options.data_dir is not None or not options.once:
        return _run(options, Path(options.data_dir or _DATA_DIR))
    folder = Path(tempfile.mkdtemp(prefix="pyoco-cluster-"))
    code = 1
    try:
        code = _run(options, folder)
    finally:
        if code == 1 and (folder / "logs").exists():
            click.echo(f"logs and data are kept for inspection: {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(options: DemoOptions, folder: Path) -> int:
    log_settings = LogSettings.from_env()
    config = NatsBackendConfig.from_env(data_dir=str(folder), jetstream_replicas=REPLICAS, nats_sync=cluster_sync())
    plan = ClusterPlan(config, options.workers, options.flow_resolver)
    with contextlib.ExitStack() as claimed:
        data_dir = claim_data_dir(folder)
        claimed.callback(data_dir.release)
        _check_data(data_dir.path, options.nodes)
        ports = [options.port + number if options.port else 0 for number in range(_GATEWAYS)]
        https = [claimed.enter_context(open_port(_HOST, port)) for port in ports]
        nodes = cluster_of(data_dir.path, config, options.nodes)
        next(iter(nodes.values())).command()  # raises here if there is no nats-server, before anything is started
        console = Console(data_dir.path / "logs")
        return asyncio.run(_Demo(options, plan, data_dir, nodes, console).run(https, log_settings))


def _check_data(folder: Path, nodes: int) -> None:
    """Raise UsageError for data of another command, or of a cluster with another number of nodes."""
    if (folder / "nats").exists():
        raise UsageError(f"{folder} belongs to `pyoco-server up`; choose another --data-dir; {_EXAMPLE}")
    found = nodes_found(folder)
    if found not in (0, nodes):
        raise UsageError(f"{folder} belongs to a cluster of {found} nodes: use --nodes {found}, or choose another")


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        plan: ClusterPlan,
        data_dir: DataDir,
        nodes: Mapping[str, EmbeddedNats],
        console: Console,
    ) -> None:
        self._options, self._plan, self._data_dir = options, plan, data_dir
        self._nodes, self._console = nodes, console
        self._announcing = contextlib.ExitStack()

    async def run(self, https: Sequence[socket.socket], log_settings: LogSettings) -> int:
        stop = StopSignal()  # before the first child
        self._console.take_own_words("pyoco-server:cluster", log_settings)
        gateways = [(http, Serving(_HOST, http.getsockname()[1])) for http in https]
        parts = self._plan.cluster_parts(self._data_dir, self._nodes, gateways)
        supervisor = Supervisor(parts, self._console, self._print_restarted)
        servings = [serving for _, serving in gateways]
        self._console.say(f"starting {len(self._nodes)} NATS nodes, then {len(parts) - len(self._nodes)} processes …")
        supervisor.start()
        code = 0
        failing = asyncio.create_task(supervisor.failed())
        stopping = asyncio.create_task(stop.wait())
        showing = asyncio.create_task(self._show(supervisor, servings))
        tasks: list[asyncio.Task[Any]] = [failing, stopping, showing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                code = showing.result()
                if not self._options.once:
                    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
            self._console.say("stopping; running work gets a moment to finish. Press Ctrl-C again to stop immediately.")
        finally:
            stop.at_once = supervisor.kill
            self._announcing.close()
            for http in https:
                http.close()
            await supervisor.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._console.close()
        if not stop.heard:
            return code
        return stop.exit_code or (1 if self._options.once else 0)  # an interrupted demonstration proves nothing

    async def _show(self, supervisor: Supervisor, servings: Sequence[Serving]) -> int:
        await asyncio.gather(*(serving.ready.wait() for serving in servings))
        addresses = [serving.address for serving in servings]
        self._announcing.enter_context(
            announced(
                command="cluster demo",
                data_dir=self._data_dir.path,
                config=self._plan.config,
                http=addresses,
                nats=[cluster_url(self._nodes.values())],
            )
        )
        if self._options.once:
            url = cluster_url(self._nodes.values())
            return await tell_story(Stage(self._plan.config, url, addresses, supervisor, self._console.say))
        self._console.say(self._banner(addresses, supervisor.pids()))
        log.info("all processes are ready", addresses=addresses, data_dir=str(self._data_dir.path))
        return 0

    def _print_restarted(self, name: str, pid: int) -> None:
        self._console.say(f"{name} was restarted, pid {pid}")

    def _banner(self, addresses: Sequence[str], pids: Mapping[str, int]) -> str:
        """Return the lines of the banner. Its commands can be pasted unchanged."""
        first, second = addresses
        victim = next(iter(self._nodes.values()))
        where = {f"gateway-{number}": address for number, address in enumerate(addresses, 1)}
        where |= {name: f"{node.url}  {node.health_url}" for name, node in self._nodes.items()}
        body = """'{"flow_name": "hello", "params": {"name": "you", "seconds": 5}}'"""
        lines = [
            "",
            f"pyoco-server {RELEASE}: a cluster is up, {REPLICAS} copies of everything",
            "",
            f"  open           {first}/   or   {second}/",
            f"  API reference  {first}/docs",
            f"  NATS           {cluster_url(self._nodes.values())}",
            f"  data           {self._data_dir.path}",
            "",
            *(f"  {name:<10} pid {pid:<8} {where.get(name, '')}".rstrip() for name, pid in sorted(pids.items())),
            "",
            "Submit a run through one gateway, and look at it through the other:",
            f"  curl -s -X POST {first}/runs -H 'Content-Type: application/json' -d {body}",
            f"  curl -s '{second}/runs?limit=1'",
            f"  pyoco-client --server {second} program run calcA --wait -- one two",
            "",
            "Kill a node, or any other process of the list; it is restarted, and no run is lost:",
            f"  kill -9 $(cat {victim.pid_file})",
            "",
            "Show which node keeps what, or keep fewer copies:",
            f"  pyoco-server-admin --nats-url {cluster_url(self._nodes.values())} replicas {REPLICAS} --dry-run",
            "",
            "Ctrl-C stops everything.",
            "",
        ]
        return "\n".join(lines)
