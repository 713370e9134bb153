"""Doors that bring their own NATS: `pyoco-grid leader` without an address of one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from pyoco_server.config import NatsBackendConfig
from support.grid.processes import Grid, GridProcess, grid

__all__ = ["Leaders", "grid_without_nats", "is_node_of", "leaders", "nats_of"]

_SPAN = 3


@contextlib.contextmanager
def grid_without_nats(folder: Path, **variables: str) -> Iterator[Grid]:
    """No process is told of a NATS: the address that it has by default is no setting."""
    with grid(NatsBackendConfig().nats_url, folder, None, "", **variables) as processes:
        assert "PYOCO_NATS_URL" not in processes.variables
        yield processes


def is_node_of(process: psutil.Process, folder: Path) -> bool:
    """Whether this is a nats-server that keeps its data below `folder`."""
    with contextlib.suppress(psutil.Error):
        return process.name() == "nats-server" and any(str(folder) in word for word in process.cmdline())
    return False


def nats_of(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if is_node_of(each, folder)]


class Leaders:
    """Three doors of one group, each with a data directory of its own and the same `--peers`."""

    def __init__(self, processes: Grid, folder: Path) -> None:
        self.processes, self._folder = processes, folder
        self.ports = _ports()
        self.peers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self._doors: list[GridProcess | None] = [None] * _SPAN

    def data_dir(self, place: int) -> Path:
        return self._folder / f"data-{place}"

    def start(self, place: int, *, waits: bool = True, env: Mapping[str, str] | None = None) -> GridProcess:
        door = self._doors[place]
        if door is not None:
            return door.start(waits=waits)
        options = ("--role", "auto", "--peers", self.peers, "--data-dir", self.data_dir(place))
        more: dict[str, Any] = {"port": self.ports[place], "name": f"door-{place}", "waits": waits, "env": env}
        self._doors[place] = self.processes.leader(*options, **more)
        return self.door(place)

    def door(self, place: int) -> GridProcess:
        door = self._doors[place]
        assert door is not None
        return door

    def nats_url(self, place: int) -> str:
        return f"nats://127.0.0.1:{self.ports[place] + 10}"

    def copies(self, *places: int) -> dict[str, int]:
        """Of each stream: how many of these nodes have everything of it, as its leader sees it. Without a leader: 0."""
        found: dict[str, int] = {}
        for place in places:
            name = self._monitored(place, "varz")["server_name"]
            accounts = self._monitored(place, "jsz?streams=1&config=1").get("account_details", ())
            for each in (stream for account in accounts for stream in account.get("stream_detail", ())):
                cluster = each["cluster"]
                if cluster.get("leader") == name:
                    current = [peer for peer in cluster.get("replicas", ()) if peer["current"] and not peer.get("lag")]
                    found[each["name"]] = 1 + len(current)
                else:
                    found.setdefault(each["name"], 0)
        return found

    def _monitored(self, place: int, what: str) -> Any:
        [configuration] = self.data_dir(place).glob("nats-*/nats.conf")
        monitor = json.loads("{" + configuration.read_text().partition("\n")[2] + "}")["http"]
        with urlopen(f"http://{monitor}/{what}", timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def leaders(folder: Path, **variables: str) -> Iterator[Leaders]:
    with grid_without_nats(folder, **variables) as processes:
        yield Leaders(processes, folder)


def _ports() -> list[int]:
    """Neighbours with their NATS ports free, below those that the system gives away by itself."""
    for base in range(20_000 + os.getpid() % 100 * 100, 32_000, 100):
        ports = [base + place for place in range(_SPAN)]
        if all(_is_free(port + offset) for port in ports for offset in (0, 10, 20)):
            return ports
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
