"""A whole deployment in processes of its own, each of which can be killed and started again at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.answers import NOT_YET
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.wiring import backend as wiring
from support.servers import NatsServer, free_port
from support.surroundings import variables_without
from support.timers import variables_of
from support.waiting import eventually
from support.warm_processes import begun

__all__ = [
    "HEARTBEAT_SECONDS",
    "RECOVERY_SECONDS",
    "ROOT",
    "STALE_SECONDS",
    "Deployment",
    "Eyes",
    "Process",
    "deployed",
    "environment",
    "free_port",
    "gateway_alone",
    "impatient",
    "is_ready",
    "open_eyes",
]

ROOT = Path(__file__).parents[2]
#: Generous: a busy machine is slow, and a lost run stays lost for longer than this.
RECOVERY_SECONDS = 60.0
HEARTBEAT_SECONDS = 0.2
#: A run may be taken over when its heartbeat is this old: 5 s for clocks that differ, and three intervals.
STALE_SECONDS = 5.0 + 3 * HEARTBEAT_SECONDS


def impatient(config: NatsBackendConfig, **more: Any) -> NatsBackendConfig:
    """The same settings with timers so short that recovery takes seconds."""
    return replace(
        config,
        **{
            "run_heartbeat_interval_sec": HEARTBEAT_SECONDS,
            "worker_heartbeat_interval_sec": 0.5,
            "worker_disconnect_timeout_sec": 3.0,
            "consumer_ack_wait_sec": 2.5,
            "ack_progress_interval_sec": 0.5,
            "cancel_grace_period_sec": 1.0,
            "abandon_after_sec": 6.0,
            **more,
        },
    )


def environment(config: NatsBackendConfig) -> dict[str, str]:
    """The variables that make another process use these settings, and find the flows of the tests."""
    clean = variables_without("PYOCO_")
    clean["PYOCO_PRICED_ENABLED"] = "0"  # flows alone: a ledger for each process would cost more than the test
    return {
        **clean,
        "EXEC_LEASE_FRESH_SEC": "2",  # below the shortest AckWait here
        "EXEC_RUN_HEARTBEAT_SEC": "0.5",
        **variables_of(config),
        "PYOCO_LOAD_DOTENV": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])),
    }


class Process:
    """One command through all its lives. What it says goes to a file."""

    def __init__(self, name: str, command: Sequence[str | Path], settings: Mapping[str, str], folder: Path) -> None:
        self.name, self._command, self._settings = name, command, settings
        self.output = folder / f"{name}.log"
        #: Where it works.
        self.cwd = ROOT
        self._process: subprocess.Popen[bytes] | None = None
        self._life_at = 0

    def start(self) -> None:
        with self.output.open("ab") as output:
            self._life_at = output.tell()
            self._process = begun(self._command, stdout=output, stderr=output, cwd=self.cwd, env=self._settings)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)

    def exit_code(self) -> int:
        """Waits for its end."""
        assert self._process is not None
        return self._process.wait(100)

    async def restart(self) -> None:
        """Kill with SIGKILL and start again. The event loop keeps running, so requests in progress are interrupted."""
        await asyncio.to_thread(self.end)
        self.start()

    def count(self, words: str) -> int:
        """How often it has said so in its present life."""
        return self.output.read_bytes()[self._life_at :].count(words.encode())

    def has_said(self, words: str) -> bool:
        return self.count(words) > 0

    @property
    def last_words(self) -> str:
        return f"{self.name}: …{self.output.read_text(errors='replace')[-3000:]}"


class Eyes:
    """The test's own view of the store, over a connection of its own."""

    def __init__(self, backend: Backend, link: Link) -> None:
        self.backend, self.link = backend, link

    async def jobs(self) -> int:
        """How many jobs are still in the queue."""
        stream = self.backend.config.work_stream
        info = await self.link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
        return int(info["state"]["messages"])


@contextlib.asynccontextmanager
async def open_eyes(config: NatsBackendConfig, *, whole_history: bool = False) -> AsyncIterator[Eyes]:
    """With `whole_history` the bucket of runs is made to keep every revision ever written, so that nothing that
    happened can be missed. It must not exist yet; an existing bucket is left as it is by everybody (FLOW-285)."""
    patience = Patience(down_seconds=10.0)
    link = await open_link(config.nats_url, "eyes", patience)
    try:
        if whole_history:
            (runs,) = [item for item in resources_of(config) if item.name == f"KV_{config.runs_kv_bucket}"]
            await eventually(lambda: _created(link, runs.name, runs.config | {"max_msgs_per_subject": -1}))
        async with wiring.open_backend(config, "eyes", patience) as backend:
            yield Eyes(backend, link)
    finally:
        await link.close()


