"""One storm over one layout, from the first process to the judgement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from storm.book import Book
from storm.faults.all import all_faults
from storm.load import Load, loaded
from storm.oracle import bad_exits, children_left, judge
from storm.port import Fault, Role
from storm.readers import Readers
from storm.recorder import Recorder
from storm.report import Report
from storm.site import StormProcess, built
from storm.storm import Storm

__all__ = ["chosen", "run"]


def chosen(words: str) -> list[Fault]:
    """Those whose names hold one of these words, with commas between; all of them for none."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    return [fault for fault in all_faults() if not wanted or any(word in fault.name for word in wanted)]


async def run(
    layout: str,
    seconds: float,
    seed: int,
    folder: Path,
    faults: Sequence[Fault],
    say: Callable[[str], None] = print,
    *,
    first: Fault | None = None,
) -> Report:
    """`first`: see Storm. Raises AssertionError when the site cannot even be started."""
    began = time.monotonic()
    async with built(layout, folder) as (site, eyes), Recorder(site) as recorder:
        taken = time.monotonic() - began
        say(f"layout {layout}: {len(site.processes)} processes after {taken:.1f} s; logs in {folder}")
        book = Book(is_strict=site.nodes == 1)
        load = Load(site, seed, book)
        storm = Storm(site, book, faults, seed, say, longest=max(4.0, seconds / 3), first=first)
        async with Readers(site, book, recorder, seed) as readers:
            async with loaded(load):
                await storm.blow(seconds)
            judgement = await judge(site, eyes, load, readers, recorder)
        await site.supervisor.stop()
        all_there = [each for each in site.processes if isinstance(each, StormProcess)]
        exits = {each.name: list(each.exits) for each in all_there if each.exits}
        forced = {each.name: each.forced for each in all_there if each.forced}
        ours = [each for each in all_there if each.role is not Role.NATS]
        judgement.add("exits", bad_exits(ours))
        judgement.add("left", await children_left(ours, folder))
    return Report(layout, seed, seconds, storm.gusts, book, judgement, exits, forced, folder)
