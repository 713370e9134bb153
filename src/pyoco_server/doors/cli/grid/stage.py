"""The processes of a demonstration: a cluster of three NATS nodes, and our own commands, which report when they are
ready."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.embedded import end, free_ports, kill, spawn
from pyoco_server.embedded.cluster import cluster_of, cluster_url
from pyoco_server.errors import Unavailable

__all__ = ["HOST", "ClusterStage", "DemoProcesses", "free_ports", "own_command"]

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_TAIL_LINES = 5
HOST = "127.0.0.1"


@dataclass
class DemoProcesses:
    """Child processes with their output in files. All of them exit with this process, however it exits."""

    folder: Path
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process. Raises OSError if the executable does not exist."""
        with self.output(name).open("wb") as output, self.log(name).open("wb") as log:
            self._running[name] = await spawn(
                command,
                # Every process gets explicit addresses, and other commands must not discover the demonstration.
                environment={**os.environ, "PYOCO_DISCOVERY": "0", **(environment or {})},
                stdout=output.fileno(),
                stderr=log.fileno(),
            )

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def until_ready(self, name: str) -> str:
        """Wait for the READY line and return it. Raises Unavailable if the process exits first or takes too long."""
        process = self._running[name]
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            for line in self.output(name).read_text(errors="replace").splitlines():
                if line.startswith("READY "):
                    return line
            if process.returncode is not None:
                break
            await asyncio.sleep(0.05)
        raise Unavailable(f"{name} did not start; last output: {self.tail(name)}")

    async def until_done(self, name: str) -> int:
        """Wait for the process and return its exit code."""
        return await self._running.pop(name).wait()

    def tail(self, name: str) -> str:
        """Return the last lines of its log."""
        output = self.log(name).read_text(errors="replace").splitlines()
        return " | ".join(output[-_TAIL_LINES:]) or "nothing"

    async def kill(self, name: str) -> None:
        """Kill the process with SIGKILL."""
        process = self._running.pop(name)
        kill(process)
        await process.wait()

    async def stop(self, names: Sequence[str] | None = None) -> None:
        """Send SIGTERM to the named processes, or to all of them in reverse order of their start, and wait for them."""
        wanted = list(reversed(self._running)) if names is None else names
        leaving = [self._running.pop(name) for name in wanted if name in self._running]
        await asyncio.gather(*(end(process, _STOP_SECONDS) for process in leaving))

    def kill_all(self) -> None:
        """Kill all processes immediately, after a second signal."""
        for process in self._running.values():
            kill(process)


class ClusterStage:
    """Three NATS nodes on this machine. Every write is synced to disk (GRID-188)."""

    def __init__(self, processes: DemoProcesses, folder: Path, size: int = 3) -> None:
        """Raises UsageError if there is no nats-server."""
        self._processes = processes
        self._nodes = cluster_of(folder, NatsBackendConfig(nats_sync="always"), size)
        for node in self._nodes.values():
            node.command()

    @property
    def url(self) -> str:
        return cluster_url(self._nodes.values())

    async def start(self) -> None:
        """Start all nodes and wait until JetStream responds on each. Raises Unavailable."""
        for node in self._nodes:
            await self.start_node(node)
        await asyncio.gather(*map(self.until_up, self._nodes))

    async def start_node(self, node: str) -> None:
        await self._processes.start(node, self._nodes[node].command())

    async def until_up(self, node: str) -> None:
        """Wait until the node is ready. Raises Unavailable."""
        await self._nodes[node].until_ready()


def own_command(*arguments: str) -> list[str]:
    """Return the command line of `pyoco-grid` in this installation."""
    return [sys.executable, "-m", "pyoco_server.doors.cli.grid", *arguments]
