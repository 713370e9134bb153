"""Instants of priced runs: integer microseconds of unix time, and their text form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["SECOND_US", "iso", "utc"]

SECOND_US: Final = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(at_us: int) -> datetime:
    """Convert exactly: a double of seconds would be off by some tenths of a microsecond."""
    return _EPOCH + timedelta(microseconds=at_us)


def iso(at_us: int) -> str:
    """Return `2026-02-13T00:00:05Z`, with six decimals unless they are zero, so that two different instants differ
    in text."""
    return utc(at_us).isoformat().removesuffix("+00:00") + "Z"
