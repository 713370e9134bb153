"""What was measured, by figure and by contender, and how it is shown: a median, its spread, and a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.report import median

__all__ = ["FIGURES", "OURS", "Figure", "Findings", "page_of", "reasons_of", "rows_of"]

#: Whom everybody is compared with.
OURS = "pyoco-server"


@dataclass(frozen=True)
class Figure:
    """One thing that is measured."""

    name: str
    heading: str
    #: The head of its column.
    short: str
    unit: str
    more_is_better: bool = True


FIGURES = (
    Figure("http 1", "submit over HTTP, 1 connection", "1 connection", "accepted/s"),
    Figure("http 32", "submit over HTTP, 32 connections", "32 connections", "accepted/s"),
    Figure("call 1", "the library's call alone, no HTTP, 1 caller", "1 caller", "accepted/s"),
    Figure("call 32", "the library's call alone, no HTTP, 32 callers", "32 callers", "accepted/s"),
    Figure("noop 1", "drain of empty jobs, 1 worker process", "empty, 1 process", "ended/s"),
    Figure("noop 2", "drain of empty jobs, 2 worker processes", "empty, 2", "ended/s"),
    Figure("chain 1", "drain of three steps, 1 worker process", "three steps, 1", "ended/s"),
    Figure("chain 2", "drain of three steps, 2 worker processes", "three steps, 2", "ended/s"),
    Figure("p50", "from submit to the end that is seen, p50", "p50", "ms", more_is_better=False),
    Figure("p95", "from submit to the end that is seen, p95", "p95", "ms", more_is_better=False),
    Figure("p99", "from submit to the end that is seen, p99", "p99", "ms", more_is_better=False),
)


@dataclass
class Findings:
    """Values by figure and contender, a value per round; and why there are none."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, contender: str, found: dict[str, float]) -> None:
        for name, value in found.items():
            self.values.setdefault((name, contender), []).append(value)

    def fail(self, contender: str, names: Sequence[str], why: str) -> None:
        for name in names:
            self.failures.setdefault((name, contender), " ".join(why.split()))

    def ratio(self, figure: Figure, contender: str) -> float | None:
        """How many times better ours is: above 1, ours is ahead, whatever the unit. Of medians."""
        ours, theirs = (self.values.get((figure.name, name), []) for name in (OURS, contender))
        if not ours or not theirs:
            return None
        mine, other = median(ours), median(theirs)
        upper, lower = (mine, other) if figure.more_is_better else (other, mine)
        return upper / lower if lower else None


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def rows_of(figure: Figure, findings: Findings, contenders: Sequence[str]) -> list[tuple[str, ...]]:
    """Ours first, then the best of the others downwards, then those that failed in one of the rounds."""
    rows: list[tuple[str, ...]] = [(figure.heading, figure.unit, "spread", "ours is")]
    measured = [name for name in contenders if findings.values.get((figure.name, name))]
    order = sorted(measured, key=lambda name: median(findings.values[figure.name, name]), reverse=figure.more_is_better)
    order.sort(key=lambda name: name != OURS)
    for name in order:
        values, ratio = findings.values[figure.name, name], findings.ratio(figure, name)
        times = "" if name == OURS or ratio is None else f"{ratio:.2f} x"
        rows.append((name, _shown(median(values)), f"{_shown(min(values))} to {_shown(max(values))}", times))
    rows += [(name, "failed", "", "") for name in contenders if (figure.name, name) in findings.failures]
    return rows


def page_of(names: Sequence[str], findings: Findings, contenders: Sequence[str]) -> list[str]:
    """The lines of one Markdown table for docs/benchmarks.md: a row for each contender, a column for each figure, and
    in brackets how many times better ours is. Empty where nobody has a value."""
    figures = [each for each in FIGURES if each.name in names and any(name == each.name for name, _ in findings.values)]
    if not figures:
        return []
    lines = [f"| | {' | '.join(f'{each.short}, {each.unit}' for each in figures)} |", "|---" * (len(figures) + 1) + "|"]
    for contender in contenders:
        cells = [_cell(figure, findings, contender) for figure in figures]
        if any(cells):
            bold = "**" if contender == OURS else ""
            lines.append(f"| {bold}{contender}{bold} | {' | '.join(cell and bold + cell + bold for cell in cells)} |")
    return lines


def _cell(figure: Figure, findings: Findings, contender: str) -> str:
    values, ratio = findings.values.get((figure.name, contender)), findings.ratio(figure, contender)
    if not values:
        return "failed" if (figure.name, contender) in findings.failures else ""
    return _shown(median(values)) + ("" if contender == OURS or ratio is None else f" ({ratio:.2f})")


def reasons_of(figure: Figure, findings: Findings, contenders: Sequence[str]) -> list[str]:
    """Why those that failed have."""
    found = ((name, findings.failures.get((figure.name, name))) for name in contenders)
    return [f"{name}: {why}" for name, why in found if why is not None]
