"""Processes of the grid as users start them: `pyoco-grid leader`, `worker`, `nworker`, `client`, `clientx`, `router`.

    with grid(nats_url, tmp_path) as processes:
        door = processes.leader()
        worker = processes.worker(door)
        done = processes.client(door, "clientA")
        assert done.code == 0
        door.kill()

All of them are killed with the test process, and at the end of the block. When the block fails, the ends of their logs
are printed. Their streams and buckets have the names that users' have, so all tests on one server share them; their
group is nobody else's.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyoco_server.config import NatsBackendConfig
from support.gateways import environment
from support.servers import unique
from support.warm_processes import begun

__all__ = ["SAMPLES", "Finished", "Grid", "GridProcess", "grid"]

#: The programs that are shipped: calcA, sleepn, failn, bigout, forker, echoenv.
SAMPLES = Path(__file__).parents[3] / "src" / "pyoco_server" / "executors" / "program" / "samples"
#: Generous: a busy machine starts a process in ten seconds.
_READY_SECONDS = 120.0
_END_SECONDS = 120.0
_TAIL_LINES = 40


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines on its stdout: results of a client, one for each job."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


class GridProcess:
    """One process. `start` may be called again after `kill` or `stop`: a door then gets its port back."""

    #: `pyoco-grid` by default.
    module = "pyoco_server.doors.cli.grid"

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        *,
        says_ready: bool = True,
    ) -> None:
        self.name, self._arguments, self._variables, self._says_ready = name, list(arguments), variables, says_ready
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        #: What stood behind READY: the address of a door or a router.
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def work_root(self) -> str:
        """Where a worker has its job directories."""
        return self._variables["WORK_ROOT"]

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, waits: bool = True) -> GridProcess:
        """Returns once it has printed READY, unless it never does or the caller does not wait."""
        assert not self.is_alive
        self._lives += 1
        command = [sys.executable, "-m", self.module, *self._arguments]
        with self._out.open("wb") as out, self._err.open("ab") as err:
            variables = dict(self._variables)
            self._process = begun(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables)
        if waits and self._says_ready:
            self.until_ready()
        return self

    def until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not (ready := self._ready_line()):
            assert self.is_alive, f"{self.name} ended with {self._code()}: {self.stderr[-2000:]}"
            assert time.monotonic() < deadline, f"{self.name} was not ready within {_READY_SECONDS} s"
            time.sleep(0.02)
        self.address = ready.split()[-1]
        if self._arguments[0] in ("leader", "router"):
            self._arguments[1] = self.address.rpartition(":")[2]  # the same port when it is started again

    def _ready_line(self) -> str | None:
        return next((line for line in self.stdout.splitlines() if line.startswith("READY ")), None)

    def _code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def stdout(self) -> str:
        """Of its present life."""
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """Of all its lives."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines that it has logged in its present life, but for one that it has only begun."""
        whole = self.stdout.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{") and '"ts"' in line]

    def tail(self) -> str:
        lines = [*self.stdout.splitlines()[-_TAIL_LINES:], *self.stderr.splitlines()[-_TAIL_LINES:]]
        return "\n".join(f"{self.name}: {line[:1000]}" for line in lines)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and gone."""
        if self.is_alive:
            self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, seconds: float = _END_SECONDS) -> int:
        """SIGTERM, and its exit code."""
        if self.is_alive:
            self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = _END_SECONDS) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def finished(self, seconds: float = _END_SECONDS) -> Finished:
        return Finished(self.wait(seconds), self.stdout, self.stderr)


@dataclass
class Grid:
    """The processes of one group. Options are added to the command line, `env` to the environment."""

    folder: Path
    config: NatsBackendConfig
    group: str
    variables: dict[str, str]
    exec_dir: Path = SAMPLES
    processes: list[GridProcess] = field(default_factory=list)

    def start(
        self, role: str, *arguments: object, env: Mapping[str, str] | None = None, name: str = "", waits: bool = True
    ) -> GridProcess:
        """Any command. `client` and `clientx` say no READY."""
        own = name or f"{role}-{1 + sum(each.name.startswith(role) for each in self.processes)}"
        variables = {**self.variables, **(env or {})}
        says_ready = role not in ("client", "clientx")
        process = GridProcess(own, [role, *map(str, arguments)], variables, self.folder, says_ready=says_ready)
        self.processes.append(process)
        return process.start(waits=waits)

    def leader(self, *options: object, port: int = 0, **more: Any) -> GridProcess:
        return self.start("leader", port, *options, **more)

    def worker(
        self, door: GridProcess, *options: object, env: Mapping[str, str] | None = None, **more: Any
    ) -> GridProcess:
        """Over TCP, with job directories and a name of its own: two of one name would push each other out."""
        own = self._named(options)
        return self.start("worker", door.host, door.port, *own, env={**self._own_root(), **(env or {})}, **more)

    def nworker(self, *options: object, env: Mapping[str, str] | None = None, **more: Any) -> GridProcess:
        return self.start("nworker", *self._named(options), env={**self._own_root(), **(env or {})}, **more)

    def _named(self, options: Sequence[object]) -> list[object]:
        return list(options) if "--id" in options else [*options, "--id", f"w{len(self.processes)}"]

    def _own_root(self) -> dict[str, str]:
        root = self.folder / f"jobs-{len(self.processes)}"
        root.mkdir(mode=0o700, exist_ok=True)
        return {"WORK_ROOT": str(root)}

    def start_client(self, door: GridProcess, client_id: str, *options: object, **more: Any) -> GridProcess:
        """Under way."""
        return self.start("client", door.host, door.port, client_id, *options, **more)

    def client(self, door: GridProcess, client_id: str, *options: object, **more: Any) -> Finished:
        """Waited for."""
        return self.start_client(door, client_id, *options, **more).finished()


@contextlib.contextmanager
def grid(
    nats_url: str, folder: Path, config: NatsBackendConfig | None = None, group: str = "", **variables: str
) -> Iterator[Grid]:
    """`variables` are set for every process, as EXEC_DRAIN_SEC="1". A busy machine is no reason for a worker
    to wait for half a minute: its cap is the highest there is, and it waits for half a second."""
    assert not nats_url.startswith("memory://"), "another process cannot reach a server in memory: `real_nats`"
    config = config or NatsBackendConfig(nats_url=nats_url)
    group = group or unique("g")
    defaults = {
        "EXEC_GROUP": group,
        "EXEC_DIR": str(SAMPLES),
        "WORKER_CPU_CAP": "0.95",
        "WORKER_CPU_WAIT_SEC": "0.5",
        "PYTHONUNBUFFERED": "1",
    }
    inherited = {name: value for name, value in environment(config).items() if not name.startswith(("EXEC_", "WORK"))}
    processes = Grid(folder, config, group, {**inherited, **defaults, **variables})
    try:
        yield processes
    except BaseException:
        for process in processes.processes:
            print(process.tail())
        raise
    finally:
        for process in processes.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
