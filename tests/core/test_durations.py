"""Durations and instants of requests and command lines (section 0 of the contract)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.durations import (
    DURATION_SECONDS_MAX,
    date_time_of_text,
    duration_of,
    duration_of_text,
    instant_of,
)

TOKYO = ZoneInfo("Asia/Tokyo")
BERLIN = ZoneInfo("Europe/Berlin")
NINE_IN_TOKYO = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (30, 30.0),
        (0, 0.0),
        (0.25, 0.25),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("0.1s", 0.1),
        ("1.5h", 5400.0),
        ("1m1m", 120.0),
        ("2d", 172800.0),
        ("1w", 604800.0),
        ("1m500ms", 60.5),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_text_with_units(written: object, seconds: float) -> None:
    assert duration_of(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "", "30", "s", "-30s", "+30s", "30 s", "30S", "1h30", "h1", "1e3s", ".5s", "5.s", "٣s", "30s\n",
        "1" * 63 + "ms", "9" * 20 + "w", -1, float("nan"), float("inf"), 10**400, DURATION_SECONDS_MAX + 1,
        True, None, [], {},
    ],
)  # fmt: skip
def test_anything_else_is_refused_as_a_duration(written: object) -> None:
    with pytest.raises(ValueError, match="must"):
        duration_of(written)


@given(st.text(alphabet="0123456789.smhdw", max_size=12))
def test_text_is_a_duration_exactly_when_it_has_the_form_of_the_contract(text: str) -> None:
    is_duration = re.fullmatch(r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+", text) is not None
    assert is_duration == (_refusal_of(text) in {None, "must not be negative, and not longer than a century"})


def _refusal_of(text: str) -> str | None:
    try:
        duration_of(text)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("0.5", 0.5), ("30s", 30.0), ("1h", 3600.0)])
def test_on_a_command_line_a_bare_number_is_seconds(text: str, seconds: float) -> None:
    """CLI-8"""
    assert duration_of_text(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1e3", "nan", "inf", "0x10", "1_000", " 30", "30 "])
def test_a_bare_number_has_no_sign_and_no_exponent(text: str) -> None:
    """CLI-8"""
    with pytest.raises(ValueError, match="seconds"):
        duration_of_text(text)


@pytest.mark.parametrize(
    ("written", "zone", "seconds"),
    [
        (1796101200, None, 1796101200.0),
        (1796101200.5, None, 1796101200.5),
        ("2026-12-01T09:00:00+09:00", None, NINE_IN_TOKYO),
        ("2026-12-01T00:00:00Z", None, NINE_IN_TOKYO),
        ("2026-12-01t00:00:00.250z", None, NINE_IN_TOKYO + 0.25),
        ("2026-12-01 00:00Z", None, NINE_IN_TOKYO),
        ("2026-11-30T19:00:00.123456789-05:00", None, NINE_IN_TOKYO + 0.123456),
        ("2026-12-01T09:00:00", TOKYO, NINE_IN_TOKYO),
        ("2026-12-01T09:00:00+09:00", BERLIN, NINE_IN_TOKYO),
        ("2026-03-29T02:30:00", BERLIN, datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp()),  # skipped by the clock
        ("2026-10-25T02:30:00", BERLIN, datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()),  # occurs twice
    ],
)
def test_an_instant_is_unix_seconds_or_text_with_an_offset_or_in_a_known_zone(
    written: object, zone: ZoneInfo | None, seconds: float
) -> None:
    assert instant_of(written, zone) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "2026-12-01T09:00:00", "2026-12-01", "1796101200", "tomorrow", "", "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z", "2026-12-01T24:30:00Z", "2026-12-01T09:00:60Z", "2026-12-01T09:00.5Z",
        "2026-12-01T09:00:00+0900",
        "2026-12-01T09:00:00+25:00", "2026-12-01T09:00:00 +09:00", "1969-12-31T23:59:59Z", "20261201T090000Z",
        -1, 1e12, float("nan"), float("inf"), 10**400, True, None, [],
    ],
)  # fmt: skip
def test_anything_else_is_refused_as_an_instant(written: object) -> None:
    with pytest.raises(ValueError, match="must"):
        instant_of(written)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1)),  # noqa: DTZ001 - gets its offset below
    st.integers(min_value=-14 * 60, max_value=14 * 60),
)
def test_every_rfc_3339_text_is_read_exactly(local: datetime, offset_minutes: int) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    assert instant_of(moment.isoformat()) == moment.timestamp()
    assert date_time_of_text(local.isoformat()) == local
