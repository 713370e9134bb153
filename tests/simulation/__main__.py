"""`make simulate`: many seeds, or one. The first seed that fails is shrunk and its history printed.

python -m simulation --seeds 1000            fresh seeds; the first is printed and can be given with --first
python -m simulation --seed 123              one seed, with its history if it fails
python -m simulation --seeds 200 --first 1   seeds 1 to 200
python -m simulation --schedules             schedules instead of the kinds of run that a seed chooses
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable

from simulation.many import find_failure
from simulation.run import Verdict, shrink, simulate
from simulation.schedules.kind import simulate_schedules

__all__ = ["main"]

_EVERY_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="simulate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, help="the first of them; fresh ones otherwise")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    parser.add_argument("--history", action="store_true", help="print the history of --seed even if it passes")
    parser.add_argument("--schedules", action="store_true", help="simulate schedules")
    asked = parser.parse_args(arguments)
    play = simulate_schedules if asked.schedules else simulate
    if asked.seed is not None:
        return _one(asked.seed, play, show=asked.history)
    first = asked.first if asked.first is not None else random.randrange(1, 2**31)
    print(f"seeds {first} to {first + asked.seeds - 1}", flush=True)
    failed = find_failure(range(first, first + asked.seeds), asked.jobs, on_done=_Progress(asked.seeds), play=play)
    if failed is None:
        print(f"{asked.seeds} passed, 0 failed")
        return 0
    return _one(failed, play, show=False)


def _one(seed: int, play: Callable[..., Verdict], *, show: bool) -> int:
    verdict = play(seed)
    if not verdict.failed:
        print((verdict.history if show else "") + f"seed {seed}: every promise was kept, {verdict.steps} steps")
        return 0
    print(f"seed {seed} fails; looking for the smallest list of faults", flush=True)
    _report(shrink(verdict, play=play))
    return 1


def _report(verdict: Verdict) -> None:
    print(verdict.history)
    print(f"seed {verdict.seed} breaks a promise:", *verdict.problems, sep="\n  ")
    print("with these faults alone:", *(verdict.faults or ("none",)), sep="\n  ")
    print(f"again: make simulate SEED={verdict.seed}", "(and ARGS=--schedules, if it is of schedules)")


class _Progress:
    def __init__(self, total: int) -> None:
        self._total, self._done, self._told_at = total, 0, time.monotonic()

    def __call__(self) -> None:
        self._done += 1
        if time.monotonic() - self._told_at > _EVERY_SECONDS:
            self._told_at = time.monotonic()
            print(f"{self._done} of {self._total}", flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts are iterated in the same order in every process
        again = [sys.executable, "-m", "simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})
    raise SystemExit(main(sys.argv[1:]))
