"""Many seeds in several processes of the operating system."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial

from simulation.flows.defects import DEFECTS as FLOW_DEFECTS
from simulation.flows.kind import Flows
from simulation.kind import Kind
from simulation.packs.defects import DEFECTS as PACK_DEFECTS
from simulation.packs.kind import Packs
from simulation.programs.defects import DEFECTS as PROGRAM_DEFECTS
from simulation.programs.kind import Programs
from simulation.run import Verdict, simulate

__all__ = ["DEFECTS", "find_failure"]

#: A simulation that kills processes never frees what they held, so each process of ours ends after some.
_SEEDS_PER_PROCESS = 25
_OF_KINDS: tuple[tuple[type[Kind], dict[str, Callable[[], contextlib.AbstractContextManager[None]]]], ...] = (
    (Flows, FLOW_DEFECTS),
    (Programs, PROGRAM_DEFECTS),
    (Packs, PACK_DEFECTS),
)
#: By name: the kind of run that suffers from it, and how to put it back.
DEFECTS = {name: (kind, defect) for kind, defects in _OF_KINDS for name, defect in defects.items()}


def _is_failing(seed: int, defect: str | None, play: Callable[[int], Verdict]) -> tuple[int, bool]:
    if defect is None:
        return seed, play(seed).failed
    kind, put_back = DEFECTS[defect]
    with put_back():
        return seed, simulate(seed, kinds=(kind,)).failed


def find_failure(
    seeds: Iterable[int],
    jobs: int,
    defect: str | None = None,
    on_done: Callable[[], None] = lambda: None,
    play: Callable[[int], Verdict] = simulate,
) -> int | None:
    """The first of these seeds that breaks a promise, or None; with a defect that is put back, if one is named."""
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=_SEEDS_PER_PROCESS) as pool:
        for seed, failed in pool.imap(partial(_is_failing, defect=defect, play=play), seeds):
            on_done()
            if failed:
                return seed
    return None
