"""`pyoco-grid demo3`: runs a cluster, three doors, a worker and a client, and kills the NATS leader (GRID-191)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pyoco_server.doors.cli.grid.stage import ClusterStage, DemoProcesses
    from pyoco_server.ports.program_queue.port import ProgramQueue

__all__ = ["demo3"]

_GROUP = "g1"
_JOBS = 3
_QUEUE = "PYOCO_EXEC"
_ELECTION_SECONDS = 60.0
_NOT_COMPLETED = 2


@click.command(cls=Command, example="pyoco-grid demo3 --once\npyoco-grid demo3 --base-port 6000")
@click.option("--once", is_flag=True, help="Stop everything when the jobs are done; exits with 0 if all completed.")
@click.option("--dir", "folder", metavar="D", help="Work below this directory. [default: a temporary one]")
@click.option(
    "--base-port",
    metavar="N",
    type=click.IntRange(0, 65_533),
    default=5000,
    show_default=True,
    help="Port of the first door; the others follow. 0 finds free ones.",
)
def demo3(*, once: bool, folder: str | None, base_port: int) -> int:
    """Show three NATS nodes, three doors, a worker and a client.

    Runs three jobs, kills the NATS node that leads the queue, and runs three more. Removes everything when it ends.
    """
    import logging
    import tempfile

    import uvloop

    # Killing a node is part of the demonstration: its errors are expected, and each process has its own log file.
    logging.getLogger("pyoco_server").setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="pyoco-demo3-", dir=folder) as below:
            return uvloop.run(_show(Path(below), base_port, once=once))
    except OSError as error:
        if folder is None or error.filename is None:
            raise
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}; choose another --dir") from error


async def _show(folder: Path, base_port: int, *, once: bool) -> int:
    import asyncio

    from pyoco_server.doors.cli.grid.stage import ClusterStage, DemoProcesses, free_ports
    from pyoco_server.doors.cli.signals import StopSignal

    processes = DemoProcesses(folder)
    stop = StopSignal(at_once=processes.kill_all)
    ports = list(range(base_port, base_port + 3)) if base_port else free_ports(3)
    try:
        stopping = asyncio.ensure_future(stop.wait())
        showing = asyncio.ensure_future(_play(processes, ClusterStage(processes, folder), folder, ports))
        await asyncio.wait({stopping, showing}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not showing.done():
            showing.cancel()
            await asyncio.wait({showing})
            return stop.exit_code
        code = showing.result()
        if not once:
            _say("everything keeps running; Ctrl-C stops it")
            await stop.wait()
            code = stop.exit_code or code
    finally:
        # NATS last: workers and doors deregister in it when they stop, and would otherwise wait for it.
        await processes.stop(["worker"])
        await processes.stop([f"door-{number}" for number, _ in enumerate(ports, 1)])
        await processes.stop()
    _say("stopped; nothing is left behind")
    return code


async def _play(processes: DemoProcesses, cluster: ClusterStage, folder: Path, ports: list[int]) -> int:
    """Run the demonstration and return the exit code. Raises Unavailable if a process does not start."""
    from pyoco_server.config import NatsBackendConfig, grid_from_env
    from pyoco_server.wiring import backend as wiring

    _say("three NATS nodes, each write synced to disk")
    await cluster.start()
    _say(f"  {cluster.url}")
    await _open_doors(processes, cluster, ports)
    await _start_worker(processes, folder, ports)
    config = NatsBackendConfig.from_env(nats_url=cluster.url, jetstream_replicas=3)
    grid = grid_from_env(exec_group=_GROUP, exec_replicas=3)
    async with wiring.open_backend(config, "pyoco-demo3", grid=grid) as backend:
        assert backend.programs is not None
        done = await _run_and_kill(processes, cluster, ports, backend.programs.queue)
    _say("all jobs have completed" if done else "not all jobs have completed")
    return 0 if done else _NOT_COMPLETED


async def _run_and_kill(processes: DemoProcesses, cluster: ClusterStage, ports: list[int], queue: ProgramQueue) -> bool:
    leader = await _leader(queue)
    _say(f"{leader} leads the queue")
    codes = [await _run_jobs(processes, ports, "first")]
    _say(f"kill -9 {leader}")
    await processes.kill(leader)
    _say(f"{await _leader(queue, other_than=leader)} leads the queue now")
    codes.append(await _run_jobs(processes, ports, "second"))
    await cluster.start_node(leader)
    await cluster.until_up(leader)
    _say(f"{leader} is up again")
    return not any(codes)


async def _open_doors(processes: DemoProcesses, cluster: ClusterStage, ports: list[int]) -> None:
    import asyncio

    from pyoco_server.doors.cli.grid.stage import HOST, own_command

    async def open_door(number: int, port: int) -> None:
        name = f"door-{number}"
        peers = ",".join(f"{HOST}:{other}" for other in ports if other != port)
        arguments = ["leader", str(port), "--role", "auto", "--group", _GROUP, "--peers", peers, "--nats", cluster.url]
        # Its clients and its worker have no keys, whatever the environment says of HTTP.
        without_keys = {"EXEC_AUTH": "none", "PYOCO_HTTP_AUTH_MODE": "none"}
        await processes.start(name, own_command(*arguments), without_keys)
        _say(f"  {await processes.until_ready(name)}")

    _say(f"three doors of group {_GROUP}")
    await open_door(1, ports[0])  # it creates the streams and buckets; the others find them
    await asyncio.gather(*(open_door(number, port) for number, port in enumerate(ports[1:], 2)))


async def _start_worker(processes: DemoProcesses, folder: Path, ports: list[int]) -> None:
    from pyoco_server.doors.cli.grid.stage import HOST, own_command
    from pyoco_server.executors.program import SAMPLES

    _say("a worker with the sample programs")
    others = [part for port in ports[1:] for part in ("--door", f"{HOST}:{port}")]
    environment = {"EXEC_DIR": str(SAMPLES), "WORK_ROOT": str(folder / "jobs")}
    await processes.start("worker", own_command("worker", HOST, str(ports[0]), *others), environment)
    _say(f"  {await processes.until_ready('worker')}")


async def _leader(queue: ProgramQueue, other_than: str = "") -> str:
    """Return the node that leads the queue. Raises Unavailable if there is no leader for a minute."""
    import asyncio

    deadline = time.monotonic() + _ELECTION_SECONDS
    while time.monotonic() < deadline:
        found = [each.name for each in await queue.replicas() if each.is_leader and each.stream == _QUEUE]
        if found and found[0] != other_than:
            return found[0]
        await asyncio.sleep(0.2)
    raise Unavailable("no node leads the queue")


async def _run_jobs(processes: DemoProcesses, ports: list[int], name: str) -> int:
    from pyoco_server.doors.cli.grid.stage import HOST, own_command

    _say(f"a client submits {_JOBS} jobs")
    others = [part for port in ports[1:] for part in ("--door", f"{HOST}:{port}")]
    await processes.start(f"client-{name}", own_command("client", HOST, str(ports[0]), "clientA", "8", *others))
    code = await processes.until_done(f"client-{name}")
    for line in processes.output(f"client-{name}").read_text(encoding="utf-8", errors="replace").splitlines():
        _say(f"  {_short(line)}")
    if code:
        _say(f"  the client ended with {code}: {processes.tail(f'client-{name}')}")
    return code


def _short(line: str) -> str:
    """Shorten one result for display."""

    try:
        result = json.loads(line)
        return f"{result['JobId']}  {result['Status']}  {str(result['Stdout']).strip()[:60]!r}  by {result['WorkerId']}"
    except (ValueError, LookupError, TypeError):
        return line[:200]


def _say(line: str) -> None:
    click.echo(line)
