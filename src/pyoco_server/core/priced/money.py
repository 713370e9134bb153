"""Money: integer micros of a US dollar, from the text that a caller sends to the text that a caller sees (contract
section 7)."""

from __future__ import annotations

import re

from pyoco_server.core.priced.constants import (
    MAX_AMOUNT_USD_MICROS,
    MINIMUM_FEE_DIVISOR,
    MINIMUM_FEE_MAX_USD_MICROS,
    MINIMUM_FEE_MIN_USD_MICROS,
)

__all__ = [
    "AmountError",
    "charge_on_failure",
    "charge_on_success",
    "check_amount",
    "minimum_fee",
    "parse_credit",
    "parse_usd",
    "usd_down",
    "usd_exact",
    "usd_up",
]

#: PRICED-34. `\d` would also match the digits of other scripts.
_USD = re.compile(r"(0|[1-9][0-9]{0,8})\.([0-9]{4})")
#: Four decimals of a dollar: the smallest step that is displayed.
_STEP_USD_MICROS = 100
_STEPS_PER_USD = 10_000


class AmountError(ValueError):
    """An amount that must not be sent to a budget. The code that computed it is defective (PRICED-40)."""


def parse_usd(text: str) -> int:
    """Return the exact micros of an amount such as `0.2500`. Raises ValueError, which does not quote the text."""
    match = _USD.fullmatch(text)
    if match is None:
        raise ValueError("must be dollars with exactly four decimals and at most nine digits before them: 0.2500")
    usd_micros = int(match[1] + match[2]) * _STEP_USD_MICROS
    if usd_micros == 0:
        raise ValueError("must be more than nothing: at least 0.0001")
    return usd_micros


def parse_credit(text: str) -> int:
    """Parse the amount that an operator credits. It has the same form as `max_cost_usd`, so that there is only one
    to learn."""
    return parse_usd(text)


def usd_exact(usd_micros: int) -> str:
    """Format a reservation, which came in with four decimals. Raises AmountError if it has more (PRICED-36)."""
    steps, rest = divmod(usd_micros, _STEP_USD_MICROS)
    if rest:
        raise AmountError("a reserved amount has four decimals")
    return _written(steps)


def usd_up(usd_micros: int) -> str:
    """Format a charge or a fee, rounded up, so that the text never shows too little (PRICED-36)."""
    return _written(-(-usd_micros // _STEP_USD_MICROS))


def usd_down(usd_micros: int) -> str:
    """Format a balance, rounded down, so that the text never shows too much, also below zero (PRICED-36)."""
    return _written(usd_micros // _STEP_USD_MICROS)


def minimum_fee(reserved_usd_micros: int) -> int:
    """Return what a failed run costs, before the cap at its reservation: computed once, at submit (PRICED-37)."""
    share = check_amount(reserved_usd_micros, at_least=1) // MINIMUM_FEE_DIVISOR
    return min(max(MINIMUM_FEE_MIN_USD_MICROS, share), MINIMUM_FEE_MAX_USD_MICROS)


def charge_on_failure(minimum_fee_usd_micros: int, reserved_usd_micros: int) -> int:
    """Return the charge of a failed run (PRICED-38). Raises AmountError."""
    fee = check_amount(minimum_fee_usd_micros, at_least=0)
    return min(fee, check_amount(reserved_usd_micros, at_least=1))


def charge_on_success(actual_cost_usd_micros: int, reserved_usd_micros: int) -> int:
    """Return the charge of a completed run (PRICED-38). The service bears all costs above the reservation.

    Raises AmountError, because a pack may report anything.
    """
    if type(actual_cost_usd_micros) is not int or actual_cost_usd_micros < 0:
        raise AmountError("a cost is a whole number of micros, and not below zero")
    return min(actual_cost_usd_micros, check_amount(reserved_usd_micros, at_least=1))


def check_amount(value: object, *, at_least: int) -> int:
    """Return `value` if it is a valid amount for a budget. Raises AmountError: no bool, no text, nothing out of
    bounds."""
    if type(value) is not int:  # not isinstance: it accepts True as an int
        raise AmountError(f"an amount is a whole number of micros, not {type(value).__name__}")
    if not at_least <= value <= MAX_AMOUNT_USD_MICROS:
        raise AmountError(f"an amount lies between {at_least} and {MAX_AMOUNT_USD_MICROS} micros")
    return value


def _written(steps: int) -> str:
    """Format an amount for bodies and headers: the only form in which money is shown."""
    usd, fraction = divmod(abs(steps), _STEPS_PER_USD)
    return f"{'-' if steps < 0 else ''}{usd}.{fraction:04d}"
