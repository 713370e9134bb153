"""The NATS server that `pyoco-grid leader` starts next to a door if no NATS is configured (FIND-13)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.doors.cli.claims import DataDir, check_port, claim_data_dir
from pyoco_server.doors.cli.console import Console
from pyoco_server.doors.cli.disk_watch import DiskWatch
from pyoco_server.doors.cli.grid.members import SIZE, ClusterMembers, is_here, read_members
from pyoco_server.doors.cli.local_server import settle_nats
from pyoco_server.doors.cli.own_nats import DOOR_DRAIN_SECONDS, cluster_sync, nats_part, refuse_logins
from pyoco_server.doors.frames.settings import is_loopback
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.embedded.cluster import NodePlan, member_of, stored_nodes
from pyoco_server.errors import ExposureRefused, PyocoError, UsageError
from pyoco_server.logs import get_logger
from pyoco_server.loops.supervisor import Supervisor
from pyoco_server.ports.store_state import StoreState

__all__ = ["Beside", "NatsOptions", "RunningNats", "nats_beside", "settle"]

log = get_logger(__name__)

#: Clients connect without a password, so only this machine may reach the port.
_HOST = "127.0.0.1"
#: For route connections between machines; `_check_routes` requires a cluster secret there, unless --insecure is given.
_ANY = "0.0.0.0"  # noqa: S104
_POLL_SECONDS = 0.1
#: After this time the command prints on stderr what it is waiting for.
_REPORT_SECONDS = 1.0
#: How long a new cluster waits for its third node before it creates streams with two replicas.
_THIRD_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """The NATS options of the command line. None: the option was not given."""

    port: int
    host: str
    role: str
    peers: tuple[str, ...]
    advertise: str | None
    nats_url: str | None
    nats_port: int | None
    nats_route_port: int | None
    data_dir: str | None
    is_insecure: bool


def settle(options: NatsOptions) -> tuple[NatsBackendConfig, bool]:
    """Return the settings, and whether a running NATS is configured.

    A running NATS is found by option, environment variable, dotenv file or, unless an option configures a NATS of our
    own, from a server on this machine (FIND-4, FIND-13). Raises UsageError, SettingError, SeveralServers.
    """
    has_port = options.nats_port is not None or options.nats_route_port is not None
    if options.peers or has_port or options.data_dir is not None:
        config = NatsBackendConfig.from_env(nats_url=options.nats_url, data_dir=options.data_dir)
        has_nats = bool(options.nats_url or os.environ.get("PYOCO_NATS_URL"))
    else:
        settled = settle_nats(nats_url=options.nats_url, option="--nats")
        config, has_nats = settled.config, settled.has_nats
    if has_nats and has_port:
        raise UsageError(
            "--nats and PYOCO_NATS_URL name a server that runs already; --nats-port and --nats-route-port are for one "
            "that this command starts; example: pyoco-grid leader 5000 --nats-port 4222"
        )
    return config, has_nats


@dataclass(frozen=True)
class Beside:
    """A claimed data directory, and the nats-server to start in it."""

    data_dir: DataDir
    nats: EmbeddedNats
    #: None: a single server without a cluster.
    members: ClusterMembers | None
    #: The settings of the nats-server and the door, without the NATS URL.
    config: NatsBackendConfig

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RunningNats]:
        """Run the server for the duration of the block, and restart it whenever it exits."""
        is_member = self.members is not None
        part = nats_part(
            self.nats, self.data_dir, stops=0, until_ready=self.nats.until_listening if is_member else None
        )
        supervisor = Supervisor([part], Console(None))
        supervisor.start()
        running = RunningNats(self, supervisor, asyncio.create_task(supervisor.failed()))
        try:
            yield running
        finally:
            await supervisor.stop()
            running.failing.cancel()
            await asyncio.gather(running.failing, return_exceptions=True)


@dataclass(frozen=True)
class RunningNats:
    beside: Beside
    supervisor: Supervisor
    #: Fails with the reason if the server cannot be kept running.
    failing: asyncio.Task[None]

    async def until_usable(self) -> None:
        """Wait until JetStream responds. In a cluster this needs a second node, and there is no time limit."""
        nats, members = self.beside.nats, self.beside.members
        has_reported = False
        began = asyncio.get_running_loop().time()
        while not await nats.answers():
            if members is not None and not has_reported and asyncio.get_running_loop().time() - began > _REPORT_SECONDS:
                has_reported = True
                click.echo(f"waiting for a second node of the cluster: {' or '.join(members.others)}", err=True)
                log.info("waiting for a second node of the cluster", others=list(members.others))
            await asyncio.sleep(_POLL_SECONDS)
        log.info("NATS is up", nats_url=nats.url, data_dir=str(self.beside.data_dir.path))
        click.echo(f"NATS {nats.url}, data in {self.beside.data_dir.path}", err=True)

    async def settings(self, grid: GridConfig) -> GridConfig:
        """Return the settings of a door on this NATS, which must be usable.

        Waits up to five seconds for a missing node: two nodes can keep two replicas, and `raise_replicas` adds a third.
        """
        if self.beside.members is None:
            return grid if "EXEC_DRAIN_SEC" in os.environ else replace(grid, exec_drain_sec=DOOR_DRAIN_SECONDS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _THIRD_SECONDS
        while (up := await _nodes_up(self.beside.nats)) < SIZE and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        if up < SIZE:
            log.warning("a cluster node is missing; new streams have two replicas until it is up")
        return replace(grid, exec_replicas=min(grid.exec_replicas, max(up, 2)))

    async def raise_replicas(self, make: Callable[[], Awaitable[None]]) -> None:
        """Once all nodes are up, call `make` to raise the replica counts. Retried until it succeeds."""
        while True:
            while await _nodes_up(self.beside.nats) < SIZE:  # noqa: ASYNC110 - another process
                await asyncio.sleep(_THIRD_SECONDS)
            try:
                await make()
            except PyocoError as error:
                log.warning("could not give every stream a third replica; retrying", error=error)
                await asyncio.sleep(_THIRD_SECONDS)
            else:
                log.info("all cluster nodes are up; every stream has three replicas")
                return

    async def watch_disk(self, store_state: Callable[[], StoreState]) -> None:
        """Restart the server after its disk was full; never returns. `store_state` is the state as the door sees it."""

        async def is_stuck() -> bool:
            return store_state() is StoreState.STUCK

        folder = self.beside.data_dir.path
        await DiskWatch(folder, is_stuck, self.supervisor.restart_base, lambda text: click.echo(text, err=True)).run()


async def _nodes_up(nats: EmbeddedNats) -> int:
    """Return the number of running nodes: this one and those it has routes to."""
    host, _, port = nats.routes_url.removeprefix("http://").partition("/")[0].rpartition(":")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /routez HTTP/1.0\r\n\r\n")
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return 1 + len({each["remote_name"] for each in json.loads(body)["routes"]})
    except (OSError, ValueError, LookupError, TypeError, TimeoutError):
        return 1
    finally:
        if writer is not None:
            writer.close()


def nats_beside(options: NatsOptions, config: NatsBackendConfig, grid: GridConfig) -> Beside:
    """Claim the data directory without starting anything. Raises UsageError, ExposureRefused."""
    refuse_logins(config, "--nats")
    members = _members(options)
    if members is not None:
        _check_routes(members, grid, options)
        config = replace(config, nats_sync=cluster_sync() or config.nats_sync)
    data_dir = claim_data_dir(Path(config.data_dir))
    try:
        if members is None:
            nats = _alone(data_dir, config, options.nats_port or 0)
        else:
            nats = _member(data_dir, config, members, grid.exec_cluster_secret)
        nats.command()  # raises here if there is no nats-server, before anything is started
    except BaseException:
        data_dir.release()
        raise
    return Beside(data_dir, nats, members, config)


def _members(options: NatsOptions) -> ClusterMembers | None:
    if options.role == "auto":
        return read_members(
            options.peers,
            options.host,
            options.port,
            advertise=options.advertise,
            nats_port=options.nats_port,
            route_port=options.nats_route_port,
        )
    if options.peers:
        raise UsageError(
            f"--peers without --role auto names other doors of one NATS, and none is named: use --nats, or --role auto "
            f"with {SIZE} doors, each of which starts a NATS node; "
            "example: --role auto --peers n1:5000,n2:5000,n3:5000"
        )
    if options.nats_route_port is not None:
        raise UsageError("--nats-route-port is for a cluster; example: --role auto --peers n1:5000,n2:5000,n3:5000")
    return None


def _check_routes(members: ClusterMembers, grid: GridConfig, options: NatsOptions) -> None:
    """Raise ExposureRefused if anyone on the network could join the cluster, unless --insecure was given."""
    if members.is_local:
        return
    if not grid.exec_cluster_secret:
        if not options.is_insecure:
            raise ExposureRefused(
                f"NATS beside this door listens for other nodes on port {members.node.route_port}, and anyone who "
                "reaches that port could read and change everything; set EXEC_CLUSTER_SECRET to the same long random "
                "text on each machine, or use --insecure; example: EXEC_CLUSTER_SECRET=$(openssl rand -hex 32)"
            )
        log.warning("NATS cluster routes are not protected by a secret", port=members.node.route_port)
    log.warning("NATS cluster routes do not use TLS", port=members.node.route_port)
    if is_loopback(options.host):
        log.warning("other machines cannot reach this door; see --host", host=options.host, peers=members.own)


def _alone(data_dir: DataDir, config: NatsBackendConfig, port: int) -> EmbeddedNats:
    stored = stored_nodes(data_dir.path)
    if stored:
        raise UsageError(
            f"{data_dir.path} holds {stored[0]}, a node of a cluster; start it as before, with --role auto --peers, or "
            "choose another --data-dir"
        )
    check_port(_HOST, port, "--nats-port")
    return EmbeddedNats(data_dir.path, config, host=_HOST, port=port, http_port=0)


def _member(data_dir: DataDir, config: NatsBackendConfig, members: ClusterMembers, secret: str) -> EmbeddedNats:
    node = members.node
    if (data_dir.path / "nats" / "store").exists():
        raise UsageError(
            f"{data_dir.path} holds the data of a NATS without a cluster; choose another --data-dir; "
            "example: --data-dir .pyoco-cluster"
        )
    other_nodes = [name for name in stored_nodes(data_dir.path) if name != node.name]
    if other_nodes:
        raise UsageError(
            f"{data_dir.path} holds {other_nodes[0]}, another node than {node.name} of {members.own}: a door keeps its "
            "address in --peers and its --data-dir"
        )
    default = _HOST if members.is_local else _ANY
    # Behind address translation no interface has the address given in --peers.
    route_host = node.host if _is_literal(node.host) and is_here(node.host) else default
    client_host = route_host if members.is_local else _HOST
    check_port(client_host, node.client_port, "--nats-port")
    check_port(route_host, node.route_port, "--nats-route-port")
    plan = NodePlan(
        node,
        members.other_nodes,
        client_host=client_host,
        route_host=route_host,
        disk_sharers=SIZE if members.is_local else 1,
        secret=secret,
    )
    return member_of(data_dir.path, config, plan)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
