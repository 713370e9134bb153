"""The servers that the peers use, each durable as its makers recommend, on a disk, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from bench.peers.processes import Failed, spawned
from bench.priced_stores import DurablePostgres, DurableValkey
from bench.stack import free_port

sys.path.append(str(Path(__file__).parent.parent.parent / "tests"))  # whose servers these are

from support.servers import NatsServer

__all__ = ["Servers"]

_PREFECT_SECONDS_MAX = 120.0


class Servers:
    """Started when they are first asked for, ended by the stack."""

    def __init__(self, ends: contextlib.ExitStack, folder: Path) -> None:
        self._ends, self._folder = ends, folder
        self._found: dict[str, dict[str, str]] = {}

    def environment(self, *names: str) -> dict[str, str]:
        """The variables by which programs find these servers."""
        starts = {"redis": self._redis, "nats": self._nats, "postgres": self._postgres}
        found: dict[str, str] = {}
        for name in names:
            if name in starts:
                if name not in self._found:
                    self._found[name] = starts[name]()
                found |= self._found[name]
        return found

    def _redis(self) -> dict[str, str]:
        server = DurableValkey(self._folder / "redis")
        server.start()
        self._ends.callback(server.kill)
        return {"BENCH_REDIS_URL": server.url, "RQ_REDIS_URL": server.url}

    def _nats(self) -> dict[str, str]:
        server = NatsServer(self._folder / "nats")
        server.start()
        self._ends.callback(server.kill)
        return {"BENCH_NATS_URL": server.url}

    def _postgres(self) -> dict[str, str]:
        server = DurablePostgres()
        server.start()
        self._ends.callback(server.end)
        return {"BENCH_POSTGRES_URL": server.new_database()}

    @contextlib.contextmanager
    def prefect(self, python: Path) -> Iterator[dict[str, str]]:
        """A new Prefect server with an empty database: its queue is in its memory, and cannot be emptied."""
        port = free_port()
        home = self._folder / f"prefect-{port}"
        environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        command = [str(python), "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        home.mkdir()
        with spawned([*command, "--no-ui"], environment, home / "log.txt"):
            _until_answers(environment)
            yield environment


def _until_answers(environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + _PREFECT_SECONDS_MAX
    with httpx.Client() as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{environment['PREFECT_API_URL']}/health").status_code == 200:
                    return
            time.sleep(0.1)
    raise Failed(f"Prefect's server did not answer within {_PREFECT_SECONDS_MAX:g} s")
