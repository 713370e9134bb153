"""A cluster of our own on this machine: several nats-servers, each with its own store and its own ports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.embedded import EmbeddedNats, Membership, free_ports

__all__ = ["cluster_of", "cluster_url", "nodes_found"]

_HOST = "127.0.0.1"
_CLUSTER = "pyoco"
_PREFIX = "nats-"


def cluster_of(folder: Path, config: NatsBackendConfig, size: int) -> dict[str, EmbeddedNats]:
    """Nodes by name, none of them started, on ports that were free a moment ago. A folder that held them before gives
    them what they have stored."""
    ports = free_ports(3 * size)
    clients, routes, monitors = ports[:size], ports[size : 2 * size], ports[2 * size :]
    names = [f"{_PREFIX}{number}" for number in range(1, size + 1)]
    return {
        name: EmbeddedNats(
            folder,
            config,
            host=_HOST,
            port=clients[place],
            http_port=monitors[place],
            member=Membership(name, _CLUSTER, routes[place], routes),
        )
        for place, name in enumerate(names)
    }


def cluster_url(nodes: Iterable[EmbeddedNats]) -> str:
    """For whoever connects: any node will do."""
    return ",".join(node.url for node in nodes)


def nodes_found(folder: Path) -> int:
    """How many nodes have stored something in this folder."""
    return sum((each / "store").is_dir() for each in folder.glob(f"{_PREFIX}*"))
