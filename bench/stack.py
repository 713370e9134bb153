"""Real processes to measure: what `pyoco-server up` starts, and workers beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

__all__ = ["Stack", "free_port", "serve", "stack"]

_ROOT = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


#: Neither settings nor servers of the person who measures.
_ALONE = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_DISCOVERY": "0"}


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
    return {**kept, "PYOCO_LOG_LEVEL": "WARNING", **_ALONE, "PYTHONPATH": str(_ROOT), **more}


@dataclass
class Stack:
    """An embedded NATS and a gateway, as a user starts them; workers on demand."""

    port: int
    nats_url: str
    process: subprocess.Popen[bytes]
    ready_seconds: float
    home: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    worker_command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "pyoco_server.doors.cli.worker"])
    resolver: str = "examples.flows:resolve"
    #: Served instead of the resolver.
    app: str | None = None

    def start_worker(self, slots: int | None = None, **environment: str) -> subprocess.Popen[bytes]:
        command = [*self.worker_command, *([self.app] if self.app else ["--flow-resolver", self.resolver])]
        command += ["--worker-id", f"bench-{len(self.workers)}"] + (["--slots", str(slots)] if slots else [])
        variables = _environment(PYOCO_NATS_URL=self.nats_url, **environment)
        worker = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
        self.workers.append(worker)
        return worker

    @contextlib.contextmanager
    def keeping(self) -> Iterator[psutil.Process]:
        """With a keeper."""
        variables = _environment(PYOCO_NATS_URL=self.nats_url, PYOCO_DATA_DIR=str(self.home / "keeper"))
        command = [sys.executable, "-m", "pyoco_server.doors.cli.keeper"]
        keeper = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(5)
            yield psutil.Process(keeper.pid)
        finally:
            keeper.terminate()
            keeper.wait(30)

    def freeze_workers(self) -> None:
        """They take nothing until `thaw_workers`, and are as warm as they were."""
        for worker in self.workers:
            worker.send_signal(signal.SIGSTOP)

    def thaw_workers(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(20)
        self.workers.clear()

    def cpu_seconds(self) -> float:
        """Processor time that all processes have used so far. Those that have ended are missing."""
        used = 0.0
        for process in (self.process, *self.workers):
            root = psutil.Process(process.pid)
            for each in (root, *root.children(recursive=True)):
                times = each.cpu_times()
                used += times.user + times.system
        return used

    def gateway(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "gateway" in child.cmdline())

    def nats(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "nats-server" in child.name())


def _until(check: str, seconds: float) -> float:
    """Seconds until this address answers 200."""
    began = time.perf_counter()
    with httpx.Client() as client:
        while time.perf_counter() - began < seconds:
            with contextlib.suppress(httpx.TransportError):
                if client.get(check).status_code == 200:
                    return time.perf_counter() - began
            time.sleep(0.005)
    raise TimeoutError(f"{check} did not answer in {seconds:g} s")


@contextlib.contextmanager
def stack(**environment: str) -> Iterator[Stack]:
    home = Path(tempfile.mkdtemp(prefix="pyoco-bench-"))
    port, nats_port = free_port(), free_port()
    command = [sys.executable, "-m", "pyoco_server.doors.cli.server", "up", "--no-worker", "--no-keeper"]
    command += ["--port", str(port), "--nats-client-port", str(nats_port), "--data-dir", str(home / "data")]
    process = subprocess.Popen(
        command, env=_environment(**environment), cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        ready = _until(f"http://127.0.0.1:{port}/ready", 30)
        made = Stack(port, f"nats://127.0.0.1:{nats_port}", process, ready, home)
        try:
            yield made
        finally:
            made.stop_workers()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def serve(app: str, **environment: str) -> Iterator[int]:
    """Any ASGI application on the same server software as ours: the limit to compare with."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--no-access-log", "--no-proxy-headers"]
    process = subprocess.Popen([*command, "--log-level", "warning"], env=_environment(**environment), cwd=_ROOT)
    try:
        _until(f"http://127.0.0.1:{port}/openapi.json", 30)
        yield port
    finally:
        process.terminate()
        process.wait(10)
