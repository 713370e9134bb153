"""Strict JSON parsing: accepts only documents that every parser reads the same way."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final, Never

from pyoco_server.core.priced.canonical import DEPTH_MAX
from pyoco_server.errors import Problem, Refused

__all__ = ["Fraction", "decimal_of", "plain", "read_object", "wrong"]

#: Longer numbers are refused.
_NUMBER_LENGTH_MAX: Final = 400
_DEEP: Final = f"is nested more than {DEPTH_MAX} levels deep"


class Fraction(float):
    """A number written with a point or an exponent, with its original text.

    The number of decimals is checked in the text, not in the nearest double.
    """

    text: str

    def __new__(cls, text: str) -> Fraction:
        made = super().__new__(cls, text)
        made.text = text
        return made


def wrong(loc: tuple[str | int, ...], message: str) -> Refused:
    """Build the error for one problem and its location, without what was sent."""
    return Refused(message, problems=(Problem(loc, message),))


class _Twice(ValueError):
    """An object has two members with the same name (PRICED-63)."""


class _Constant(ValueError):
    """NaN and Infinity are not valid JSON."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Twice
    return members


def _constant(_: str) -> Never:
    raise _Constant


_decode = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant, parse_float=Fraction).decode


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. O(size). Raises Refused, which quotes nothing of the body."""
    try:
        document = _decode(body.decode())
    except _Twice:
        raise wrong((), "an object has two members of the same name") from None
    except _Constant:
        raise wrong((), "NaN and Infinity are not JSON") from None
    except RecursionError:
        raise wrong((), _DEEP) from None
    except ValueError:  # not UTF-8, not JSON, or an integer of thousands of digits; the error text may quote the body
        raise wrong(
            (), "is not JSON in UTF-8" if body.strip() else "a JSON object is needed, and there is no body"
        ) from None
    if not isinstance(document, dict):
        raise wrong((), "must be a JSON object")
    return document


def plain(value: Any, loc: tuple[str | int, ...]) -> Any:
    """Return a copy in plain types, to be stored and hashed. O(n). Raises Refused if it is nested too deeply."""
    if len(loc) > DEPTH_MAX:
        raise wrong((), _DEEP)
    if isinstance(value, dict):
        return {name: plain(item, (*loc, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item, (*loc, index)) for index, item in enumerate(value)]
    return float(value) if isinstance(value, Fraction) else value


def decimal_of(value: object) -> Decimal | None:
    """Return a JSON number exactly as written, or None if it is not a number or too long."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        return None
    text = value.text if isinstance(value, Fraction) else str(value)
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > _NUMBER_LENGTH_MAX or len(exponent) > 4:
        return None
    return Decimal(text)
