"""The times of `beat_schedule`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from pyoco_server.compat.celery.refusals import refusal

__all__ = ["crontab", "when_of"]

_HINTS = {"solar": "a crontab, or an instant: `when={'at': [...]}` of a schedule", "schedule": "a number of seconds"}
_ANY = "*"


class crontab:  # noqa: N801  (Celery's name)
    """A cron expression by its fields. Each is text as in cron, a number, or several numbers."""

    def __init__(
        self,
        minute: int | str | Iterable[int] = _ANY,
        hour: int | str | Iterable[int] = _ANY,
        day_of_week: int | str | Iterable[int] = _ANY,
        day_of_month: int | str | Iterable[int] = _ANY,
        month_of_year: int | str | Iterable[int] = _ANY,
        **other: Any,
    ) -> None:
        for name in other:
            raise refusal(name, {}, "crontab")
        fields = [_field(each) for each in (minute, hour, day_of_month, month_of_year, day_of_week)]
        if not fields[2].startswith(_ANY) and not fields[4].startswith(_ANY):
            hint = "two entries, or a test of the day in the task: a schedule with both runs on either"
            raise refusal("day_of_week together with day_of_month", {"day_of_week together with day_of_month": hint})
        self.expression = " ".join(fields)

    def __repr__(self) -> str:
        return f"<crontab: {self.expression}>"


def _field(value: int | str | Iterable[int]) -> str:
    if isinstance(value, str):
        return "".join(value.split())
    return str(value) if isinstance(value, int) else ",".join(map(str, sorted(value)))


def when_of(schedule: Any) -> Mapping[str, Any]:
    """Return `when` of a schedule. Raises NotOffered."""
    if isinstance(schedule, crontab):
        return {"cron": schedule.expression}
    if isinstance(schedule, timedelta):
        return {"every": schedule.total_seconds()}
    if isinstance(schedule, int | float) and not isinstance(schedule, bool):
        return {"every": float(schedule)}
    raise refusal(type(schedule).__name__, _HINTS)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise refusal(name, _HINTS)
