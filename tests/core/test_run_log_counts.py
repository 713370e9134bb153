"""What processes report of the lines that they have captured, and the sum of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pyoco_server.core.run_log.counts import LogTotals, are_counts


def report(stdout: int, dropped: int = 0) -> dict[str, Any]:
    return LogTotals(Counter(stdout=stdout), 10 * stdout, Counter(limit=dropped)).document()


def test_the_sum_never_falls_whichever_processes_come_and_go() -> None:
    """LOG-28"""
    total, seen = LogTotals(), list[tuple[int, int, int]]()
    for reports in (
        {("a", "1"): report(5)},
        {("a", "1"): report(7, 2), ("b", "1"): report(1)},
        {("a", "2"): report(1), ("b", "1"): report(1)},
        {("a", "2"): report(1)},
        {},
        {("b", "2"): report(4, 1)},
    ):
        total.add(reports.items())
        seen.append((total.lines["stdout"], total.bytes, total.dropped["limit"]))
    assert seen == [(5, 50, 0), (8, 80, 2), (9, 90, 2), (9, 90, 2), (9, 90, 2), (13, 130, 3)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"lines": {}, "dropped": {}, "bytes": -1},
        {"lines": {"stdout": "1"}, "dropped": {}, "bytes": 1},
        {"lines": {}, "dropped": [], "bytes": 1},
        {"lines": {str(n): 1 for n in range(101)}, "dropped": {}, "bytes": 1},
    ],
)
def test_anything_else_is_no_report(value: object) -> None:
    assert not are_counts(value)
    assert are_counts(report(1))
