"""Sums that never overflow. SQLite adds in 64 bits and raises an error beyond; so amounts are added in two halves."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, func, literal_column

__all__ = ["combined", "halves", "sum_of", "written_sum"]

_BITS: Final = 32
_LOW: Final = 2**_BITS - 1
_BETWEEN: Final = ":"


def halves(amount: ColumnElement[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Two sums, for `combined`: of the bits above 32, with the sign, and of the bits below. Sufficient for 2^31
    amounts."""
    # Literals and not bind parameters: for some of PostgreSQL's operators a parameter would be a NUMERIC.
    high = amount.op(">>", return_type=BigInteger())(literal_column(str(_BITS)))
    low = amount.op("&", return_type=BigInteger())(literal_column(str(_LOW)))
    return func.sum(high), func.sum(low)


def combined(high: Any, low: Any) -> int:
    """Combine the two sums. In PostgreSQL a sum of BIGINT is a NUMERIC."""
    return (int(high or 0) << _BITS) + int(low or 0)


def sum_of(amount: str, *, on_postgres: bool) -> str:
    """SQL expression for a sum. In SQLite it is a text if 64 bits do not hold it: the text equals no number, and equal
    sums give equal texts. `written_sum` reads both."""
    if on_postgres:
        return f"sum({amount})"
    high, low = f"sum(({amount}) >> {_BITS})", f"sum(({amount}) & {_LOW})"
    above, below = f"({high} + ({low} >> {_BITS}))", f"({low} & {_LOW})"
    fits = f"{above} BETWEEN {-(2**31)} AND {2**31 - 1}"
    return f"CASE WHEN {fits} THEN ({above} << {_BITS}) | {below} ELSE {above} || '\\{_BETWEEN}' || {below} END"


def written_sum(found: Any) -> int:
    text = str(found)
    high, between, low = text.partition(_BETWEEN)
    return combined(high, low) if between else int(text)
