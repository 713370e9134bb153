"""Payloads as strict JSON (section 26.1): every parser reads the same values.

A payload that is not a JSON object is refused with BAD_JSON; one with an invalid member with BAD_SCHEMA and the
member's name. A message never contains values (GRID-169).
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["DEPTH_MAX", "Fields", "bad_field", "from_base64", "read_object", "to_base64", "write_object"]

#: The maximum nesting depth of objects and arrays.
DEPTH_MAX: Final = 32
_OPENING = (b"{", b"[")
_NUMBER_MAX = 2**63 - 1


class _TwiceError(ValueError):
    """A duplicate key in an object."""


def read_object(payload: bytes) -> dict[str, Any]:
    """Decode a JSON object. O(payload). Raises GridRefused: BAD_JSON."""
    try:
        value = json.loads(payload.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise GridRefused(Code.BAD_JSON, "the payload is not UTF-8") from None
    except _TwiceError:
        raise GridRefused(Code.BAD_JSON, "a key stands twice in one object") from None
    except RecursionError:
        raise GridRefused(Code.BAD_JSON, _TOO_DEEP) from None
    except ValueError:  # JSONDecodeError; an int with more digits than Python accepts; NaN and Infinity
        raise GridRefused(Code.BAD_JSON, "the payload is not JSON") from None
    if not isinstance(value, dict):
        raise GridRefused(Code.BAD_JSON, "the payload is not a JSON object")
    # Few payloads have more brackets than the allowed depth, even counting strings, so most need no walk.
    if sum(map(payload.count, _OPENING)) > DEPTH_MAX and _is_deep(value):
        raise GridRefused(Code.BAD_JSON, _TOO_DEEP)
    return value


_TOO_DEEP = f"the payload is nested more than {DEPTH_MAX} levels deep"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _TwiceError
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        below = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in below if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def write_object(members: Mapping[str, Any]) -> bytes:
    """Encode compactly, in this order. A lone surrogate, which UTF-8 cannot hold, becomes `?`."""
    return json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def bad_field(name: str, problem: str, code: Code = Code.BAD_SCHEMA) -> GridRefused:
    return GridRefused(code, f"{name} {problem}", field=name)


class Fields:
    """Typed access to the members of one object. Members that are not read are ignored.

    In `..._or_none`, a member may be absent or null. All methods raise GridRefused(BAD_SCHEMA).
    """

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    @classmethod
    def of(cls, payload: bytes) -> Fields:
        return cls(read_object(payload))

    def get(self, name: str) -> object:
        """Return the unchecked value; None if it is absent."""
        return self._members.get(name)

    def _required(self, name: str) -> object:
        value = self._members.get(name)
        if value is None:
            raise bad_field(name, "is missing")
        return value

    def text(self, name: str, most: int | None = None) -> str:
        return _text(name, self._required(name), most)

    def text_or_none(self, name: str, most: int | None = None) -> str | None:
        value = self._members.get(name)
        return None if value is None else _text(name, value, most)

    def texts(self, name: str, most: int | None = None, each: int | None = None) -> tuple[str, ...]:
        """Return an array of at most `most` texts of at most `each` characters."""
        return tuple(_text(name, item, each) for item in self.items(name, most))

    def items(self, name: str, most: int | None = None) -> list[Any]:
        value = self._required(name)
        if not isinstance(value, list):
            raise bad_field(name, "must be an array")
        if most is not None and len(value) > most:
            raise bad_field(name, f"has at most {most} items")
        return value

    def objects(self, name: str, most: int | None = None) -> Iterable[Fields]:
        for item in self.items(name, most):
            if not isinstance(item, dict):
                raise bad_field(name, "must be an array of objects")
            yield Fields(item)

    def object(self, name: str) -> Mapping[str, Any]:
        value = self._required(name)
        if not isinstance(value, dict):
            raise bad_field(name, "must be an object")
        return value

    def flag(self, name: str) -> bool:
        value = self._required(name)
        if not isinstance(value, bool):
            raise bad_field(name, "must be true or false")
        return value

    def integer(self, name: str, least: int, most: int = _NUMBER_MAX) -> int:
        return _check_integer(name, self._required(name), least, most)

    def integer_or_none(self, name: str, least: int, most: int = _NUMBER_MAX) -> int | None:
        value = self._members.get(name)
        return None if value is None else _check_integer(name, value, least, most)

    def number_or_none(self, name: str, least: float, most: float) -> float | None:
        value = self._members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_field(name, "must be a number")
        if not least <= value <= most or not math.isfinite(value):
            raise bad_field(name, f"must be from {least:g} to {most:g}")
        return value

    def binary_or_none(self, name: str) -> bytes | None:
        """Return the bytes of a strict base64 text."""
        value = self._members.get(name)
        return None if value is None else from_base64(name, value)


def _text(name: str, value: object, most: int | None) -> str:
    if not isinstance(value, str):
        raise bad_field(name, "must be text")
    if most is not None and len(value) > most:
        raise bad_field(name, f"has at most {most} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise bad_field(name, "holds half of a surrogate pair, which is no text") from None
    return value


def _check_integer(name: str, value: object, least: int, most: int) -> int:
    """Check an integer. 4.0, "4" and true are invalid (GRID-197)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_field(name, "must be a whole number")
    if not least <= value <= most:
        raise bad_field(name, f"must be from {least} to {most}" if most < _NUMBER_MAX else f"must be at least {least}")
    return value


def from_base64(name: str, value: object) -> bytes:
    """Decode base64. Raises GridRefused: BAD_SCHEMA of the member `name`."""
    if not isinstance(value, str):
        raise bad_field(name, "must be base64 text")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:  # binascii.Error; non-ASCII text
        raise bad_field(name, "must be strict base64") from None


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
