"""Durations and instants on the command line: `30s`, `2h`, `2026-12-01T09:00` (CLI-8)."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.core.durations import date_time_of_text, duration_of_text, instant_of, is_number_text

__all__ = ["DURATION", "INSTANT", "PAST", "DurationType", "InstantType"]


if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
else:  # not generic in the oldest click that is supported
    _Seconds = click.ParamType


class DurationType(_Seconds):
    """A duration: `30s`, `1h30m`, or a bare number of seconds. The command receives seconds."""

    name = "duration"

    def __init__(self, *, seconds_min: float = 0.0, seconds_max: float = math.inf, is_above: bool = False) -> None:
        """`is_above`: the minimum itself is refused, too."""
        self._seconds_min, self._seconds_max, self._is_above = seconds_min, seconds_max, is_above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            seconds = duration_of_text(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if not self._seconds_min <= seconds <= self._seconds_max or (self._is_above and seconds == self._seconds_min):
            least = "above" if self._is_above else "at least"
            most = "" if self._seconds_max == math.inf else f" and at most {self._seconds_max:g} s"
            self.fail(f"{value!r} must be {least} {self._seconds_min:g} s{most}", param, ctx)
        return seconds


class InstantType(_Seconds):
    """An instant: RFC 3339 text, a date and time in this machine's time zone, or unix seconds. The command receives
    unix seconds.

    With `is_past`, a duration is accepted as well and means that long ago.
    """

    name = "instant"

    def __init__(self, *, is_past: bool) -> None:
        self._is_past = is_past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if is_number_text(value):
            return self._checked(float(value), param, ctx)
        try:
            # A naive time is local: `timestamp` asks the operating system for the offset that applied at that time.
            return self._checked(date_time_of_text(_with_time(value)).timestamp(), param, ctx)
        except (ValueError, OverflowError):
            if not self._is_past:
                self.fail(f"{value!r} must be a time such as 2026-12-01T09:00, or unix seconds", param, ctx)
        try:
            return max(time.time() - duration_of_text(value), 0.0)
        except ValueError:
            how = "a duration such as 2h (that long ago), a time such as 2026-12-01T09:00, or unix seconds"
            self.fail(f"{value!r} must be {how}", param, ctx)

    def _checked(self, seconds: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return instant_of(seconds)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _with_time(text: str) -> str:
    """Complete a date to its first moment."""
    return f"{text}T00:00" if len(text) == len("2026-12-01") and text.count("-") == 2 else text


DURATION = DurationType()
#: For times in the future as well.
INSTANT = InstantType(is_past=False)
#: For times in the past, where a duration means that long ago.
PAST = InstantType(is_past=True)
