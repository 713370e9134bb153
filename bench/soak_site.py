"""A deployment that is watched while it works: its processes, what each of them holds, and what the streams hold."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
import psutil
import uvloop

from bench.priced_site import _tenants
from bench.soak_load import Plan, Told, Whole
from bench.stack import Stack, _environment, stack
from pyoco_server.config.priced import PricedConfig
from pyoco_server.ports.nats.link import open_link

__all__ = ["MIB", "Held", "Sample", "SoakSite", "Streams", "Verdict", "a_soak_site", "loading"]

MIB = 2**20
#: Programs of the one client that asks for them, at once.
_CAP = 16
_TENANTS = 4
_STOP_SECONDS = 30
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Held:
    """What the processes of one part hold together."""

    rss: int
    handles: int
    threads: int
    cpu_seconds: float


class _State(msgspec.Struct):
    messages: int
    bytes: int
    consumer_count: int


class _Config(msgspec.Struct):
    name: str


class _Stream(msgspec.Struct):
    config: _Config
    state: _State


class _Page(msgspec.Struct):
    streams: list[_Stream] | None = None


@dataclass(frozen=True)
class Streams:
    messages: dict[str, int]
    size_bytes: int
    consumers: int


@dataclass(frozen=True)
class Sample:
    held: dict[str, Held]
    streams: Streams
    index_bytes: int


@dataclass(frozen=True)
class Verdict:
    """Of one part: what was looked at closely enough to judge, and what is not as it should be."""

    judged: list[str]
    faults: list[str]


@dataclass
class SoakSite:
    running: Stack
    home: Path
    keeper: subprocess.Popen[bytes]
    #: Of tenants with money, for packs.
    keys: list[str]
    worker: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.running.port}"

    def start_worker(self) -> None:
        """One for flows and programs, unless it is there. It does not ask how busy the machine is: we keep it so."""
        if self.worker is not None:
            return
        command = [sys.executable, "-m", "bench.quiet", "pyoco-worker", "--worker-id", "soak"]
        command += ["--flow-resolver", "examples.flows:resolve", "--exec-dir", str(self.home / "exe")]
        settings = {"PYOCO_DATA_DIR": str(self.home / "worker"), "WORK_ROOT": str(self.home / "jobs")}
        settings |= {"PYOCO_NATS_URL": self.running.nats_url, **_ledger_in(self.home)}
        self.worker = subprocess.Popen(command, env=_environment(**settings), stdout=subprocess.DEVNULL)

    def stop_worker(self) -> None:
        worker, self.worker = self.worker, None
        _stop(worker)

    def parts(self) -> dict[str, list[psutil.Process]]:
        """By what they are. Children of the worker come and go: they are one part together."""
        up = psutil.Process(self.running.process.pid).children()
        found = {
            "gateway": [self.running.gateway()],
            "keeper": [psutil.Process(self.keeper.pid)],
            "NATS": [each for each in up if "nats-server" in each.name()],
        }
        if self.worker is not None:
            worker = psutil.Process(self.worker.pid)
            found |= {"worker": [worker], "hosts": worker.children()}
        return found

    def held(self) -> dict[str, Held]:
        """Without the connections of those who ask the gateway: as many as the load makes."""
        found = {name: _held(processes) for name, processes in self.parts().items()}
        gateway = found["gateway"]
        asking = [each for each in self.running.gateway().net_connections("tcp4") if self._is_asked(each)]
        return found | {"gateway": replace(gateway, handles=gateway.handles - len(asking))}

    def _is_asked(self, connection: Any) -> bool:
        return bool(connection.laddr.port == self.running.port and connection.raddr)

    def sample(self) -> Sample:
        held = self.held()  # first: to ask for the streams takes a connection of its own
        index = Path(self.running.home, "data", "index")
        sizes = [each.stat().st_size for each in index.iterdir()] if index.is_dir() else []
        return Sample(held, uvloop.run(_streams(self.running.nats_url)), sum(sizes))


def _held(processes: Sequence[psutil.Process]) -> Held:
    rss = handles = threads = 0
    cpu = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            rss += process.memory_info().rss
            handles += process.num_fds()
            threads += process.num_threads()
            times = process.cpu_times()
            cpu += times.user + times.system
    return Held(rss, handles, threads, cpu)


async def _streams(nats_url: str) -> Streams:
    link = await open_link(nats_url, "soak")
    try:
        streams = (await link.api("STREAM.LIST", {"offset": 0}, _Page)).streams or []
    finally:
        await link.close()
    messages = {each.config.name: each.state.messages for each in streams}
    states = [each.state for each in streams]
    return Streams(messages, sum(each.bytes for each in states), sum(each.consumer_count for each in states))


def _stop(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ledger_in(home: Path) -> dict[str, str]:
    return {"PYOCO_LEDGER_URL": f"sqlite:///{home / 'ledger.db'}", "PYOCO_PRICED_RATE_LIMIT_PER_MIN": "1000000000"}


@contextlib.contextmanager
def a_soak_site() -> Iterator[SoakSite]:
    """NATS, one gateway and one keeper, all empty. Everything is gone afterwards, the folder too."""
    with tempfile.TemporaryDirectory(prefix="pyoco-soak-") as folder:
        home = Path(folder)
        for name in ("exe", "jobs", "worker", "keeper"):
            (home / name).mkdir()
        shutil.copy("/bin/true", home / "exe" / "noop")
        ledger = _ledger_in(home)
        with stack(**ledger) as running:
            keys = uvloop.run(_tenants(running.nats_url, PricedConfig.read(ledger), _TENANTS))
            command = [sys.executable, "-m", "pyoco_server.doors.cli.keeper"]
            settings = _environment(PYOCO_NATS_URL=running.nats_url, PYOCO_DATA_DIR=str(home / "keeper"), **ledger)
            keeper = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL)
            site = SoakSite(running, home, keeper, keys)
            try:
                httpx.put(f"{site.address}/exec/clients/http", json={"cap": _CAP}, timeout=30).raise_for_status()
                yield site
            finally:
                site.stop_worker()
                _stop(keeper)


@contextlib.contextmanager
def loading(site: SoakSite, plan: Plan) -> Iterator[Iterator[Told | Whole]]:
    """The lines of a load generator, as they come. It is told to stop at the end of the block, if it has not.

    Raises RuntimeError when it failed: what it has told is not the whole then.
    """
    command = [sys.executable, "-m", "bench.soak_load", str(site.running.port), site.running.nats_url]
    # In a session of its own: Ctrl-C is for us, and we want its last line.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    is_over = False

    def lines(told: IO[bytes]) -> Iterator[Told | Whole]:
        nonlocal is_over
        for line in told:
            read = _read(line)
            is_over = isinstance(read, Whole)
            yield read

    try:
        yield lines(process.stdout)
    finally:
        if not is_over:
            process.terminate()
        for _ in process.stdout:
            """What it still has to say; it ends with that."""
        process.stdout.close()
        code = process.wait(_STOP_SECONDS)
    # It may be told to stop before it has begun to listen for that.
    if code != 0 and (is_over or code != -signal.SIGTERM):
        raise RuntimeError(f"the load generator ended with {code}")


def _read(line: bytes) -> Told | Whole:
    return msgspec.json.decode(line, type=Whole if b'"refused"' in line else Told)
