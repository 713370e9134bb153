"""Durations and instants in text form (section 0 of the contract): `1h30m`,
`2026-12-01T09:00:00+09:00`.

Every function returns seconds, and raises ValueError with a text that names the rule and not the value. The limits
here only keep arithmetic safe; a field that needs a smaller one checks it itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Final

__all__ = [
    "DURATION_SECONDS_MAX",
    "INSTANT_MAX",
    "date_time_of_text",
    "duration_of",
    "duration_of_text",
    "instant_of",
    "is_number_text",
]

#: A century.
DURATION_SECONDS_MAX: Final = 100 * 365.25 * 86400
#: The last second of the year 9999, the last one that has an RFC 3339 text.
INSTANT_MAX: Final = 253402300799.0

_UNITS: Final = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(7 * 86400),
}
#: `\d` would also match the digits of other scripts.
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_PART: Final = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)")
_BARE: Final = re.compile(_NUMBER)
_DATE_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)"
    r"(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
#: Longer texts are rejected without parsing.
_TEXT_LENGTH_MAX: Final = 64

_NOT_A_DURATION: Final = "must be a number of seconds, or a duration such as 30s, 500ms or 1h30m"
_NOT_AN_INSTANT: Final = "must be unix seconds, or RFC 3339 text such as 2026-12-01T09:00:00+09:00"


def duration_of(value: object) -> float:
    """Return the seconds of a duration in a JSON document: a number, or text with units."""
    if isinstance(value, str):
        return _seconds_of_parts(value)
    return _checked_duration(_number(value, _NOT_A_DURATION))


def duration_of_text(text: str) -> float:
    """Return the seconds of a duration on a command line or in a query, where a bare number is seconds as well."""
    return _checked_duration(float(text)) if is_number_text(text) else _seconds_of_parts(text)


def is_number_text(text: str) -> bool:
    """Return whether the text is a decimal number without a sign or a unit."""
    return len(text) <= _TEXT_LENGTH_MAX and _BARE.fullmatch(text) is not None


def instant_of(value: object, zone: tzinfo | None = None) -> float:
    """Return the unix seconds of an instant in a JSON document: a number, or RFC 3339 text.

    Text without an offset is read in `zone`; without a zone it is refused. A local time that a clock change skips is
    read with the offset before the change, and one that occurs twice is the first of the two.
    """
    if isinstance(value, str):
        moment = date_time_of_text(value)
        if moment.tzinfo is None:
            if zone is None:
                raise ValueError("must have an offset from UTC, such as Z or +09:00")
            moment = moment.replace(tzinfo=zone)
        return _checked_instant((moment - _EPOCH) / _SECOND)
    return _checked_instant(_number(value, _NOT_AN_INSTANT))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


def date_time_of_text(text: str) -> datetime:
    """Return the date and time of an RFC 3339 text; without an offset in the text it is naive. Seconds may be missing.

    Digits below a microsecond are dropped.
    """
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError(_NOT_AN_INSTANT)
    date, time, fraction, offset = match.groups()
    if fraction is not None and time.count(":") == 1:
        raise ValueError(_NOT_AN_INSTANT)
    written = f"{date}T{time}.{(fraction or '0')[:6].ljust(6, '0')}" if time.count(":") > 1 else f"{date}T{time}"
    try:
        return datetime.fromisoformat(written + (offset or "").upper())
    except ValueError as error:
        raise ValueError("must be a date and time of the calendar") from error


def _seconds_of_parts(text: str) -> float:
    total, end = Decimal(0), 0
    if len(text) <= _TEXT_LENGTH_MAX:
        while (part := _PART.match(text, end)) is not None:
            total += Decimal(part[1]) * _UNITS[part[2]]
            end = part.end()
    if not end or end != len(text):
        raise ValueError(_NOT_A_DURATION)
    return _checked_duration(total)


def _number(value: object, problem: str) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(problem)


def _checked_duration(seconds: float | Decimal) -> float:
    if not 0 <= seconds <= DURATION_SECONDS_MAX:  # also refuses NaN
        raise ValueError("must not be negative, and not longer than a century")
    return float(seconds)


def _checked_instant(seconds: float) -> float:
    if not 0 <= seconds <= INSTANT_MAX:  # also refuses NaN
        raise ValueError("must be an instant from 1970 to 9999")
    return float(seconds)
