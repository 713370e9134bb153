"""Money that arrives as a JSON number: exactly the dollars that were written, or none (PRICED-216)."""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Final

from pyoco_server.core.priced.money import parse_usd, usd_exact

__all__ = ["MIN_USD", "usd_of_number"]

#: The least that a tool may be told to spend.
MIN_USD: Final = Decimal("0.01")
_END_USD: Final = Decimal(10**9)
_PLACES: Final = Decimal("0.0001")


def usd_of_number(number: object) -> str:
    """The four-decimal text of a number: 0.1 is `0.1000`. Raises ValueError, which names the rule and not the value.

    Whoever read the JSON may have made a double of the number already. Its shortest text that leads back to it is what
    was written, as far as anybody can tell; nothing is computed with the double itself.
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
    """None: it is no number."""
    if isinstance(number, bool):
        return None
    if isinstance(number, int):  # as it is: one of thousands of digits has no text
        return Decimal(number)
    return Decimal(str(number)) if isinstance(number, Real | Decimal) else None
