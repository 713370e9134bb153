"""Proof that the simulator finds defects: each is put into the product, and has to be noticed."""

from __future__ import annotations

import os

import pytest

from simulation.many import DEFECTS, find_failure

#: Most are found within ten; some need two faults to meet. The goal was 10,000.
_SEEDS_MAX = 1_000


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_past_is_found(defect: str) -> None:
    seed = find_failure(range(1, _SEEDS_MAX + 1), len(os.sched_getaffinity(0)), defect)
    assert seed is not None, f"{_SEEDS_MAX} seeds did not find it"
    print(f"{defect}: found by seed {seed}")
