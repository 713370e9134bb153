"""Our own cluster: several nats-servers, each with its own store and its own ports.

cluster_of   all nodes of a cluster on this machine
member_of    one node of a cluster, whose others may be on other machines
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.embedded import EmbeddedNats, Membership, free_ports

__all__ = [
    "NodeAddress",
    "NodePlan",
    "cluster_of",
    "cluster_url",
    "member_of",
    "node_name",
    "nodes_found",
    "stored_nodes",
]

_HOST = "127.0.0.1"
_CLUSTER = "pyoco"
_PREFIX = "nats-"


def cluster_of(folder: Path, config: NatsBackendConfig, size: int) -> dict[str, EmbeddedNats]:
    """Return the nodes by name, not started, on currently free ports. Existing stores in the folder are reused."""
    ports = free_ports(3 * size)
    clients, routes, monitors = ports[:size], ports[size : 2 * size], ports[2 * size :]
    names = [f"{_PREFIX}{number}" for number in range(1, size + 1)]
    addresses = [f"{_HOST}:{port}" for port in routes]
    return {
        name: EmbeddedNats(
            folder,
            config,
            host=_HOST,
            port=clients[place],
            http_port=monitors[place],
            member=Membership(name, _CLUSTER, _HOST, routes[place], addresses, disk_sharers=size),
        )
        for place, name in enumerate(names)
    }


@dataclass(frozen=True)
class NodeAddress:
    """The address of one node of a cluster. `host` is how the other machines reach it."""

    name: str
    host: str
    client_port: int
    route_port: int

    @property
    def route(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.route_port}"


def node_name(address: str) -> str:
    """Return the node's name, always the same for the same `host:port`: NATS treats another name as a new node."""
    return _PREFIX + re.sub(r"[^A-Za-z0-9_.-]+", "-", address).strip("-")


@dataclass(frozen=True)
class NodePlan:
    """One node of a cluster, and its start parameters."""

    own: NodeAddress
    others: Sequence[NodeAddress]
    #: Where it listens for clients and for the other nodes.
    client_host: str
    route_host: str
    #: Nodes whose stores are on the same disk, including this one.
    disk_sharers: int
    #: Password of route connections. Empty: none is required.
    secret: str = field(repr=False)


def member_of(folder: Path, config: NatsBackendConfig, plan: NodePlan) -> EmbeddedNats:
    """Return the node `plan.own`, not started.

    A new cluster forms from the nodes that are up first, so its routes exclude the node itself: with all three listed,
    a NATS without data waits for the vote of every one of them.
    """
    own = plan.own
    member = Membership(
        own.name,
        _CLUSTER,
        plan.route_host,
        own.route_port,
        [each.route for each in plan.others],
        advertise=own.route,
        disk_sharers=plan.disk_sharers,
        secret=plan.secret,
    )
    [monitor] = free_ports(1, plan.client_host)
    return EmbeddedNats(folder, config, host=plan.client_host, port=own.client_port, http_port=monitor, member=member)


def cluster_url(nodes: Iterable[EmbeddedNats]) -> str:
    """Return the address for clients: all nodes, any of which will do."""
    return ",".join(node.url for node in nodes)


def stored_nodes(folder: Path) -> list[str]:
    """Return the names of the nodes with a store in this folder."""
    return sorted(each.name for each in folder.glob(f"{_PREFIX}*") if (each / "store").is_dir())


def nodes_found(folder: Path) -> int:
    """Return the number of nodes with a store in this folder."""
    return len(stored_nodes(folder))
