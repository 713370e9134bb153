"""Many seeds in several processes of the operating system."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial

from simulation.flows.defects import DEFECTS as FLOW_DEFECTS
from simulation.run import simulate

__all__ = ["DEFECTS", "find_failure"]

#: A simulation that kills processes never frees what they held, so each process of ours ends after some.
_SEEDS_PER_PROCESS = 25

DEFECTS = {**FLOW_DEFECTS}


def _is_failing(seed: int, defect: str | None) -> tuple[int, bool]:
    with DEFECTS[defect]() if defect is not None else contextlib.nullcontext():
        return seed, simulate(seed).failed


def find_failure(
    seeds: Iterable[int], jobs: int, defect: str | None = None, on_done: Callable[[], None] = lambda: None
) -> int | None:
    """The first of these seeds that breaks a promise, or None; with a defect that is put back, if one is named."""
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=_SEEDS_PER_PROCESS) as pool:
        for seed, failed in pool.imap(partial(_is_failing, defect=defect), seeds):
            on_done()
            if failed:
                return seed
    return None
