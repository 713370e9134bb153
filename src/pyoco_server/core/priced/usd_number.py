"""Money received as a JSON number: converted to exactly the written amount, or refused (PRICED-216)."""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Final

from pyoco_server.core.priced.money import parse_usd, usd_exact

__all__ = ["MIN_USD", "usd_of_number"]

#: The smallest amount that a tool accepts.
MIN_USD: Final = Decimal("0.01")
_END_USD: Final = Decimal(10**9)
_PLACES: Final = Decimal("0.0001")


def usd_of_number(number: object) -> str:
    """Return the four-decimal text of a number: 0.1 is `0.1000`. Raises ValueError, which names the rule and not the
    value.

    The JSON parser may already have converted the number to a double. The shortest text that maps to that double is
    taken as what was written; nothing is computed with the double itself.
    """
    usd = _decimal(number)
    if usd is None or not usd.is_finite():
        raise ValueError("must be a number")
    if not MIN_USD <= usd < _END_USD:
        raise ValueError(f"must be at least {MIN_USD}, and less than {_END_USD}")
    exact = usd.quantize(_PLACES)
    if exact != usd:
        raise ValueError("must have at most four decimals")
    return usd_exact(parse_usd(str(exact)))


def _decimal(number: object) -> Decimal | None:
    """Return the exact decimal. Returns None if `number` is not a number."""
    if isinstance(number, bool):
        return None
    if isinstance(number, int):  # converted directly: an int of thousands of digits has no text form
        return Decimal(number)
    return Decimal(str(number)) if isinstance(number, Real | Decimal) else None
