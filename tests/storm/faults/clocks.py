"""Clocks that are wrong: those of workers and keepers, by up to some minutes, ahead or behind, in one jump each way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from storm.faults.nodes import process_named
from storm.port import Role, Site, SiteProcess, Struck

__all__ = ["MovedClock", "move_clock"]

_MOVED = (Role.WORKER, Role.KEEPER)
#: Those that a real machine shows: no NTP for a day, for a year, and a wrong time at boot.
_SECONDS_MAX = (2.0, 30.0, 300.0)


def move_clock(process: SiteProcess, seconds: float) -> None:
    """From now on its time of day is so far ahead of the truth, or behind it. Whoever reads the file meanwhile finds
    the old value or the new one, never half of it."""
    assert process.clock is not None
    new = process.clock.with_suffix(".new")
    new.write_text(f"{seconds:.3f}")
    new.replace(process.clock)


def _wrong(clock: Path) -> bool:
    return float(clock.read_text()) != 0.0


@dataclass
class MovedClock:
    """It jumps, and jumps back when healed. What measures durations is not touched: the kernel keeps that steady."""

    name: str = "clock"
    lasts: tuple[float, float] = (3.0, 20.0)

    def can_strike(self, site: Site) -> bool:
        return bool(self._right(site))

    @staticmethod
    def _right(site: Site) -> list[SiteProcess]:
        found = [each for each in site.processes if each.role in _MOVED and each.clock and not _wrong(each.clock)]
        return sorted(found, key=lambda each: each.name)

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        process = dice.choice(self._right(site))
        most = dice.choice(_SECONDS_MAX)
        seconds = dice.choice((-1, 1)) * dice.uniform(most / 4, most)
        move_clock(process, seconds)
        return Struck(self.name, process.name, f"{seconds:+.1f} s")

    async def heal(self, site: Site, struck: Struck) -> None:
        move_clock(process_named(site, struck.target), 0.0)
