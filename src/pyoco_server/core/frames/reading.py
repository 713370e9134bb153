"""Payloads as strict JSON (section 26.1): what is read here means the same to every reader.

A payload that is no JSON object gets BAD_JSON; one whose members are not what they must be gets BAD_SCHEMA, with the
member's name. A message never repeats content (GRID-169).
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["DEPTH_MAX", "Fields", "bad_field", "from_base64", "read_object", "to_base64", "write_object"]

#: How deep objects and arrays may be nested in each other.
DEPTH_MAX: Final = 32
_OPENING = (b"{", b"[")
_WHOLE_MAX = 2**63 - 1


class _TwiceError(ValueError):
    """A key stands twice in one object."""


def read_object(payload: bytes) -> dict[str, Any]:
    """O(payload). Raises GridRefused: BAD_JSON."""
    try:
        value = json.loads(payload.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise GridRefused(Code.BAD_JSON, "the payload is not UTF-8") from None
    except _TwiceError:
        raise GridRefused(Code.BAD_JSON, "a key stands twice in one object") from None
    except RecursionError:
        raise GridRefused(Code.BAD_JSON, _TOO_DEEP) from None
    except ValueError:  # JSONDecodeError; an int of more digits than Python reads; NaN and Infinity
        raise GridRefused(Code.BAD_JSON, "the payload is not JSON") from None
    if not isinstance(value, dict):
        raise GridRefused(Code.BAD_JSON, "the payload is not a JSON object")
    # Few payloads have as many brackets as levels are allowed, strings included: most need no walk.
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
    """Compact and in this order. Half a surrogate pair, which UTF-8 cannot hold, becomes `?`."""
    return json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def bad_field(name: str, problem: str, code: Code = Code.BAD_SCHEMA) -> GridRefused:
    return GridRefused(code, f"{name} {problem}", field=name)


class Fields:
    """The members of one object, each taken by what it must be. Members that nobody takes are ignored.

    In `..._or_none`, a member may be absent or null. Everything raises GridRefused(BAD_SCHEMA).
    """

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    @classmethod
    def of(cls, payload: bytes) -> Fields:
        return cls(read_object(payload))

    def get(self, name: str) -> object:
        """Whatever it is; None when it is absent."""
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
        """An array of at most `most` texts of at most `each` characters."""
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

    def whole(self, name: str, least: int, most: int = _WHOLE_MAX) -> int:
        return _whole(name, self._required(name), least, most)

    def whole_or_none(self, name: str, least: int, most: int = _WHOLE_MAX) -> int | None:
        value = self._members.get(name)
        return None if value is None else _whole(name, value, least, most)

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
        """Strict base64."""
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


def _whole(name: str, value: object, least: int, most: int) -> int:
    """GRID-197: 4.0, "4" and true are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_field(name, "must be a whole number")
    if not least <= value <= most:
        raise bad_field(name, f"must be from {least} to {most}" if most < _WHOLE_MAX else f"must be at least {least}")
    return value


def from_base64(name: str, value: object) -> bytes:
    """Raises GridRefused: BAD_SCHEMA of the member `name`."""
    if not isinstance(value, str):
        raise bad_field(name, "must be base64 text")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:  # binascii.Error; text outside of ASCII
        raise bad_field(name, "must be strict base64") from None


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
