"""One simulation from its seed to its verdict, and the smallest list of faults that still fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from simulation.deployment import Deployment, Shape
from simulation.faults import Fault, draw, inject
from simulation.flows.kind import Flows
from simulation.history import format_history, recorded_logs
from simulation.kind import Kind, Problems
from simulation.loop import SimLoop
from simulation.packs.kind import Packs
from simulation.programs.kind import Programs
from simulation.virtual_time import virtual_world

__all__ = ["KINDS", "WORK_SECONDS", "Verdict", "kinds_of", "shrink", "simulate"]

#: Virtual seconds of work, under faults.
WORK_SECONDS = 60.0
#: Longest time after the last fault for everything to end: the slowest owner of a stuck run takes a few minutes.
_SETTLE_SECONDS = 1200.0
_STEPS_MAX = 3_000_000
#: Processes have this long to start before the first client asks.
_START_SECONDS = 2.0
#: Indexes are files; a disk would only be waited for.
_MEMORY = Path("/dev/shm")
#: Every kind of run.
KINDS: tuple[type[Kind], ...] = (Flows, Programs, Packs)


@dataclass(frozen=True)
class Verdict:
    seed: int
    problems: tuple[str, ...]
    faults: tuple[Fault, ...]
    history: str
    steps: int

    @property
    def failed(self) -> bool:
        return bool(self.problems)


def simulate(
    seed: int,
    faults: Sequence[Fault] | None = None,
    kinds: Sequence[type[Kind]] | None = None,
    work_seconds: float = WORK_SECONDS,
) -> Verdict:
    """`faults`, `kinds`: these instead of those of the seed. Everything else follows from the seed and from how long
    clients ask for work."""
    kinds = kinds if kinds is not None else kinds_of(seed)
    for kind in kinds:
        kind.prepare()
    loop = SimLoop(seed, steps_max=_STEPS_MAX, seconds_max=work_seconds + 2 * _SETTLE_SECONDS)
    root = Path(tempfile.mkdtemp(prefix="pyoco-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with virtual_world(loop, seed), recorded_logs(loop), _settings():
            verdict = loop.run_until_complete(_simulate(loop, seed, root, faults, kinds, work_seconds))
            loop.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return verdict


def kinds_of(seed: int) -> tuple[type[Kind], ...]:
    """The kinds of run that take part: one, or all of them. One alone is three times as fast."""
    chosen = seed % (len(KINDS) + 1)
    return KINDS if chosen == len(KINDS) else (KINDS[chosen],)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Settings come from the code alone, whatever the environment says."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "EXEC_"))}
    with patch.dict(os.environ, ours | {"PYOCO_PRICED_ENABLED": "0"}, clear=True):
        yield


async def _simulate(
    loop: SimLoop,
    seed: int,
    root: Path,
    given: Sequence[Fault] | None,
    kinds: Sequence[type[Kind]],
    work_seconds: float,
) -> Verdict:
    problems = Problems(loop)
    deployment = Deployment(loop, root, _shape(loop), f"simulation-{seed}")
    playing = [kind(deployment, problems) for kind in kinds]
    await deployment.start()
    targets = list(deployment.services)
    drawn = [*draw(loop.stream("faults"), targets, work_seconds)]
    for kind in playing:
        drawn += kind.faults(targets, work_seconds)
    drawn.sort(key=lambda fault: fault.at)
    faults = tuple(drawn if given is None else given)
    for fault in faults:
        loop.call_later(fault.at, inject, deployment, fault)
    await asyncio.sleep(_START_SECONDS)
    working = asyncio.gather(*(client for kind in playing for client in kind.clients(work_seconds)))
    while not working.done() and not problems.found:
        await asyncio.sleep(1.0)
    await _settle(loop, playing, problems, max([work_seconds, *(fault.ends_at for fault in faults)]))
    if not problems.found:
        for kind in playing:
            kind.conclude()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    found = (*problems.found, *(f"{where} failed: {error!r}" for _, where, _, error in loop.failures))
    await deployment.stop()
    for kind in playing:
        kind.close()
    return Verdict(seed, found, faults, format_history(loop.history), loop.steps)


def _shape(loop: SimLoop) -> Shape:
    dice = loop.stream("shape")
    return Shape(
        gateways=dice.choice((1, 2)),
        workers=dice.choice((1, 2, 3)),
        keepers=dice.choice((1, 1, 2)),
        slots=dice.choice((1, 2, 4)),
    )


async def _settle(loop: SimLoop, kinds: Sequence[Kind], problems: Problems, faults_end: float) -> None:
    """Until everything has ended, or had its time."""
    while not problems.found and loop.elapsed() < faults_end + _SETTLE_SECONDS:
        await asyncio.sleep(2.0)
        if loop.elapsed() > faults_end and all(kind.is_settled for kind in kinds):
            return


def shrink(
    verdict: Verdict, kinds: Sequence[type[Kind]] | None = None, play: Callable[..., Verdict] = simulate
) -> Verdict:
    """Leave out one fault after another as long as it still fails. O(n²) simulations for n faults."""
    best = verdict
    at = 0
    while at < len(best.faults):
        fewer = play(best.seed, best.faults[:at] + best.faults[at + 1 :], kinds)
        if fewer.failed:
            best = fewer
        else:
            at += 1
    return best
