"""Figures side by side. A figure alone says nothing on a noisy machine; a ratio within one run does."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["heading", "markdown", "median", "percentiles", "spread", "table"]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}"


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return tuple(ordered[min(int(len(ordered) * part), len(ordered) - 1)] for part in (0.5, 0.95, 0.99))  # type: ignore[return-value]


def heading(text: str) -> None:
    print(f"\n== {text}")


def table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))


def markdown(rows: Sequence[Sequence[str]]) -> None:
    """The same, as it stands in a page."""
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |")
        if number == 0:
            print("|" + "---|" * len(row))
