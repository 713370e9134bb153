"""Another program holds the CPUs: new work is asked for late, results are told at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import Scene, scene

_WAIT_SECONDS = 30.0
#: What a result may take on a machine without a free CPU.
_RESULT_SECONDS = 5.0


@full_only  # its quick forms: test_tcp_worker_stops.py, test_program_lane.py
@pytest.mark.parametrize("kind", ["worker over TCP", "native worker"])
async def test_a_busy_machine_asks_for_work_late_and_tells_results_at_once(tmp_path: Path, kind: str) -> None:
    """P31: GRID-70"""
    with proof("P31", f"busy CPUs, {kind}") as found:
        settings = {"WORKER_MAX_PAR": "1", "WORKER_CPU_CAP": "0.75", "WORKER_CPU_WAIT_SEC": f"{_WAIT_SECONDS:g}"}
        async with scene(tmp_path, env=settings) as grid, grid.client("clientA") as client:
            with _busy_cpus():
                (grid.start_worker if kind == "worker over TCP" else grid.start_native)()
                asks = [grid.job(0.5) for _ in range(3)]
                futures = [await client.submit(ask) for ask in asks]
                late = []
                for ask, future in zip(asks, futures, strict=True):
                    result = await future
                    assert result.status == "COMPLETED"
                    late.append(time.time() - _at(grid, "end", ask.job_id))
                pauses = [
                    _at(grid, "begin", after.job_id) - _at(grid, "end", before.job_id)
                    for before, after in itertools.pairwise(asks)
                ]
            found.note(
                results_after=[round(each, 2) for each in late], next_start_after=[round(each, 1) for each in pauses]
            )
            assert max(late) < _RESULT_SECONDS
            # A moment in which the CPUs are free gives the credit back sooner; never later than this.
            assert max(pauses) <= _WAIT_SECONDS + _RESULT_SECONDS
            assert min(pauses) > 1.0
            await grid.assert_exact([ask.job_id for ask in asks])


def _at(grid: Scene, word: str, job_id: str) -> float:
    (at,) = [mark.at for mark in grid.marks.all() if (mark.word, mark.job_id) == (word, job_id)]
    return at


@contextlib.contextmanager
def _busy_cpus() -> Iterator[None]:
    """One process for each, and one more."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range((os.cpu_count() or 1) + 1)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
