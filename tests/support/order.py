"""The order of the suite when several test processes share it.

xdist (`--dist worksteal`) gives each process one contiguous share of the tests, and a process that is done steals from
the end of the largest share. So each share begins with slow files and ends with quick ones: no process is left with a
slow file when the others have finished, and tests that wait run beside tests that compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, groupby

import pytest

__all__ = ["shared_out"]

#: A simulation never frees what the processes that it killed had held, and a large heap slows down all tests after it.
_LAST = "tests/simulation/test_seeds.py"

#: One process runs all of these, because they share a browser and deployments.
_BROWSER = "tests/browser/"
#: Browsers, whole deployments, real processes, and the longest single tests.
_SLOW = (
    _BROWSER,
    "tests/repository/test_docs_examples.py",
    "tests/system/",
    "tests/grid/",
    "tests/storm_tests/",
    "tests/repository/",
    "tests/doors/test_schemathesis.py",
)
#: Thousands of tests of a few milliseconds each, the best ones to steal.
_QUICK = (
    "tests/core/",
    "tests/repository/test_docs.py",
    "tests/repository/test_glossary.py",
    "tests/repository/test_rules.py",
)


def shared_out(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests with the shares of `processes` processes one after another. O(n log n) for n tests."""
    last = [item for item in items if item.nodeid.startswith(_LAST)]
    rest = (item for item in items if not item.nodeid.startswith(_LAST))
    files = sorted((list(file) for _, file in groupby(rest, key=lambda item: item.nodeid.split("::")[0])), key=_rank)
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    turns = cycle(shares[1:] or shares)
    quick: list[pytest.Item] = []
    for file in files:
        if file[0].nodeid.startswith(_BROWSER):
            shares[0] += file
        elif _rank(file) < len(_SLOW):
            next(turns).extend(file)
        elif file[0].nodeid.startswith(_QUICK):
            quick += file
        else:
            min(shares, key=len).extend(file)
    left = len(items)
    for number, share in enumerate(shares):
        size = left // (processes - number)  # as xdist cuts the list
        ends = last[number::processes]
        missing = max(0, size - len(share) - len(ends))
        share.extend(quick[:missing] + ends)
        del quick[:missing]
        left -= size
    return [item for share in [*shares, quick] for item in share]


def _rank(file: Sequence[pytest.Item]) -> int:
    """Slow files come first, in the order above, and quick ones last."""
    name = file[0].nodeid
    if name.startswith(_QUICK):
        return len(_SLOW) + 1
    return next((rank for rank, prefix in enumerate(_SLOW) if name.startswith(prefix)), len(_SLOW))
