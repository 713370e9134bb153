"""NATS as a proof has it: one node, or a cluster of three; each can be killed, emptied and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pyoco_server.doors.cli.grid.stage import HOST
from pyoco_server.embedded import die_with, find_command, jetstream_answers
from support.servers import free_port
from support.waiting import eventually

__all__ = ["Node", "Nodes", "configuration"]

_START_SECONDS = 60.0


def configuration(
    name: str, store: Path, port: int, own_route: int | None = None, routes: Sequence[int] = (), **cluster: object
) -> str:
    """What one nats-server reads. `cluster`: more of its options between the nodes."""
    options: dict[str, object] = {
        "server_name": name,
        "host": HOST,
        "port": port,
        "jetstream": {"store_dir": str(store), "sync_interval": "always"},
    }
    if own_route is not None:
        others = [f"nats://{HOST}:{port}" for port in routes]
        options["cluster"] = {"name": "proof", "host": HOST, "port": own_route, "routes": others, **cluster}
    return json.dumps(options, indent=2)[2:-2] + "\n"


class Node:
    """One nats-server. Every write is on disk before it is answered, as in the configurations we ship (GRID-188)."""

    def __init__(self, name: str, folder: Path, port: int, routes: list[int]) -> None:
        self.name, self.port, self._routes = name, port, routes
        self._store, self._config, self._log = folder / name, folder / f"{name}.conf", folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def store(self) -> Path:
        return self._store

    def configure(self, own_route: int | None) -> None:
        self._config.write_text(configuration(self.name, self._store, self.port, own_route, self._routes))

    def start(self) -> None:
        """Returns at once."""
        assert not self.is_alive
        program = find_command("nats-server")
        assert program is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--config", self._config],
                stdout=log,
                stderr=log,
                preexec_fn=die_with(os.getpid(), signal.SIGKILL),  # noqa: PLW1509 - it takes no lock
            )

    async def until_up(self) -> None:
        await eventually(lambda: jetstream_answers(HOST, self.port), _START_SECONDS)

    def kill(self) -> None:
        """kill -9, and gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def empty(self) -> None:
        """Its disk is lost."""
        assert not self.is_alive
        shutil.rmtree(self._store)

    def tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-20:] if self._log.exists() else []
        return "\n".join(f"{self.name}: {line}" for line in lines)

    @property
    def stored_bytes(self) -> int:
        """On its disk."""
        return sum(file.stat().st_size for file in self._store.rglob("*") if file.is_file())


class Nodes:
    def __init__(self, folder: Path, count: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = [free_port() for _ in range(2 * count)]
        routes = ports[count:] if count > 1 else []
        self.all = [Node(f"n{place + 1}", folder, ports[place], routes) for place in range(count)]
        for place, node in enumerate(self.all):
            node.configure(routes[place] if routes else None)

    def __getitem__(self, place: int) -> Node:
        return self.all[place]

    def named(self, name: str) -> Node:
        return next(node for node in self.all if node.name == name)

    @property
    def url(self) -> str:
        return ",".join(f"nats://{HOST}:{node.port}" for node in self.all)

    async def start(self) -> None:
        """All that are down; returns when JetStream answers on each of them."""
        for node in self.all:
            if not node.is_alive:
                node.start()
        await asyncio.gather(*(node.until_up() for node in self.all))

    def kill(self) -> None:
        for node in self.all:
            node.kill()
