"""Whole deployments under faults: a fixed set of seeds, each of which once took a different way."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from simulation.flows.defects import fenced_worker_acknowledges
from simulation.run import shrink, simulate

#: `make simulate` and the nightly run draw fresh ones.
SEEDS = range(1, 21)
#: Its faults make a worker lose its run; found by `test_defects.py`.
_FENCED_SEED = 8
#: Prints the digest of one history.
_DIGEST = "import hashlib, simulation.run as r; print(hashlib.sha256(r.simulate(9).history.encode()).hexdigest())"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_under_the_faults_of_a_seed(seed: int) -> None:
    """FLOW-19, FLOW-20, FLOW-72, FLOW-178, FLOW-184, FLOW-307, FLOW-311"""
    verdict = simulate(seed)
    assert not verdict.failed, f"make simulate SEED={seed}\n{verdict.problems}\n{verdict.history[-5000:]}"


def test_the_same_seed_gives_the_same_history_to_the_byte() -> None:
    assert simulate(7).history == simulate(7).history


def test_other_seeds_give_other_histories() -> None:
    assert simulate(7).history != simulate(8).history


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_history_does_not_depend_on_the_interpreter(hash_seed: str) -> None:
    """Sets of texts are iterated in another order with another hash seed: nothing may depend on that."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", _DIGEST], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == hashlib.sha256(simulate(9).history.encode()).hexdigest()


def test_a_failing_seed_is_shrunk_to_the_faults_that_matter() -> None:
    """The first seed that finds a worker which acknowledges what it has lost."""
    with fenced_worker_acknowledges():
        whole = simulate(_FENCED_SEED)
        smallest = shrink(whole)
    assert smallest.failed
    assert len(smallest.faults) < len(whole.faults)
    assert set(smallest.faults) <= set(whole.faults)
    assert not simulate(_FENCED_SEED, smallest.faults).failed  # without the defect the same faults do no harm
