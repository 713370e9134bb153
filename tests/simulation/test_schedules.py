"""Schedules under faults: keepers killed between any two steps, stalled, cut off, with clocks that differ."""

from __future__ import annotations

import pytest

from simulation.schedules.kind import simulate_schedules

SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tick_has_one_run_and_one_entry(seed: int) -> None:
    """SCHED-6, SCHED-13, SCHED-16, SCHED-17, SCHED-19, SCHED-27, SCHED-28, DELAY-4"""
    verdict = simulate_schedules(seed)
    assert not verdict.failed, f"{verdict.problems}\n{verdict.history[-5000:]}"


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_every_tick_has_one_run_for_many_seeds() -> None:
    """SCHED-13"""
    for seed in range(100, 200):
        verdict = simulate_schedules(seed)
        assert not verdict.failed, f"seed {seed}\n{verdict.problems}\n{verdict.history[-5000:]}"
