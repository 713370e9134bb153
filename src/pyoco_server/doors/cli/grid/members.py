"""Finds the own entry in `--peers`, and computes where the NATS nodes of all entries listen (FIND-13)."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyoco_server.doors.frames.settings import is_loopback
from pyoco_server.embedded.cluster import NodeAddress, node_name
from pyoco_server.errors import UsageError

__all__ = ["SIZE", "ClusterMembers", "is_here", "read_members"]

SIZE = 3
#: Added to the port of the door.
_CLIENT_OFFSET, _ROUTE_OFFSET = 10, 20
_EXAMPLE = "example: pyoco-grid leader 5000 --role auto --peers n1:5000,n2:5000,n3:5000"


@dataclass(frozen=True)
class ClusterMembers:
    """The doors of a cluster, each with its own NATS node."""

    #: `host:port`, as given in `--peers`.
    own: str
    others: tuple[str, ...]
    node: NodeAddress
    other_nodes: tuple[NodeAddress, ...]

    @property
    def is_local(self) -> bool:
        """Whether all doors are on loopback addresses of this machine."""
        return is_loopback(self.node.host)


def read_members(
    peers: Sequence[str], host: str, port: int, *, advertise: str | None, nats_port: int | None, route_port: int | None
) -> ClusterMembers:
    """Parse `peers`, which are the same on each machine; the other arguments are options of this door. Raises
    UsageError."""
    if len(peers) != SIZE or len(set(peers)) != SIZE:
        raise UsageError(
            f"--peers must name {SIZE} doors, this one included, and names {len(set(peers))}: each starts a NATS node "
            f"of a cluster; or name a NATS that runs already with --nats; {_EXAMPLE}"
        )
    own = _own(peers, host, port, advertise)
    _check_hosts(peers)
    door_port = _split(own)[1]
    offsets = (
        _CLIENT_OFFSET if nats_port is None else nats_port - door_port,
        _ROUTE_OFFSET if route_port is None else route_port - door_port,
    )
    nodes = {peer: _node(peer, *offsets) for peer in peers}
    _check_ports(nodes)
    others = tuple(peer for peer in peers if peer != own)
    return ClusterMembers(own, others, nodes[own], tuple(nodes[peer] for peer in others))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _own(peers: Sequence[str], host: str, port: int, advertise: str | None) -> str:
    """Return this door's entry: the one named by `--advertise`, else the one with its port and its `--host` or a local
    address."""
    if advertise is not None:
        if advertise not in peers:
            raise UsageError(f"--advertise {advertise} is not in --peers {','.join(peers)}; both name this door")
        return advertise
    with_port = [peer for peer in peers if _split(peer)[1] == port]
    found = [peer for peer in with_port if _split(peer)[0] == host.strip("[]")]
    found = found or [peer for peer in with_port if is_here(_split(peer)[0])]
    if len(found) == 1:
        return found[0]
    what = f"{' and '.join(found)} are all" if found else f"no door of --peers {','.join(peers)} is"
    raise UsageError(f"{what} this machine with port {port}; name this door; example: --advertise {peers[0]}")


def is_here(host: str) -> bool:
    """Return whether `host` is an address of this machine: only local addresses can be bound."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def _check_hosts(peers: Sequence[str]) -> None:
    local = [peer for peer in peers if is_loopback(_split(peer)[0])]
    if 0 < len(local) < len(peers):
        raise UsageError(
            f"--peers has {local[0]}, which is another door on each machine; name addresses that all machines reach"
        )


def _node(peer: str, client_offset: int, route_offset: int) -> NodeAddress:
    host, port = _split(peer)
    return NodeAddress(node_name(peer), host, port + client_offset, port + route_offset)


def _check_ports(nodes: dict[str, NodeAddress]) -> None:
    """Raise UsageError for invalid port numbers, and for two listeners on the same port of a machine."""
    ports: list[tuple[str, int]] = []
    for peer, node in nodes.items():
        host, port = _split(peer)
        ports += [(host, port), (host, node.client_port), (host, node.route_port)]
    for (host, port), count in Counter(ports).items():
        if not 0 < port < 65_536:
            raise UsageError(f"{host}:{port}, a port of NATS beside a door of --peers, does not exist; {_OPTIONS}")
        if count > 1:
            raise UsageError(f"{host}:{port} would be used twice, by doors of --peers and their NATS; {_OPTIONS}")


_OPTIONS = (
    f"NATS listens {_CLIENT_OFFSET} and {_ROUTE_OFFSET} above the door; choose --nats-port and --nats-route-port, at "
    "the same distance from the door's port on each machine; "
    "example: leader 5000 --nats-port 5100 --nats-route-port 5200"
)