async def _created(link: Link, stream: str, config: Mapping[str, Any]) -> bool:
    """False: the nodes of a cluster have not found each other yet."""
    try:
        await link.api(f"STREAM.CREATE.{stream}", dict(config), dict[str, Any])
    except Rejected as error:
        if error.code not in NOT_YET:
            raise
        return False
    return True


class Deployment:
    """NATS, one gateway, two workers and a keeper, each with a clock of its own."""

    def __init__(self, nats: NatsServer, config: NatsBackendConfig, folder: Path, eyes: Eyes) -> None:
        self.nats, self.config, self.eyes, self._folder = nats, config, eyes, folder
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.gateway = self._process("gateway", "server", "gateway", "--port", str(port))
        self.workers = [self._process(name, "worker", *_WORKER, "--worker-id", name) for name in ("anna", "bert")]
        self.keeper = self._process("keeper", "keeper")

    def _process(self, name: str, module: str, *options: str) -> Process:
        clock = self._folder / f"{name}.clock"
        clock.write_text("0")
        script = [sys.executable, str(ROOT / "tests" / "support" / "chaos_process.py"), module, str(clock)]
        return Process(name, [*script, *options], environment(self.config), self._folder)

    def move_clock(self, process: Process, seconds: float) -> None:
        """From now on its time of day is so far ahead of the truth, or behind it."""
        new = self._folder / "new.clock"
        new.write_text(str(seconds))
        new.replace(self._folder / f"{process.name}.clock")

    @property
    def processes(self) -> list[Process]:
        return [self.gateway, *self.workers, self.keeper]

    async def start(self) -> None:
        for process in self.processes:
            process.start()
        await self.ready()

    async def ready(self) -> None:
        """Returns once everything that was started works."""
        await eventually(self._all_ready, RECOVERY_SECONDS)

    async def _all_ready(self) -> bool:
        for process in self.processes:
            assert process.is_alive, process.last_words
        workers = all(worker.has_said("worker started") for worker in self.workers)
        return workers and self.keeper.has_said("keeper started") and await is_ready(self.address)

    async def restart_nats(self, away_seconds: float = 0.0) -> float:
        """kill -9, a while without it, and back on the same port and store. The loop goes on meanwhile. Returns for how
        many seconds it was really away."""
        began = time.monotonic()
        self.nats.kill()
        await asyncio.sleep(away_seconds)
        await asyncio.to_thread(self.nats.start)
        return time.monotonic() - began

    async def keeper_turns(self, count: int = 4) -> None:
        """Returns once the keeper has looked around so many times more."""
        had = self.keeper.count("keeper heartbeat")
        await eventually(lambda: self.keeper.count("keeper heartbeat") >= had + count, RECOVERY_SECONDS)

    async def hold_nats(self, seconds: float = 0.05) -> None:
        """Suspend NATS for a while. When it resumes, all waiting clients continue at the same time."""
        process = self.nats._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes:
            process.end()


_WORKER = ("--flow-resolver", "support.chaos_flows:resolve", "--slots", "2")


async def is_ready(address: str) -> bool:
    async with httpx.AsyncClient(timeout=20.0) as client:
        with contextlib.suppress(httpx.HTTPError):
            return (await client.get(f"{address}/ready")).status_code == 200
    return False


@contextlib.contextmanager
def gateway_alone(config: NatsBackendConfig, folder: Path, **variables: str) -> Iterator[tuple[Process, str]]:
    """A gateway process and its address, without anybody who works."""
    port = free_port()
    command = [sys.executable, "-m", "pyoco_server.doors.cli.server", "gateway", "--port", str(port)]
    process = Process("gateway", command, {**environment(config), **variables}, folder)
    process.start()
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.end()


@contextlib.asynccontextmanager
async def deployed(nats: NatsServer, folder: Path, **settings: Any) -> AsyncIterator[Deployment]:
    """Everything started and ready; whatever still runs afterwards is killed."""
    config = impatient(NatsBackendConfig(nats_url=nats.url, data_dir=str(folder / "data")), **settings)
    async with open_eyes(config, whole_history=True) as eyes:
        deployment = Deployment(nats, config, folder, eyes)
        try:
            await deployment.start()
            yield deployment
        finally:
            deployment.end()
