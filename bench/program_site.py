"""Doors and workers of programs to measure, as real processes, and jobs for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.grid import GridConfig
from pyoco_server.core.programs.job import JobAsk
from pyoco_server.core.run import Caller
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.ports.backend import Backend
from pyoco_server.wiring import backend as wiring

__all__ = ["SLOTS", "ProgramSite", "a_site", "drained", "fill", "opened", "submit"]

CLIENT = "bench"
#: Programs at once.
SLOTS = 4
_ROOT = Path(__file__).parent.parent
_MEMORY = "/dev/shm"
#: Where job directories are made.
_JOBS_IN = os.environ.get("BENCH_WORK_ROOT") or (_MEMORY if Path(_MEMORY).is_dir() else None)


@dataclass
class ProgramSite:
    nats_url: str
    home: Path
    jobs: Path
    #: Its NATS.
    server: psutil.Process
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def exec_dir(self) -> Path:
        return self.home / "exe"

    def program(self, name: str, text: str | None = None) -> None:
        """A program that exits at once, or what `text` says."""
        path = self.exec_dir / name
        if text is None:
            shutil.copy("/bin/true", path)
        else:
            path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments: object, **variables: str) -> tuple[subprocess.Popen[bytes], str]:
        """A command of `pyoco-grid`, and what stood behind its READY."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "EXEC_", "WORK"))}
        environment = {
            **kept,
            "PYOCO_NATS_URL": self.nats_url,
            "PYOCO_LOG_LEVEL": "WARNING",
            "PYOCO_LOAD_DOTENV": "0",
            "PYOCO_DISCOVERY": "0",
            "EXEC_DIR": str(self.exec_dir),
            "WORK_ROOT": str(self.jobs),
            "WORKER_MAX_PAR": str(SLOTS),
            "PYTHONPATH": str(_ROOT),
            **variables,
        }
        command = [sys.executable, "-m", "bench.quiet", *map(str, arguments)]
        told = self.home / f"{arguments[0]}-{len(self.processes)}.out"
        with told.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output)
        self.processes.append(process)
        while process.poll() is None:
            ready = [line for line in told.read_text().splitlines() if line.startswith("READY ")]
            if ready:
                return process, ready[0].split()[-1]
            time.sleep(0.02)
        raise RuntimeError(f"{arguments[0]} ended with {process.returncode}: {told.read_text()[-2000:]}")

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(60)
        self.processes.clear()


@contextlib.contextmanager
def a_site() -> Iterator[ProgramSite]:
    """With a NATS of its own, as `pyoco-server up` starts it, and nobody else: a gateway would follow every run."""
    home = Path(tempfile.mkdtemp(prefix="pyoco-bench-programs-"))
    (home / "exe").mkdir()
    # In memory, where there is such a place: what a disk takes for a directory is not ours to measure.
    jobs = Path(tempfile.mkdtemp(prefix="pyoco-bench-jobs-", dir=_JOBS_IN))
    nats = EmbeddedNats(home, NatsBackendConfig(), host="127.0.0.1", port=0, http_port=0)
    server = subprocess.Popen(nats.command())
    try:
        asyncio.run(nats.until_ready())
        site = ProgramSite(nats.url, home, jobs, psutil.Process(server.pid))
        site.program("noop")
        try:
            yield site
        finally:
            site.stop()
    finally:
        server.terminate()
        server.wait(30)
        for folder in (home, jobs):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def opened(nats_url: str) -> AsyncIterator[Backend]:
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench", grid=GridConfig()) as backend:
        yield backend


async def submit(backend: Backend, exec_name: str = "noop") -> str:
    ask = JobAsk(job_id=str(uuid.uuid4()), group="default", client_id=CLIENT, exec_name=exec_name)
    return (await submit_job(backend, Caller(), ask, Inline({}))).run.run_id


async def fill(nats_url: str, count: int, cap: int) -> None:
    """So many jobs of one client that may have `cap` of them run at once."""
    async with opened(nats_url) as backend:
        await set_cap(backend, "default", CLIENT, cap, "http")
        for start in range(0, count, 200):
            await asyncio.gather(*(submit(backend) for _ in range(min(200, count - start))))


async def drained(nats_url: str, count: int) -> float:
    """Jobs per second from the first that was finished to the last."""
    async with opened(nats_url) as backend:
        queue, first = programs_of(backend).queue, None
        while True:
            left = (await queue.totals()).messages
            now = time.perf_counter()
            if first is None and left < count:
                first = now, left
            if left == 0 and first is not None:
                return first[1] / (now - first[0])
            await asyncio.sleep(0.01)
