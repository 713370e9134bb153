"""The storm itself: strikes, heals, waits until everything works again, and repeats, at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from storm.book import Book, Kind
from storm.port import Fault, Struck
from storm.site import StormSite

__all__ = ["Gust", "Storm"]

#: Each kind has been accepted and has ended again, this long after the last heal at most.
RECOVERY_SECONDS_MAX = 240.0
_TWO_AT_ONCE = 0.3
_CALM_SECONDS_MAX = 1.5


@dataclass
class Gust:
    """What was struck at once, and how long the way back took."""

    struck: list[Struck] = field(default_factory=list)
    lasted: float = 0.0
    #: After the heal: until the first yes, and until the first end of what was accepted since, by kind.
    accepts: dict[Kind, float] = field(default_factory=dict)
    ends: dict[Kind, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def recovered(self) -> float:
        """When the slowest kind worked again."""
        return max(self.ends.values(), default=0.0)

    @property
    def slowest(self) -> str:
        return max(self.ends, key=lambda kind: self.ends[kind], default="nothing")


class Storm:
    """One or two faults at a time. The seed decides what, whom and for how long; only the moment depends on how quickly
    the site recovers."""

    def __init__(
        self,
        site: StormSite,
        book: Book,
        faults: Sequence[Fault],
        seed: int,
        say: Callable[[str], None],
        longest: float = 30.0,
        first: Fault | None = None,
    ) -> None:
        """`first`: what strikes in the first gust, whatever the dice say."""
        self._site, self._book, self._faults, self._say = site, book, faults, say
        self._dice = random.Random(seed)
        #: No fault lasts longer than this.
        self._longest = longest
        self._first = first
        self.gusts: list[Gust] = []

    async def blow(self, seconds: float) -> None:
        """Returns after so many seconds, when all is healed and works again."""
        began = time.monotonic()
        calm = Gust()
        await self._recover(calm, began)
        if calm.problems:
            self.gusts.append(calm)
            self._say(f"{0:6.1f} s  calm: " + "; ".join(calm.problems))
            return
        self._say(f"{0:6.1f} s  calm: everything works after {calm.recovered:.1f} s")
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            gust = await self._gust(now)
            self.gusts.append(gust)
            if gust.problems:
                self._say(f"{time.monotonic() - began:6.1f} s  " + "; ".join(gust.problems))
                return  # what comes after would only blur it
            self._say(
                f"{time.monotonic() - began:6.1f} s  healed after {gust.lasted:.1f} s, works again after "
                f"{gust.recovered:.1f} s ({gust.slowest} last)"
            )
            await asyncio.sleep(self._dice.uniform(0.0, _CALM_SECONDS_MAX))
        if not any(gust.struck for gust in self.gusts):
            self.gusts.append(Gust(problems=["nothing was struck: this was no storm"]))

    async def _gust(self, now: float) -> Gust:
        gust = Gust()
        began = time.monotonic()
        first = await self._strike(gust, now)
        second = await self._strike(gust, now, first) if self._dice.random() < _TWO_AT_ONCE else None
        struck = [each for each in (first, second) if each is not None]
        spans = [self._dice.uniform(*fault.lasts) for fault, _ in struck]
        await asyncio.gather(
            *(
                self._heal(fault, what, min(span, self._longest))
                for (fault, what), span in zip(struck, spans, strict=True)
            )
        )
        gust.lasted = time.monotonic() - began
        await self._recover(gust, time.monotonic())
        return gust

    async def _strike(
        self, gust: Gust, now: float, beside: tuple[Fault, Struck] | None = None
    ) -> tuple[Fault, Struck] | None:
        able = [each for each in self._faults if each.can_strike(self._site)]
        if self._first is not None:
            able, self._first = [self._first], None
        if beside is not None:
            able = [each for each in able if each.name != beside[0].name]
        if not able:
            return None
        fault = self._dice.choice(able)
        struck = await fault.strike(self._site, self._dice)
        gust.struck.append(struck)
        self._site.supervisor.leave_alone(self._processes(struck))
        self._say(f"{now:6.1f} s  {struck.fault}: {struck.target} {struck.detail}".rstrip())
        return fault, struck

    def _processes(self, struck: Struck) -> list[str]:
        names = {process.name for process in self._site.processes}
        return [name for name in struck.target.split(",") if name in names]

    async def _heal(self, fault: Fault, struck: Struck, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await fault.heal(self._site, struck)
        self._site.supervisor.look_after(self._processes(struck))

    async def _recover(self, gust: Gust, since: float) -> None:
        while time.monotonic() < since + RECOVERY_SECONDS_MAX:
            reached = self._book.reached(since)
            gust.accepts = {kind: at - since for kind, (at, _) in reached.items() if at is not None}
            gust.ends = {kind: at - since for kind, (_, at) in reached.items() if at is not None}
            if len(gust.ends) == len(Kind):
                return
            await asyncio.sleep(0.1)
        missing = sorted(set(Kind) - gust.ends.keys())
        gust.problems.append(f"no recovery within {RECOVERY_SECONDS_MAX:.0f} s: {', '.join(missing)}")
