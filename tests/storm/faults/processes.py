"""Processes that die, stand still, or are restarted; one, or two of different kinds at once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storm.faults.nodes import may_strike_node, process_named, release_node, take_node
from storm.port import Role, Site, SiteProcess, Struck

__all__ = [
    "KillNode",
    "KillPair",
    "KillProcess",
    "RestartNode",
    "RestartProcess",
    "StopNode",
    "StopProcess",
    "is_stopped",
    "resume",
    "stop",
]

#: Ours, all of which may be struck at once.
_OURS = (Role.GATEWAY, Role.WORKER, Role.KEEPER, Role.DOOR)
_STOP_SECONDS = 60.0


async def stop(process: SiteProcess) -> None:
    """SIGSTOP: it stands still when this returns, and its connections stay."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    async with asyncio.timeout(_STOP_SECONDS):
        while process.is_alive and not is_stopped(process):
            await asyncio.sleep(0.001)


def resume(process: SiteProcess) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)


def is_stopped(process: SiteProcess) -> bool:
    """As /proc tells it."""
    try:
        told = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] in {"T", "t"}


def _standing(site: Site, roles: Sequence[Role] = _OURS) -> list[SiteProcess]:
    """Those of ours that run, by name: the same dice, the same victims."""
    found = [each for each in site.processes if each.role in roles and each.is_alive and not is_stopped(each)]
    return sorted(found, key=lambda each: each.name)


async def _raise(process: SiteProcess) -> None:
    """Alive and running, whatever was done to it."""
    if process.is_alive:
        resume(process)
    else:
        process.start()
    await asyncio.sleep(0)


@dataclass
class KillProcess:
    """kill -9 of one of ours; it is started again when this is healed."""

    name: str = "kill"
    lasts: tuple[float, float] = (0.0, 6.0)

    def can_strike(self, site: Site) -> bool:
        return bool(_standing(site))

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        process = dice.choice(_standing(site))
        await process.kill()
        return Struck(self.name, process.name)

    async def heal(self, site: Site, struck: Struck) -> None:
        await _raise(process_named(site, struck.target))


@dataclass
class KillPair:
    """kill -9 of two of different kinds in the same moment: a gateway and a worker, a worker and NATS."""

    name: str = "kill two"
    lasts: tuple[float, float] = (0.0, 5.0)
    #: Of these two kinds; none: of any.
    roles: tuple[Role, ...] = ()

    def can_strike(self, site: Site) -> bool:
        return len(self._roles(site)) >= 2

    def _roles(self, site: Site) -> list[Role]:
        ours = {each.role for each in _standing(site)}
        able = ours | ({Role.NATS} if may_strike_node(site) else set())
        return sorted(able & set(self.roles) if self.roles else able)

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        victims = [
            take_node(site, dice) if role is Role.NATS else dice.choice(_standing(site, (role,)))
            for role in dice.sample(self._roles(site), 2)
        ]
        await asyncio.gather(*(victim.kill() for victim in victims))
        return Struck(self.name, ",".join(victim.name for victim in victims))

    async def heal(self, site: Site, struck: Struck) -> None:
        processes = [process_named(site, name) for name in struck.target.split(",")]
        for process in sorted(processes, key=lambda each: each.role is not Role.NATS):
            await _raise(process)
        for process in processes:
            if process.role is Role.NATS:
                await release_node(site, process.name)


@dataclass
class StopProcess:
    """SIGSTOP of one of ours, mostly for longer than its leases last: when it goes on, it believes that nothing has
    happened, and everything has."""

    name: str = "stop"
    lasts: tuple[float, float] = (2.0, 20.0)

    def can_strike(self, site: Site) -> bool:
        return bool(_standing(site))

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        process = dice.choice(_standing(site))
        await stop(process)
        return Struck(self.name, process.name)

    async def heal(self, site: Site, struck: Struck) -> None:
        process = process_named(site, struck.target)
        if process.is_alive:
            resume(process)


@dataclass
class RestartProcess:
    """SIGTERM, its orderly end, and a new life."""

    name: str = "restart"
    lasts: tuple[float, float] = (0.0, 3.0)

    def can_strike(self, site: Site) -> bool:
        return bool(_standing(site))

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        process = dice.choice(_standing(site))
        await process.terminate()
        return Struck(self.name, process.name)

    async def heal(self, site: Site, struck: Struck) -> None:
        await _raise(process_named(site, struck.target))


@dataclass
class _OnNode:
    """What befalls one NATS node of three, or the only one."""

    name: str = "node"
    lasts: tuple[float, float] = (0.0, 8.0)

    def can_strike(self, site: Site) -> bool:
        return may_strike_node(site)

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        node = take_node(site, dice)
        await self._hit(node)
        return Struck(self.name, node.name)

    async def _hit(self, node: SiteProcess) -> None:
        raise NotImplementedError

    async def heal(self, site: Site, struck: Struck) -> None:
        await _raise(process_named(site, struck.target))
        await release_node(site, struck.target)


@dataclass
class KillNode(_OnNode):
    name: str = "kill node"

    async def _hit(self, node: SiteProcess) -> None:
        await node.kill()


@dataclass
class StopNode(_OnNode):
    """A node that says nothing, and does not hang up: elections take 4 to 9 s."""

    name: str = "stop node"
    lasts: tuple[float, float] = (1.0, 15.0)

    async def _hit(self, node: SiteProcess) -> None:
        await stop(node)


@dataclass
class RestartNode(_OnNode):
    name: str = "restart node"
    lasts: tuple[float, float] = (0.0, 4.0)

    async def _hit(self, node: SiteProcess) -> None:
        await node.terminate()
