"""`pyoco-grid nworker`: runs programs straight from the queue (sections 16 and 25.1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.loops.programs.lane import ProgramLane

__all__ = ["nworker"]


@click.command(
    cls=Command,
    example="pyoco-grid nworker\n"
    "pyoco-grid nworker job.assign.calcA job.assign.render --group g1\n"
    "EXEC_DIR=/opt/grid/exe WORKER_MAX_PAR=8 pyoco-grid nworker --nats nats://10.0.0.5:4222",
)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--group", metavar="G", help="Group of queues that it serves. [env: EXEC_GROUP; default: default]")
@click.option("--nats", "nats_url", metavar="URL[,URL]", help="Use this NATS server. [env: PYOCO_NATS_URL]")
@click.option("--id", "worker_id", metavar="W", help="Name in the registry. [default: the machine's name and a number]")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve `/metrics` on this port; 0: a free one.")
def nworker(
    *,
    patterns: tuple[str, ...],
    group: str | None,
    nats_url: str | None,
    worker_id: str | None,
    metrics_port: int | None,
) -> int:
    """Run programs straight from the queue, without a door.

    PATTERN selects the programs in NATS syntax: job.assign.calcA, job.assign.*. Programs are looked up in EXEC_DIR.
    SIGTERM and the first Ctrl-C let running programs finish; a second Ctrl-C stops immediately, and the jobs are run on
    other workers.
    """
    import socket  # noqa: PLC0415 - not for --help

    import uvloop  # noqa: PLC0415

    from pyoco_server.config import grid_from_env  # noqa: PLC0415
    from pyoco_server.core.programs.names import is_client_id  # noqa: PLC0415
    from pyoco_server.doors.cli.grid.effective import log_settings  # noqa: PLC0415
    from pyoco_server.doors.cli.local_server import settle_nats  # noqa: PLC0415
    from pyoco_server.doors.cli.typos import warn_of_typos  # noqa: PLC0415
    from pyoco_server.logs import configure_logging  # noqa: PLC0415
    from pyoco_server.loops.tcp_worker.identity import take_identity  # noqa: PLC0415
    from pyoco_server.wiring.lane import checked_patterns  # noqa: PLC0415

    configure_logging("pyoco-grid:nworker")
    config = settle_nats(nats_url=nats_url, option="--nats").config
    grid = grid_from_env(exec_group=group)
    if worker_id is not None and not is_client_id(worker_id):
        raise UsageError("--id may hold letters, digits, '_' and '-', 64 at most; example: --id render-1")
    patterns = checked_patterns(patterns)
    warn_of_typos()
    log_settings(config, grid)
    me = take_identity(Path(grid.work_root), worker_id, socket.gethostname())
    try:
        return uvloop.run(_work(config, grid, me.worker_id, patterns, metrics_port))
    finally:
        me.release()


async def _work(
    config: NatsBackendConfig,
    grid: GridConfig,
    worker_id: str,
    patterns: tuple[str, ...],
    metrics_port: int | None,
) -> int:
    from pyoco_server.core.run import Owner  # noqa: PLC0415 - not for --help
    from pyoco_server.core.worker_description import WorkerDescription  # noqa: PLC0415
    from pyoco_server.core.worker_record import EXEC_NATIVE  # noqa: PLC0415
    from pyoco_server.doors.cli.signals import StopSignal  # noqa: PLC0415
    from pyoco_server.doors.http.probe_server import metrics_server, probe_server  # noqa: PLC0415
    from pyoco_server.doors.http.program_exposition import render_figures  # noqa: PLC0415
    from pyoco_server.logs import get_logger  # noqa: PLC0415
    from pyoco_server.loops.worker import Worker  # noqa: PLC0415
    from pyoco_server.wiring import backend as wiring  # noqa: PLC0415
    from pyoco_server.wiring.lane import program_lane  # noqa: PLC0415
    from pyoco_server.wiring.logs import open_log_sender  # noqa: PLC0415

    log = get_logger(__name__)
    # On a second signal: the process that runs the programs detects our exit and kills them with all their children.
    stop = StopSignal(at_once=lambda: os._exit(130 if stop.name == "SIGINT" else 1))
    async with (
        wiring.open_backend(config, f"pyoco-nworker {worker_id}", grid=grid) as backend,
        open_log_sender(backend) as lines,
    ):
        lane = program_lane(backend, worker_id, patterns, lines)
        totals = None if lines is None else lines.totals
        me = Owner(worker_id, backend.new_id())
        description = WorkerDescription(me=me, versions=wiring.versions(), kind=EXEC_NATIVE, logs=totals)
        worker = Worker(backend, description, [lane])
        try:
            await worker.start()
            async with (
                probe_server(config.health_host, config.health_port, lambda: _ready(lane)),
                metrics_server("127.0.0.1", metrics_port, lambda: render_figures(lane.figures(), totals)),
            ):
                click.echo(f"READY nworker {worker_id}")
                await stop.wait()
            log.info("worker stopping", worker_id=worker_id, signal=stop.name)
        finally:
            await worker.stop(stop.name.lower() or "failed", None)  # within WORKER_DRAIN_SEC
    return stop.exit_code


async def _ready(lane: ProgramLane) -> tuple[bool, dict[str, object]]:
    return lane.in_flight.is_quorate, {"status": "ok" if lane.in_flight.is_quorate else "no_quorum"}
