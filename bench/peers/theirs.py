"""One peer, measured by driving its program in its own environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from bench.peers.environments import environment_of
from bench.peers.peers import Peer
from bench.peers.processes import Failed, driver, last_line, spawned
from bench.peers.servers import Servers
from bench.peers.sizes import BODY, Sizes, latencies_ms
from bench.stack import free_port

__all__ = ["SETTLE_SECONDS", "Theirs", "loads"]

_START_SECONDS = 60.0
_WARM_SECONDS = 0.3
_DRAIN_SECONDS_MAX = 90.0
#: From the end of the first jobs to a standstill: the last of several processes is up by then.
SETTLE_SECONDS = 1.0


class Theirs:
    """What is measured of one peer. Every method raises Failed when it cannot be."""

    def __init__(self, peer: Peer, servers: Servers, sizes: Sizes, folder: Path) -> None:
        self.name, self.rounds_max = peer.name, peer.rounds_max
        self._peer, self._servers, self._sizes = peer, servers, sizes
        self._log = folder / f"{peer.name}.log"
        self._log.touch()
        try:
            self._python = environment_of(peer.name)
        except subprocess.CalledProcessError as error:
            raise Failed(f"pip could not install it: {error.stderr.strip().splitlines()[-1]}") from error

    @contextlib.contextmanager
    def _emptied(self) -> Iterator[dict[str, str]]:
        """Its servers, without a job in them."""
        environment = self._servers.environment(*self._peer.servers)
        if "prefect" in self._peer.servers:
            with self._servers.prefect(self._python) as found:
                yield found
            return
        self._ask(environment, "reset")
        yield environment

    def _command(self, *words: str) -> list[str]:
        return [str(self._python), "-m", self._peer.module, *words]

    def _ask(self, environment: dict[str, str], *words: str) -> dict[str, object]:
        with driver(self._command(*words), environment, self._log) as asked:
            return asked.answer(_START_SECONDS + 2 * self._sizes.seconds)

    @contextlib.contextmanager
    def _at_work(self, processes: int, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
        with contextlib.ExitStack() as ends:
            commands = [[str(self._python), *words] for words in self._peer.workers(processes)]
            yield [ends.enter_context(spawned(command, environment, self._log)) for command in commands]

    def http(self) -> dict[str, float]:
        port = free_port()
        command = [str(self._python), "-m", "uvicorn", f"{self._peer.module}:app", "--port", str(port)]
        command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--no-proxy-headers"]
        with self._emptied() as environment, spawned([*command, "--log-level", "warning"], environment, self._log):
            self._until_open(port)
            return loads(port, self._sizes.seconds)

    def _until_open(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/openapi.json").status_code == 200:
                    return
            time.sleep(0.05)
        raise Failed(f"its application did not open; {last_line(self._log)}")

    def call(self) -> dict[str, float]:
        found = {}
        with self._emptied() as environment:
            for n in (1, 32):
                answer = self._ask(environment, "call", str(n), str(self._sizes.seconds))
                found[f"call {n}"] = float(str(answer["per_second"]))
        return found

    def drain(self, processes: int) -> dict[str, float]:
        counts = {"noop": self._sizes.count(self._peer.noops), "chain": self._sizes.count(self._peer.chains)}
        command = self._command("drain", *(f"{kind}={count}" for kind, count in counts.items()))
        found = {}
        with (
            self._emptied() as environment,
            self._at_work(processes, environment) as workers,
            driver(command, environment, self._log) as asked,
        ):
            asked.answer(_DRAIN_SECONDS_MAX)  # they are warm
            time.sleep(SETTLE_SECONDS)
            for kind in counts:
                _signal(workers, signal.SIGSTOP)
                asked.go_on()
                asked.answer(_START_SECONDS)  # all of them are queued
                _signal(workers, signal.SIGCONT)
                asked.go_on()
                found[f"{kind} {processes}"] = float(asked.answer(_DRAIN_SECONDS_MAX)["per_second"])
        return found

    def wait(self) -> dict[str, float]:
        count = self._sizes.count(self._peer.waits)
        command = self._command("wait", str(count))
        with (
            self._emptied() as environment,
            self._at_work(1, environment),
            driver(command, environment, self._log) as asked,
        ):
            return latencies_ms(asked.answer(_DRAIN_SECONDS_MAX)["seconds"])


def _signal(workers: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for worker in workers:
        os.killpg(worker.pid, number)


def loads(port: int, seconds: float) -> dict[str, float]:
    """Both figures, once the application has connected to whatever it uses."""
    _load(port, 32, _WARM_SECONDS)
    return {f"http {n}": _load(port, n, seconds) for n in (1, 32)}


def _load(port: int, connections: int, seconds: float) -> float:
    """Accepted per second; every answer was a good one."""
    command = [sys.executable, "-m", "bench.load", "127.0.0.1", str(port), "/runs", str(connections), str(seconds)]
    done = subprocess.run(command, input=BODY, capture_output=True, check=False, timeout=seconds + 60)
    if done.returncode:
        raise Failed(f"no load: {done.stderr.decode('utf-8', 'replace').strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    if set(found["statuses"]) != {"200"}:
        raise Failed(f"answers were {found['statuses']}")
    return float(found["per_second"])
