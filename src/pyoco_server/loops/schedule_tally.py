"""Counts what becomes of the ticks of schedules, as a gateway sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyoco_server.core.schedules.progress import is_overdue
from pyoco_server.core.schedules.record import Outcome, Schedule
from pyoco_server.ports.schedules.port import Schedules

__all__ = ["ScheduleFigures", "ScheduleTally"]


@dataclass(frozen=True)
class ScheduleFigures:
    """SCHED-20"""

    #: Schedules by whether they are paused.
    paused: dict[str, int] = field(default_factory=dict)
    overdue: int = 0
    #: Handled ticks since this gateway began, by outcome.
    outcomes: dict[str, int] = field(default_factory=dict)


class ScheduleTally:
    """Receives every change of a schedule. A schedule is counted from the first change that is received."""

    def __init__(self, schedules: Schedules, clock: Callable[[], float]) -> None:
        self._schedules, self._clock = schedules, clock
        self._outcomes: Counter[str] = Counter({outcome.value: 0 for outcome in Outcome})
        #: Entries and waiting ticks that were counted, by schedule id.
        self._seen: dict[str, tuple[int, frozenset[int]]] = {each.id: _seen_of(each) for each in schedules.known()}
        schedules.listen(self.hear)

    def hear(self, schedule: Schedule) -> None:
        entries, waiting = _seen_of(schedule)
        seen, waited = self._seen.get(schedule.id, (0, frozenset()))
        self._seen[schedule.id] = entries, waiting
        self._outcomes[Outcome.WAITING] += len(waiting - waited)
        new = min(max(0, entries - seen), len(schedule.tail))
        for entry in schedule.tail[len(schedule.tail) - new :]:
            self._outcomes[entry.outcome] += entry.count or 1

    def figures(self) -> ScheduleFigures:
        known = self._schedules.known()
        if len(self._seen) > 2 * len(known) + 100:  # of deleted schedules
            self._seen = {each.id: _seen_of(each) for each in known}
        now = self._clock()
        paused = sum(each.is_paused for each in known)
        return ScheduleFigures(
            {"false": len(known) - paused, "true": paused},
            sum(is_overdue(each, now) for each in known),
            dict(sorted((str(name), count) for name, count in self._outcomes.items())),
        )


def _seen_of(schedule: Schedule) -> tuple[int, frozenset[int]]:
    return schedule.spilled + len(schedule.tail), frozenset(_ticks(schedule))


def _ticks(schedule: Schedule) -> Iterable[int]:
    return (start.tick for start in schedule.waiting)
