"""Flows that print, for the benchmarks of logs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from pyoco.core.models import Flow, Task

__all__ = ["FLOOD_LINES", "TICKS", "resolve"]

FLOOD_LINES = 10_000
TICKS = 40
_TICK_SECONDS_MAX = 0.4


def noop() -> None:
    pass


def ten_lines() -> None:
    for number in range(10):
        print("line", number, "of a task that tells what it does")


def flood() -> None:
    for number in range(FLOOD_LINES):
        print("line", number, "of a task that tells what it does")


def ticks() -> None:
    """Each line says when it was printed."""
    chance = random.Random(1)
    for _ in range(TICKS):
        time.sleep(chance.uniform(0, _TICK_SECONDS_MAX))
        print(time.time(), flush=True)


def _flow(task: Callable[[], None]) -> Flow:
    return Flow(name=task.__name__, tasks={Task(func=task, name=task.__name__)})


_FLOWS = {each.__name__: _flow(each) for each in (noop, ten_lines, flood, ticks)}


def resolve(name: str) -> Flow:
    return _FLOWS[name]
