"""What a storm works on: a site of processes, the wires between them, their disks and their clocks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

__all__ = ["Disk", "Fault", "Role", "Site", "SiteProcess", "Struck", "Wire"]


class Role(StrEnum):
    NATS = "nats"
    GATEWAY = "gateway"
    WORKER = "worker"
    KEEPER = "keeper"
    DOOR = "door"


class SiteProcess(Protocol):
    """One process through all its lives."""

    name: str
    role: Role
    #: A file with the seconds by which its time of day is wrong; None: its clock cannot be moved.
    clock: Path | None

    @property
    def pid(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def start(self) -> None: ...

    async def kill(self) -> None:
        """SIGKILL, and its end is waited for."""

    async def terminate(self) -> None:
        """SIGTERM; SIGKILL, too, when it has not ended after half a minute: as an init system does."""


class Wire(Protocol):
    """The way of one process to one NATS node, through a relay that can be told to misbehave. Bytes only: it knows no
    protocol."""

    name: str

    def cut(self) -> None:
        """Close open connections, and accept no more."""

    def freeze(self) -> None:
        """Keep all connections open and pass nothing on, either way. New ones are accepted and hear nothing."""

    def slow(self, seconds: float, jitter: float = 0.0) -> None:
        """Pass everything on late, in order."""

    def one_way(self, to_server: bool) -> None:
        """Pass on one direction alone; bytes of the other are kept, within bounds, until it is healed."""

    def heal(self) -> None: ...


class Disk(Protocol):
    """Where a NATS node stores. A small file system of its own where this machine allows one."""

    name: str
    path: Path

    def fill(self) -> None:
        """Until there is no room for one block more."""

    def slow(self, seconds: float) -> None:
        """Every sync takes this much longer, about."""

    def heal(self) -> None: ...


@dataclass
class Site:
    """Everything that may be struck. `nodes` is 1 or 3."""

    nodes: int
    processes: Sequence[SiteProcess]
    wires: Mapping[str, Wire] = field(default_factory=dict)
    disks: Mapping[str, Disk] = field(default_factory=dict)
    #: At any gateway this reaches the site over HTTP.
    addresses: Sequence[str] = ()
    #: Where whoever strikes reaches NATS himself, through no wire: all nodes, with commas between. "": nowhere, and
    #: then nothing is delivered twice, and nobody waits for a node to catch up.
    nats_url: str = ""
    #: Names of the NATS nodes that are struck, by whatever. The faults themselves keep it.
    hurt: set[str] = field(default_factory=set)

    def of(self, role: Role) -> list[SiteProcess]:
        return [each for each in self.processes if each.role is role]


@dataclass(frozen=True)
class Struck:
    """What was done, for the record of the storm and for the way back."""

    fault: str
    target: str
    detail: str = ""


class Fault(Protocol):
    """One kind of misfortune. The dice are the only source of chance, so that a seed tells the whole story."""

    name: str
    #: Seconds after which the storm heals it: at least, at most.
    lasts: tuple[float, float]

    def can_strike(self, site: Site) -> bool:
        """Whether this site has what it takes (a disk of its own, three nodes), and nothing is struck that must not be
        at once: never more than one node of three."""

    async def strike(self, site: Site, dice: random.Random) -> Struck: ...

    async def heal(self, site: Site, struck: Struck) -> None:
        """Everything as it was. May be called twice."""
