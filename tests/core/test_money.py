"""Money: what comes in is what is kept, and what is shown never flatters the service."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.money import (
    AmountError,
    charge_on_failure,
    charge_on_success,
    check_amount,
    minimum_fee,
    parse_credit,
    parse_usd,
    usd_down,
    usd_exact,
    usd_up,
)

LARGEST = 999_999_999_999_900

#: PRICED-39, as it stands there.
WORKED = [
    # max_cost_usd, reserved, reserved div 50, fee, fee shown, charge on failure, refund on failure
    ("0.0001", 100, 2, 5_000, "0.0050", 100, 0),
    ("0.0010", 1_000, 20, 5_000, "0.0050", 1_000, 0),
    ("0.0100", 10_000, 200, 5_000, "0.0050", 5_000, 5_000),
    ("0.2500", 250_000, 5_000, 5_000, "0.0050", 5_000, 245_000),
    ("0.2501", 250_100, 5_002, 5_002, "0.0051", 5_002, 245_098),
    ("0.2600", 260_000, 5_200, 5_200, "0.0052", 5_200, 254_800),
    ("1.0000", 1_000_000, 20_000, 20_000, "0.0200", 20_000, 980_000),
    ("1.2345", 1_234_500, 24_690, 24_690, "0.0247", 24_690, 1_209_810),
    ("4.9999", 4_999_900, 99_998, 99_998, "0.1000", 99_998, 4_899_902),
    ("5.0000", 5_000_000, 100_000, 100_000, "0.1000", 100_000, 4_900_000),
    ("100.0000", 100_000_000, 2_000_000, 100_000, "0.1000", 100_000, 99_900_000),
]


@pytest.mark.parametrize(
    ("max_cost_usd", "reserved", "share", "fee", "fee_shown", "charge", "refund"),
    WORKED,
    ids=[row[0] for row in WORKED],
)
def test_a_worked_example_comes_out_as_written(
    max_cost_usd: str, reserved: int, share: int, fee: int, fee_shown: str, charge: int, refund: int
) -> None:
    """PRICED-35, PRICED-36, PRICED-37, PRICED-38, PRICED-39"""
    assert parse_usd(max_cost_usd) == reserved
    assert reserved // 50 == share
    assert minimum_fee(reserved) == fee
    assert usd_up(fee) == fee_shown
    assert charge_on_failure(fee, reserved) == charge
    assert reserved - charge == refund
    assert usd_exact(reserved) == max_cost_usd


@pytest.mark.parametrize(
    ("text", "usd_micros"),
    [
        ("0.0157", 15_700),  # by way of a double this is 15_699
        ("0.0001", 100),
        ("0.2900", 290_000),
        ("1.1000", 1_100_000),
        ("10.0000", 10_000_000),
        ("123456789.0123", 123_456_789_012_300),
        ("999999999.9999", LARGEST),
    ],
)
def test_an_amount_is_read_exactly(text: str, usd_micros: int) -> None:
    """PRICED-34, PRICED-35"""
    assert parse_usd(text) == parse_credit(text) == usd_micros
    assert usd_micros <= MAX_AMOUNT_USD_MICROS


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0.0000",
        "0",
        "1",
        "1.",
        ".2500",
        "0.25",
        "0.250",
        "0.25000",
        "00.2500",
        "01.0000",
        "-0.2500",
        "+0.2500",
        " 0.2500",
        "0.2500 ",
        "0.2500\n",
        "0.2500\x00",
        "0,2500",
        "1_0.0000",
        "1,000.0000",
        "1e1.0000",
        "1.00e1",
        "1E-4",
        "0x1.0000",
        "1000000000.0000",
        "9999999999.9999",
        "9" * 5000 + ".0000",
        "NaN",
        "Infinity",
        "$1.0000",
        "1.0000 USD",
        "٠.٢٥٠٠",
        "0.٢500",
        "1٢.0000",
        "１.0000",
        "0.250৪",
        "0．2500",
        "²3.0000",
    ],
)
def test_whatever_is_outside_the_grammar_is_refused_and_not_repeated(text: str) -> None:
    """PRICED-34, PRICED-171"""
    for parse in (parse_usd, parse_credit):
        with pytest.raises(ValueError, match=r"^must be ") as caught:
            parse(text)
        assert "0.2500" in str(caught.value) or text == "0.0000"  # how to write it: the same for every text
        assert len(str(caught.value)) < 100


@given(st.integers(1, LARGEST // 100).map(lambda steps: steps * 100))
def test_what_is_written_is_read_back_as_the_same(usd_micros: int) -> None:
    """PRICED-35, PRICED-36"""
    text = usd_exact(usd_micros)
    assert parse_usd(text) == usd_micros == Decimal(text) * 1_000_000
    assert usd_up(usd_micros) == usd_down(usd_micros) == text


@given(st.integers(-MAX_AMOUNT_USD_MICROS, MAX_AMOUNT_USD_MICROS))
@example(0)
@example(-1)
@example(-99)
@example(-100)
@example(MAX_AMOUNT_USD_MICROS)
def test_charges_are_shown_rounded_up_and_budgets_rounded_down(usd_micros: int) -> None:
    """PRICED-36"""
    exact = Decimal(usd_micros).scaleb(-6)
    step = Decimal("0.0001")
    up, down = exact.quantize(step, ROUND_CEILING), exact.quantize(step, ROUND_FLOOR)
    assert (Decimal(usd_up(usd_micros)), Decimal(usd_down(usd_micros))) == (up, down)
    assert all(len(text.partition(".")[2]) == 4 for text in (usd_up(usd_micros), usd_down(usd_micros)))


@pytest.mark.parametrize(
    ("usd_micros", "up", "down"),
    [
        (0, "0.0000", "0.0000"),
        (1, "0.0001", "0.0000"),
        (99, "0.0001", "0.0000"),
        (100, "0.0001", "0.0001"),
        (101, "0.0002", "0.0001"),
        (5_002, "0.0051", "0.0050"),
        (99_998, "0.1000", "0.0999"),
        (9_999_999, "10.0000", "9.9999"),
        (-1, "0.0000", "-0.0001"),
        (-250_000, "-0.2500", "-0.2500"),
        (MAX_AMOUNT_USD_MICROS, "9000000000.0000", "9000000000.0000"),
    ],
)
def test_an_amount_is_shown_with_four_decimals(usd_micros: int, up: str, down: str) -> None:
    """PRICED-36"""
    assert (usd_up(usd_micros), usd_down(usd_micros)) == (up, down)


def test_a_reserved_amount_between_two_steps_is_a_defect() -> None:
    """PRICED-36"""
    assert usd_exact(0) == "0.0000"
    for usd_micros in (1, 99, 250_001):
        with pytest.raises(AmountError):
            usd_exact(usd_micros)


@given(st.integers(1, MAX_AMOUNT_USD_MICROS), st.integers(0, 2 * MAX_AMOUNT_USD_MICROS))
def test_nobody_is_charged_more_than_was_reserved(reserved: int, actual: int) -> None:
    """PRICED-8, PRICED-37, PRICED-38"""
    fee = minimum_fee(reserved)
    assert 5_000 <= fee <= 100_000
    assert charge_on_failure(fee, reserved) == min(fee, reserved)
    assert charge_on_success(actual, reserved) == min(actual, reserved)


NO_AMOUNTS: list[Any] = [True, False, 1.0, 5.5, float("nan"), "1", b"1", None, Decimal(1), [1]]


@pytest.mark.parametrize("value", NO_AMOUNTS, ids=repr)
def test_only_a_whole_number_is_an_amount(value: Any) -> None:
    """PRICED-33, PRICED-40"""
    with pytest.raises(AmountError):
        check_amount(value, at_least=0)
    with pytest.raises(AmountError):
        minimum_fee(value)
    with pytest.raises(AmountError):
        charge_on_success(value, 100)
    with pytest.raises(AmountError):
        charge_on_success(100, value)
    with pytest.raises(AmountError):
        charge_on_failure(value, 100)
    with pytest.raises(AmountError):
        charge_on_failure(100, value)


def test_an_amount_has_bounds() -> None:
    """PRICED-40"""
    assert check_amount(0, at_least=0) == 0
    assert check_amount(1, at_least=1) == 1
    assert check_amount(MAX_AMOUNT_USD_MICROS, at_least=1) == MAX_AMOUNT_USD_MICROS
    for value, at_least in ((0, 1), (-1, 0), (-50, 1), (MAX_AMOUNT_USD_MICROS + 1, 0), (2**63, 0)):
        with pytest.raises(AmountError):
            check_amount(value, at_least=at_least)


def test_a_pack_cannot_report_a_cost_below_zero() -> None:
    """PRICED-40: it would pay the tenant out."""
    with pytest.raises(AmountError):
        charge_on_success(-1, 250_000)
