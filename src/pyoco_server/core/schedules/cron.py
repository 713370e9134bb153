"""Cron expressions (SCHED-10): their parser, and the wall times that match them.

A wall time is a naive datetime, as a clock on the wall shows it. `when.py` turns it into an instant.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

__all__ = ["FIELDS", "HORIZON_DAYS", "Cron", "CronError", "parse_cron", "walls"]

#: An expression without a tick within 8 years is refused.
HORIZON_DAYS: Final = 8 * 366
#: Longer expressions are no ones that anybody writes.
_LENGTH_MAX: Final = 200
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_WORD: Final = re.compile(r"\S+")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_MISSING: Final = "a value is missing", "値がありません"

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    #: The value of the first name.
    first: int = 0


FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day-of-month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("day-of-week", 0, 7, _DAYS),
)


class CronError(ValueError):
    """What is wrong, in both languages, in which field, and at which character of the expression (0-based)."""

    def __init__(self, message: str, message_ja: str, field: str | None, position: int) -> None:
        super().__init__(message)
        self.message_ja, self.field, self.position = message_ja, field, position


@dataclass(frozen=True)
class Cron:
    """The values that match, each sorted. Days of the week are 0 (Sunday) to 6."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    #: Whether the field is restricted: it does not begin with `*`.
    has_days: bool
    has_weekdays: bool

    def matches_date(self, day: date) -> bool:
        """When both day fields are restricted, either of them matches."""
        if day.month not in self.months:
            return False
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return is_day or is_weekday if self.has_days and self.has_weekdays else is_day and is_weekday


def parse_cron(text: str) -> Cron:
    """Parse 5 or 6 fields, or one of the `@` words except `@every`. Raises CronError."""
    if len(text) > _LENGTH_MAX:
        message, message_ja = f"has at most {_LENGTH_MAX} characters", f"{_LENGTH_MAX}文字以内で指定してください"
        raise CronError(message, message_ja, None, _LENGTH_MAX)
    stripped = text.strip()
    if stripped.startswith("@"):
        macro = MACROS.get(stripped.lower())
        if macro is None:
            known = ", ".join(MACROS)
            message_ja = f"{stripped[:20]} は使えません。使えるもの: {known}"
            raise CronError(f"{stripped[:20]} is unknown; there are: {known}", message_ja, None, text.index("@"))
        return parse_cron(macro)
    words = [(match[0], match.start()) for match in _WORD.finditer(text)]
    if len(words) not in {5, 6}:
        message = "must have 5 fields (minute hour day-of-month month day-of-week), or 6 with seconds first"
        message_ja = f"5個（分 時 日 月 曜日）、または秒を先頭に加えた6個の値が必要です（現在{len(words)}個）"
        raise CronError(f"{message}; it has {len(words)}", message_ja, None, 0 if len(words) < 5 else words[6][1])
    fields = FIELDS if len(words) == 6 else FIELDS[1:]
    values = [_values(field, word, at) for field, (word, at) in zip(fields, words, strict=True)]
    if len(words) == 5:
        values.insert(0, (0,))
    days, weekdays = words[-3][0], words[-1][0]
    return Cron(
        seconds=values[0],
        minutes=values[1],
        hours=values[2],
        days=values[3],
        months=values[4],
        weekdays=tuple(sorted({day % 7 for day in values[5]})),
        has_days=not days.startswith("*"),
        has_weekdays=not weekdays.startswith("*"),
    )


def _values(field: _Field, word: str, at: int) -> tuple[int, ...]:
    found: set[int] = set()
    for part in word.split(","):
        found |= _part(field, part, at)
        at += len(part) + 1
    return tuple(sorted(found))


def _part(field: _Field, part: str, at: int) -> set[int]:
    """Parse `*`, a value, a range, or one of them with a step."""
    span, slash, step_text = part.partition("/")
    first_text, dash, last_text = span.partition("-")
    if not span:
        raise CronError(*_MISSING, field.name, at)
    if span == "*":
        first, last = field.least, field.most - (field.name == "day-of-week")
    else:
        first = _value(field, first_text, at)
        last = first
        if dash:
            last = _value(field, last_text, at + len(first_text) + 1)
            if field.name == "day-of-week" and last == 0 < first:  # Sunday as the end of a range is 7
                last = 7
        if last < first:
            raise CronError(f"the range {span} is reversed", f"範囲 {span} の前後が逆です", field.name, at)
    if not slash:
        return set(range(first, last + 1))
    place = at + len(span) + 1
    if span != "*" and not dash:
        raise CronError("a step needs * or a range before it", "間隔の前には * か範囲が必要です", field.name, at)
    step = int(step_text) if _NUMBER.fullmatch(step_text) else 0
    if not 1 <= step <= field.most - field.least + 1:
        most = field.most - field.least + 1
        raise CronError(f"the step must be from 1 to {most}", f"間隔は1から{most}までです", field.name, place)
    return set(range(first, last + 1, step))


def _value(field: _Field, text: str, at: int) -> int:
    if text.upper() in field.names:
        return field.names.index(text.upper()) + field.first
    if not _NUMBER.fullmatch(text):
        known = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        if not text:
            raise CronError(*_MISSING, field.name, at)
        message = f"{text[:20]!r} is not a value: use {field.least} to {field.most}{known}"
        message_ja = f"{text[:20]!r} は使えません。{field.least}から{field.most}までの値で指定してください"
        raise CronError(message, message_ja, field.name, at)
    if not field.least <= int(text) <= field.most:
        message = f"{int(text)} is not from {field.least} to {field.most}"
        raise CronError(message, f"{int(text)} は{field.least}から{field.most}の範囲外です", field.name, at)
    return int(text)


_DAY: Final = timedelta(days=1)
#: No day after it is looked at: the last day that there is has no next one.
_LAST_DAY: Final = date(9998, 12, 31)


def walls(cron: Cron, start: datetime) -> Iterator[datetime]:
    """Yield the matching wall times from `start` on, within the horizon. O(1) each, but for days without any in a month
    that has some."""
    day = start.date()
    floor = (start.hour, start.minute, start.second + (start.microsecond > 0))
    horizon = day.toordinal() + HORIZON_DAYS
    while day.toordinal() < horizon:
        if cron.matches_date(day):
            yield from _times(cron, day, floor)
        floor = (0, 0, 0)
        if day >= _LAST_DAY:
            return
        day = day + _DAY if day.month in cron.months else _next_month(day)


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _times(cron: Cron, day: date, floor: tuple[int, int, int]) -> Iterator[datetime]:
    """Yield the matching times of a day, from `floor` on."""
    least_hour, least_minute, least_second = floor
    for hour in cron.hours[bisect_left(cron.hours, least_hour) :]:
        from_minute = least_minute if hour == least_hour else 0
        for minute in cron.minutes[bisect_left(cron.minutes, from_minute) :]:
            is_first = hour == least_hour and minute == least_minute
            for second in cron.seconds[bisect_left(cron.seconds, least_second if is_first else 0) :]:
                yield datetime(day.year, day.month, day.day, hour, minute, second)  # noqa: DTZ001 - a wall time
