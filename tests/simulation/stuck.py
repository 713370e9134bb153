"""The error raised when a simulation cannot continue, with the source location of each waiting task."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any

from simulation.process import Process

__all__ = ["SimulationStuck", "describe_waiting"]

_TASKS_MAX = 60


class SimulationStuck(Exception):
    """Deadlock, or the step or time limit was reached. The message lists each waiting task and its location."""


def describe_waiting(processes: Iterable[Process]) -> str:
    """One line per pending task of each living process: outermost frame first, the frame that waits last."""
    lines: list[str] = []
    for process in processes:
        if process.is_alive:
            state = " (paused)" if process.is_paused else ""
            lines += [
                f"  {process.name}{state}: {task.get_name()}: {_place_of(task)}" for task in process.pending_tasks()
            ]
    more = len(lines) - _TASKS_MAX
    return "\n".join(lines[:_TASKS_MAX] + ([f"  and {more} more"] if more > 0 else [])) or "  no task is waiting"


def _place_of(task: asyncio.Task[Any]) -> str:
    frames = [
        f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        for frame in _frames(task.get_coro())
    ]
    return " > ".join(frames) or "no Python frame"


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Follow coroutines, generators and asynchronous generators to the innermost await."""
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:  # possibly an interpreter object that wraps one (`async for`, `__await__`)
            referents = gc.get_referents(awaited) if type(awaited).__module__ == "builtins" else []
            awaited = next((each for each in referents if inspect.isasyncgen(each) or inspect.iscoroutine(each)), None)
            continue
        frame = getattr(awaited, f"{kind}_frame")
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
