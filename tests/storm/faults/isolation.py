"""Isolate a NATS node: neither the other nodes nor any client reach it, until it is healed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from storm.faults.nodes import may_strike_node, release_node, take_node
from storm.port import Site, Struck, Wire

__all__ = ["IsolatedNode"]


@dataclass
class IsolatedNode:
    """It lives and may believe that it leads. Cut, so that all notice at once; or frozen, so that none does."""

    name: str = "isolate node"
    lasts: tuple[float, float] = (2.0, 20.0)

    def can_strike(self, site: Site) -> bool:
        return site.nodes > 1 and may_strike_node(site)

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        node = take_node(site, dice)
        is_cut = dice.random() < 0.5
        for wire in _wires(site, node.name):
            if is_cut:
                wire.cut()
            else:
                wire.freeze()
        return Struck(self.name, node.name, "cut" if is_cut else "frozen")

    async def heal(self, site: Site, struck: Struck) -> None:
        for wire in _wires(site, struck.target):
            wire.heal()
        await release_node(site, struck.target)


def _wires(site: Site, node: str) -> list[Wire]:
    """All that lead to it or away from it."""
    return [wire for name, wire in sorted(site.wires.items()) if node in name.split(">")]
