"""`pyoco-server up`: everything on this machine, kept running by one small process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyoco_server.config import LogSettings, NatsBackendConfig, priced_from_env
from pyoco_server.discovery.announcement import announced
from pyoco_server.doors.cli.banner import banner
from pyoco_server.doors.cli.claims import DataDir, claim_data_dir, open_port
from pyoco_server.doors.cli.console import Console
from pyoco_server.doors.cli.disk_watch import DiskWatch
from pyoco_server.doors.cli.plan import ProcessPlan, UpOptions
from pyoco_server.doors.cli.serving import Serving
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.embedded import EmbeddedNats, reachable_host
from pyoco_server.logs import get_logger, redact_url
from pyoco_server.loops.supervisor import Supervisor
from pyoco_server.wiring.packs import check_files

__all__ = ["up"]

log = get_logger(__name__)


def up(options: UpOptions) -> int:
    """Return the exit code after everything has ended. Raises PyocoError if something could not be started.

    All checks that are possible in advance are done before the first process is started.
    """
    log_settings = LogSettings.from_env()
    config = NatsBackendConfig.from_env(
        nats_url=options.nats_url,
        data_dir=options.data_dir,
        dashboard_lang=options.dashboard_lang,
        wheel_sync_enabled=options.wheel_sync or None,
    )
    priced, _ = priced_from_env()
    if options.workers:
        check_files(priced)
    plan = ProcessPlan(options, config)
    with contextlib.ExitStack() as claimed:
        data_dir = claim_data_dir(Path(config.data_dir))
        claimed.callback(data_dir.release)
        http = claimed.enter_context(open_port(options.host, options.port))
        frames = None
        if options.frames_port is not None:
            frames = claimed.enter_context(open_port(options.host, options.frames_port, "--frames-port"))
        nats = plan.nats(data_dir)
        quiet = sys.stdout.isatty() and log_settings.log_format == "auto"
        console = Console(data_dir.path / "logs" if quiet else None)
        return asyncio.run(_run(plan, data_dir, _Ports(http, frames), nats, console, log_settings))


@dataclass(frozen=True)
class _Ports:
    """The listening sockets; the children inherit them, so a restarted child keeps its port."""

    http: socket.socket
    frames: socket.socket | None

    def close(self) -> None:
        """Close our copies, so that the ports are free once the children have exited."""
        self.http.close()
        if self.frames is not None:
            self.frames.close()


async def _run(
    plan: ProcessPlan,
    data_dir: DataDir,
    ports: _Ports,
    nats: EmbeddedNats | None,
    console: Console,
    log_settings: LogSettings,
) -> int:
    stop = StopSignal()  # before the first child
    console.take_own_words("pyoco-server:up", log_settings)
    host = reachable_host(plan.options.host)
    serving = Serving(host, ports.http.getsockname()[1])
    frames = f"{host}:{ports.frames.getsockname()[1]}" if ports.frames is not None else None
    supervisor = Supervisor(plan.parts(data_dir, ports.http, nats, serving.until_ready, ports.frames), console)
    supervisor.start()
    failing = asyncio.create_task(supervisor.failed())
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(serving.ready.wait())
    tasks: list[asyncio.Task[Any]] = [failing, stopping, ready]
    if nats is not None:
        watch = DiskWatch(data_dir.path, serving.is_stuck, supervisor.restart_base, console.say)
        tasks.append(asyncio.create_task(watch.run()))
    announcing = contextlib.ExitStack()
    try:
        await asyncio.wait({failing, stopping, ready}, return_when=asyncio.FIRST_COMPLETED)
        if serving.ready.is_set() and not stop.heard:
            nats_url = nats.url if nats is not None else plan.config.nats_url
            announcing.enter_context(
                announced(
                    command="up",
                    data_dir=data_dir.path,
                    config=plan.config,
                    http=[serving.address],
                    nats=[nats_url],
                    frames=frames,
                )
            )
            console.say(banner(plan.facts(serving.address, data_dir.path, nats_url, frames)))
            log.info(
                "all processes are ready",
                url=serving.address,
                data_dir=str(data_dir.path),
                nats_url=redact_url(nats_url),
            )
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        console.say("stopping; running work gets a moment to finish. Press Ctrl-C again to stop immediately.")
        log.info("stopping", signal=stop.name)
    finally:
        stop.at_once = supervisor.kill
        announcing.close()
        ports.close()
        await supervisor.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        console.close()
    return stop.exit_code
