"""What a storm came to, for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from storm.book import Book, Kind
from storm.oracle import Judgement
from storm.storm import Gust

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    layout: str
    seed: int
    seconds: float
    gusts: Sequence[Gust]
    book: Book
    judgement: Judgement
    #: By process: the codes with which it ended by itself.
    exits: Mapping[str, Sequence[int]]
    #: By process: how often SIGTERM alone did not end it.
    forced: Mapping[str, int]
    folder: Path

    @property
    def violations(self) -> list[str]:
        return [problem for gust in self.gusts for problem in gust.problems] + self.judgement.violations

    def lines(self) -> list[str]:
        return [
            f"== layout {self.layout}, seed {self.seed}, {self.seconds:.0f} s of storm ==",
            *self._faults(),
            *self._runs(),
            *self._answers(),
            *self._verdict(),
        ]

    def _faults(self) -> list[str]:
        """Two that struck together share the way back."""
        ways: defaultdict[str, list[Gust]] = defaultdict(list)
        for gust in self.gusts:
            for struck in gust.struck:
                ways[struck.fault].append(gust)
        head = f"{'fault':<16}{'struck':>7}  {'first yes p50/max':>19}  {'works again p50/max':>20}"
        rows = [head]
        for name, gusts in sorted(ways.items()):
            yes = [max(gust.accepts.values(), default=0.0) for gust in gusts]
            again = [gust.recovered for gust in gusts]
            rows.append(f"{name:<16}{len(gusts):>7}  {_of(yes):>19}  {_of(again):>20}")
        return rows

    def _runs(self) -> list[str]:
        rows = [f"{'kind':<10}{'accepted':>9}{'COMPLETED':>11}{'FAILED':>8}{'CANCELLED':>11}{'open':>6}"]
        for kind in Kind:
            count = sum(run.kind is kind for run in self.book.runs.values())
            ends = self.judgement.ends[kind]
            rows.append(
                f"{kind:<10}{count:>9}{ends['COMPLETED']:>11}{ends['FAILED']:>8}{ends['CANCELLED']:>11}"
                f"{count - ends.total():>6}"
            )
        return rows

    def _answers(self) -> list[str]:
        book, judged = self.book, self.judgement
        exits = Counter(f"{name} ({code})" for name, codes in self.exits.items() for code in codes)
        return [
            f"answers: refused {dict(book.refused)}, unanswered {book.unanswered}, sent again {book.repeated}",
            f"readings: {book.spied.total()} of the other tenant's, older than known {dict(book.stale)}",
            f"quiet {judged.seconds:.1f} s after the storm; {judged.letters} dead letters; history of {judged.writes} "
            f"writes on {judged.keys} keys; ended by themselves: {dict(exits) or 'none'}; "
            f"killed after SIGTERM: {dict(self.forced) or 'none'}",
        ]

    def _verdict(self) -> list[str]:
        if not self.violations:
            return ["violations: none"]
        return [f"violations: {len(self.violations)}", *(f"  {each}" for each in self.violations)]


def _of(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} / {max(seconds):.1f} s" if seconds else "-"
