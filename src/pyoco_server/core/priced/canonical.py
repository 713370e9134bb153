"""Canonical JSON for hashing: RFC 8785 (PRICED-85)."""

from __future__ import annotations

import json
import math
from typing import Any, Final

__all__ = ["DEPTH_MAX", "INTEGER_MAX", "NotCanonical", "canonical_json"]

#: Maximum nesting depth of lists and objects.
DEPTH_MAX: Final = 64
#: A larger integer would be changed silently by readers that parse numbers as doubles, as most do.
INTEGER_MAX: Final = 2**53 - 1

#: Escapes quotes, backslashes and control characters, with the short forms where they exist, and nothing else, as the
#: RFC requires.
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class NotCanonical(ValueError):
    """The value has no canonical form. The text contains the reason, and never the value."""

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(problem)
        #: The position as a JSON pointer (RFC 6901). Always valid UTF-8.
        self.pointer = pointer
        self.problem = problem


def canonical_json(value: Any) -> bytes:
    """Encode a value to the same bytes in every language. O(n log n) for n members. Raises NotCanonical."""
    return _Writer().write(value)


class _Writer:
    def __init__(self) -> None:
        self._out: list[str] = []
        #: The current position, formatted only for an error.
        self._path: list[str | int] = []

    def write(self, value: Any) -> bytes:
        self._value(value)
        return "".join(self._out).encode()

    def _value(self, value: Any) -> None:
        if isinstance(value, str):
            self._out.append(_quoted(self._text(value)))
        elif isinstance(value, dict):
            self._object(value)
        elif isinstance(value, list | tuple):
            self._list(value)
        elif value is None:
            self._out.append("null")
        elif isinstance(value, bool):
            self._out.append("true" if value else "false")
        elif isinstance(value, int | float):
            self._out.append(self._number(value))
        else:
            raise self._trouble(f"is of a kind that JSON does not have: {type(value).__name__}")

    def _object(self, members: dict[Any, Any]) -> None:
        self._enter()
        ordered = sorted(members, key=self._order)
        before = "{"
        for name in ordered:
            self._out.append(f"{before}{_quoted(name)}:")
            self._path.append(name)
            self._value(members[name])
            self._path.pop()
            before = ","
        self._out.append("}" if ordered else "{}")

    def _list(self, items: list[Any] | tuple[Any, ...]) -> None:
        self._enter()
        before = "["
        for index, item in enumerate(items):
            self._out.append(before)
            self._path.append(index)
            self._value(item)
            self._path.pop()
            before = ","
        self._out.append("]" if items else "[]")

    def _enter(self) -> None:
        # Also stops at a value that contains itself.
        if len(self._path) >= DEPTH_MAX:
            raise self._trouble(f"is nested more than {DEPTH_MAX} levels deep")

    def _order(self, name: Any) -> bytes:
        """Return the sort key: UTF-16 code units, as in JavaScript, so that an emoji comes before a letter of U+E000
        and above."""
        if not isinstance(name, str):
            raise self._trouble("has a member whose name is not text")
        try:
            return name.encode("utf-16-be")
        except UnicodeEncodeError as error:
            raise self._trouble("has a member whose name holds half of a surrogate pair, which is no text") from error

    def _number(self, value: float) -> str:
        if isinstance(value, int):
            if not -INTEGER_MAX <= value <= INTEGER_MAX:
                raise self._trouble(f"is an integer beyond {INTEGER_MAX}: write it as a string")
            return str(int(value))
        if not math.isfinite(value):
            raise self._trouble("is not a finite number, which JSON cannot hold: write it as a string")
        return _double(value)

    def _text(self, text: str) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise self._trouble("holds half of a surrogate pair, which is no text") from error
        return text

    def _trouble(self, problem: str) -> NotCanonical:
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in self._path)
        return NotCanonical("".join(f"/{step}" for step in steps), problem)


def _double(value: float) -> str:
    """Format a double as ECMAScript does. Python finds the same shortest digits, but formats them differently."""
    if value == 0:
        return "0"  # -0 too
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.digits times ten to the power of `point`.
    point = len(digits) - len(fraction) + int(exponent or 0)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        text = digits.ljust(point, "0")
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1:+d}"
    return f"-{text}" if value < 0 else text
