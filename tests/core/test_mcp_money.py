"""A price that arrives as a JSON number: exactly what was written, or refused."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.money import parse_usd
from pyoco_server.core.priced.usd_number import usd_of_number


@pytest.mark.parametrize(
    ("written", "usd"),
    [
        ("0.1", "0.1000"),
        ("0.29", "0.2900"),
        ("1e-2", "0.0100"),
        ("2", "2.0000"),
        ("0.0157", "0.0157"),
        ("0.01", "0.0100"),
        ("2.5e1", "25.0000"),
        ("1e2", "100.0000"),
        ("2.00000", "2.0000"),
        ("999999999", "999999999.0000"),
        ("999999999.9999", "999999999.9999"),
    ],
)
def test_a_number_becomes_its_four_decimals(written: str, usd: str) -> None:
    """PRICED-216: the contract's vectors, and the ends"""
    assert usd_of_number(json.loads(written)) == usd
    assert usd_of_number(Decimal(written)) == usd


@pytest.mark.parametrize(
    "written",
    [
        "0.12345", "0.005", "NaN", "true", '"0.1"', "0", "-0.1", "-0.0", "0.00999", "0.0100000001", "1e-400", "1e999",
        "Infinity", "-Infinity", "null", "[]", "{}", "false", "1000000000", "1e22", "1" + "0" * 4000,
    ],
)  # fmt: skip
def test_everything_else_is_refused_and_not_repeated(written: str) -> None:
    """PRICED-216"""
    with pytest.raises(ValueError, match=r"^must ") as refused:
        usd_of_number(json.loads(written))
    assert written not in str(refused.value).replace("at least 0.01", "").replace("than 1000000000", "")


def test_a_whole_number_of_thousands_of_digits_is_refused_as_any_other() -> None:
    """PRICED-216: Python would not write it down"""
    with pytest.raises(ValueError, match=r"^must be at least"):
        usd_of_number(10**5000)


@given(st.integers(100, 9_999_999_999_999))
def test_no_amount_changes_on_its_way_through_a_double(steps: int) -> None:
    """PRICED-216: every amount that four decimals can say"""
    written = f"{steps // 10_000}.{steps % 10_000:04d}"
    assert usd_of_number(json.loads(written)) == written
    assert parse_usd(usd_of_number(json.loads(written))) == steps * 100


@given(st.floats())
def test_a_double_is_refused_or_means_what_its_text_says(number: float) -> None:
    """PRICED-216"""
    try:
        usd = usd_of_number(number)
    except ValueError:
        return
    assert Decimal(usd) == Decimal(repr(number))
