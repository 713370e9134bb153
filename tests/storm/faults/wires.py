"""What may befall the way of a process to a NATS node, which is a relay of ours (`relays.RelayWire`).

Whoever dials through wires must know no other way: a cluster tells its clients of all its nodes (`connect_urls`), and
they would go around. Nodes that are reached through wires have `no_advertise` set.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from storm.port import Role, Site, Struck, Wire
from support.relays import RelayWire, loop_of_wires

__all__ = ["CutWire", "FrozenWire", "OneWayWire", "RelayWire", "SlowWire", "loop_of_wires", "wires_of"]


def wires_of(site: Site, dice: random.Random) -> list[Wire]:
    """One wire, or all wires of one process: "anna>n1", "anna>n2" are anna's. By name, so that a seed tells the same
    story whatever the order of the site's wires."""
    ours = _of_ours(site)
    name = dice.choice(ours)
    process, arrow, _ = name.partition(">")
    if not arrow or dice.random() < 0.5:
        return [site.wires[name]]
    return [site.wires[each] for each in ours if each.startswith(process + ">")]


def _of_ours(site: Site) -> list[str]:
    """Not those from node to node: who cuts them strikes a node, and that is another fault (`isolation.py`)."""
    nodes = {node.name for node in site.of(Role.NATS)}
    return sorted(name for name in site.wires if name.partition(">")[0] not in nodes)


@dataclass
class _OnWires:
    """What befalls wires. Several may be struck at once; one that is struck again does what it was told last."""

    name: str = "wires"
    lasts: tuple[float, float] = (1.0, 8.0)

    def can_strike(self, site: Site) -> bool:
        return bool(_of_ours(site))

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        wires = wires_of(site, dice)
        told = [self._tell(wire, dice) for wire in wires]
        return Struck(self.name, ",".join(wire.name for wire in wires), told[0])

    def _tell(self, wire: Wire, dice: random.Random) -> str:
        raise NotImplementedError

    async def heal(self, site: Site, struck: Struck) -> None:
        for name in struck.target.split(","):
            site.wires[name].heal()


@dataclass
class CutWire(_OnWires):
    name: str = "wire cut"

    def _tell(self, wire: Wire, dice: random.Random) -> str:
        wire.cut()
        return ""


@dataclass
class FrozenWire(_OnWires):
    """Longer than a client's pings take to notice, now and then (`Link`: 10 to 15 s)."""

    name: str = "wire frozen"
    lasts: tuple[float, float] = (1.0, 18.0)

    def _tell(self, wire: Wire, dice: random.Random) -> str:
        wire.freeze()
        return ""


@dataclass
class OneWayWire(_OnWires):
    name: str = "wire one way"
    lasts: tuple[float, float] = (1.0, 12.0)

    def _tell(self, wire: Wire, dice: random.Random) -> str:
        to_server = dice.random() < 0.5
        wire.one_way(to_server)
        return "to the server" if to_server else "to the client"


@dataclass
class SlowWire(_OnWires):
    name: str = "wire slow"
    lasts: tuple[float, float] = (2.0, 10.0)

    def _tell(self, wire: Wire, dice: random.Random) -> str:
        seconds, jitter = dice.uniform(0.01, 0.4), dice.uniform(0.0, 0.4)
        wire.slow(seconds, jitter)
        return f"{seconds:.2f} s + {jitter:.2f} s"
