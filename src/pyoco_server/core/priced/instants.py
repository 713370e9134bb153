"""Instants of priced runs: whole microseconds of unix time, and how they are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["SECOND_US", "iso", "utc"]

SECOND_US: Final = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(at_us: int) -> datetime:
    """Exact: a double of seconds would be off by some tenths of a microsecond."""
    return _EPOCH + timedelta(microseconds=at_us)


def iso(at_us: int) -> str:
    """`2026-02-13T00:00:05Z`; an instant within a second has six more digits, so that no two look the same."""
    return utc(at_us).isoformat().removesuffix("+00:00") + "Z"
