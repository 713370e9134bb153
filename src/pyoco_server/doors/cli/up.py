"""`pyoco-server up`: everything on this machine, kept running by one small process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

from pyoco_server.config import LogSettings, NatsBackendConfig, priced_from_env
from pyoco_server.doors.cli.banner import banner
from pyoco_server.doors.cli.claims import DataDir, claim_data_dir, open_port
from pyoco_server.doors.cli.console import Console
from pyoco_server.doors.cli.disk_watch import DiskWatch
from pyoco_server.doors.cli.plan import Plan, UpOptions
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.doors.cli.supervisor import Supervisor
from pyoco_server.embedded import EmbeddedNats, reachable_host
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.wiring_packs import check_files

__all__ = ["up"]

log = get_logger(__name__)

#: A gateway reads its index of runs first, and there may be millions.
_READY_SECONDS = 600.0


def up(options: UpOptions) -> int:
    """Returns the exit code, after everything has ended. Raises PyocoError when something could not be started.

    Whatever can be known to be wrong is found before the first process is started.
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
    plan = Plan(options, config)
    with contextlib.ExitStack() as claimed:
        data_dir = claim_data_dir(Path(config.data_dir))
        claimed.callback(data_dir.release)
        http = claimed.enter_context(open_port(options.host, options.port))
        nats = plan.nats(data_dir)
        quiet = sys.stdout.isatty() and log_settings.log_format == "json"
        console = Console(data_dir.path / "logs" if quiet else None)
        return asyncio.run(_run(plan, data_dir, http, nats, console, log_settings))


async def _run(
    plan: Plan,
    data_dir: DataDir,
    http: socket.socket,
    nats: EmbeddedNats | None,
    console: Console,
    log_settings: LogSettings,
) -> int:
    stop = StopSignal()  # before the first child
    console.take_own_words("pyoco-server:up", log_settings)
    serving = _Serving(reachable_host(plan.options.host), http.getsockname()[1])
    supervisor = Supervisor(plan.parts(data_dir, http, nats, serving.until_ready), console)
    supervisor.start()
    failing = asyncio.create_task(supervisor.failed())
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(serving.ready.wait())
    tasks: list[asyncio.Task[Any]] = [failing, stopping, ready]
    if nats is not None:
        watch = DiskWatch(data_dir.path, serving.is_stuck, supervisor.restart_base, console.say)
        tasks.append(asyncio.create_task(watch.run()))
    try:
        await asyncio.wait({failing, stopping, ready}, return_when=asyncio.FIRST_COMPLETED)
        if serving.ready.is_set() and not stop.heard:
            nats_url = nats.url if nats is not None else plan.config.nats_url
            console.say(banner(plan.facts(serving.address, data_dir.path, nats_url)))
            log.info("everything is up", url=serving.address, data_dir=str(data_dir.path), nats_url=nats_url)
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        console.say("stopping; what runs gets a moment to finish. Once more to stop at once.")
        log.info("stopping", signal=stop.name)
    finally:
        stop.at_once = supervisor.kill
        http.close()  # so that the port is free once the gateway has gone
        await supervisor.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        console.close()
    return stop.exit_code


class _Serving:
    """The gateway, from outside."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"http://{host}:{port}"
        self._host, self._port = host.strip("[]"), port
        self.ready = asyncio.Event()

    async def until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():  # noqa: ASYNC110 - another process; there is nothing to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise Unavailable(f"the gateway was not ready within {_READY_SECONDS:.0f} s") from None
        self.ready.set()

    async def is_stuck(self) -> bool:
        """Whether it says that NATS writes nothing until it is restarted. False, too, when it says nothing."""
        _, _, body = (await self._ask_ready()).partition(b"\r\n\r\n")
        try:
            return json.loads(body).get("stuck") is True
        except (ValueError, AttributeError):
            return False

    async def _is_ready(self) -> bool:
        return (await self._ask_ready()).split(maxsplit=2)[1:2] == [b"200"]

    async def _ask_ready(self) -> bytes:
        """Its whole answer; nothing when there is none."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return await reader.read()
        except (OSError, TimeoutError):
            return b""
        finally:
            if writer is not None:
                writer.close()
