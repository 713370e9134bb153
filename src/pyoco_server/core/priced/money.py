"""Money: whole micros of a US dollar, from the text a caller sends to the text a caller sees (contract section 7)."""

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

#: PRICED-34. `\d` would also take the digits of other scripts.
_USD = re.compile(r"(0|[1-9][0-9]{0,8})\.([0-9]{4})")
#: Four decimals of a dollar: the smallest step that is written down.
_STEP_USD_MICROS = 100
_STEPS_PER_USD = 10_000


class AmountError(ValueError):
    """An amount that no budget may be asked for. Whoever made it has a defect (PRICED-40)."""


def parse_usd(text: str) -> int:
    """The micros of an amount such as `0.2500`, exactly. Raises ValueError, which does not repeat the text."""
    match = _USD.fullmatch(text)
    if match is None:
        raise ValueError("must be dollars with exactly four decimals and at most nine digits before them: 0.2500")
    usd_micros = int(match[1] + match[2]) * _STEP_USD_MICROS
    if usd_micros == 0:
        raise ValueError("must be more than nothing: at least 0.0001")
    return usd_micros


def parse_credit(text: str) -> int:
    """What an operator gives a tenant. Written as `max_cost_usd` is, so that nobody has to learn two forms."""
    return parse_usd(text)


def usd_exact(usd_micros: int) -> str:
    """For what was reserved: that came in with four decimals. Raises AmountError if it did not (PRICED-36)."""
    steps, rest = divmod(usd_micros, _STEP_USD_MICROS)
    if rest:
        raise AmountError("a reserved amount has four decimals")
    return _written(steps)


def usd_up(usd_micros: int) -> str:
    """For charges and fees: nobody sees a smaller one than is true (PRICED-36)."""
    return _written(-(-usd_micros // _STEP_USD_MICROS))


def usd_down(usd_micros: int) -> str:
    """For budgets: nobody sees a larger one than is true, also below zero (PRICED-36)."""
    return _written(usd_micros // _STEP_USD_MICROS)


def minimum_fee(reserved_usd_micros: int) -> int:
    """What a run that fails costs, before the cap at its reservation: computed once, at submit (PRICED-37)."""
    share = check_amount(reserved_usd_micros, at_least=1) // MINIMUM_FEE_DIVISOR
    return min(max(MINIMUM_FEE_MIN_USD_MICROS, share), MINIMUM_FEE_MAX_USD_MICROS)


def charge_on_failure(minimum_fee_usd_micros: int, reserved_usd_micros: int) -> int:
    """PRICED-38. Raises AmountError."""
    fee = check_amount(minimum_fee_usd_micros, at_least=0)
    return min(fee, check_amount(reserved_usd_micros, at_least=1))


def charge_on_success(actual_cost_usd_micros: int, reserved_usd_micros: int) -> int:
    """PRICED-38: the service bears what a pack costs above the reservation, however much that is.

    Raises AmountError, for a pack may report anything.
    """
    if type(actual_cost_usd_micros) is not int or actual_cost_usd_micros < 0:
        raise AmountError("a cost is a whole number of micros, and not below zero")
    return min(actual_cost_usd_micros, check_amount(reserved_usd_micros, at_least=1))


def check_amount(value: object, *, at_least: int) -> int:
    """`value`, if a budget may be asked for it. Raises AmountError: no bool, no text, nothing beyond the bounds."""
    if type(value) is not int:  # not isinstance: True is an int there
        raise AmountError(f"an amount is a whole number of micros, not {type(value).__name__}")
    if not at_least <= value <= MAX_AMOUNT_USD_MICROS:
        raise AmountError(f"an amount lies between {at_least} and {MAX_AMOUNT_USD_MICROS} micros")
    return value


def _written(steps: int) -> str:
    """The one form in which money is shown, in bodies and in headers."""
    usd, fraction = divmod(abs(steps), _STEPS_PER_USD)
    return f"{'-' if steps < 0 else ''}{usd}.{fraction:04d}"
