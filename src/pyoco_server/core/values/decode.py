"""Decodes the values that `encode` has written."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyoco_server.core.values.encode import JSON_TYPE, RAW_TYPE
from pyoco_server.core.values.forms import DIGITS_MAX, KIND, VALUE

__all__ = ["Read", "Undecodable", "decode_value"]


class Undecodable(ValueError):
    """This version cannot read these bytes as a value (RES-22)."""


#: Reads the bytes of a form of another library. May raise any exception.
Read = Callable[[bytes], Any]
_NO_OTHERS: Mapping[str, Read] = {}


def decode_value(data: bytes, content_type: str, others: Mapping[str, Read] = _NO_OTHERS) -> Any:
    """Return the value. Members of dataclasses and the like stay dicts, and enum members their values: only a type hint
    of the receiver could restore them. Raises Undecodable.

    `others`: how forms of other libraries are read, by name, and by content type if they are stored as they are.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == RAW_TYPE:
        return data
    if kind != JSON_TYPE and kind not in others:
        raise Undecodable(f"a value of type {content_type} cannot be read")
    try:
        if kind != JSON_TYPE:
            return others[kind](data)
        hook = functools.partial(_object, others)
        return json.loads(data, object_hook=hook, parse_int=_integer, parse_constant=_refuse_constant)
    except Undecodable:
        raise
    except Exception as error:
        # Forms of other libraries may raise anything.
        raise Undecodable(f"the value cannot be read: {type(error).__name__}: {error}"[:500]) from error


def _refuse_constant(word: str) -> None:
    raise Undecodable(f"{word} is no JSON")


def _integer(text: str) -> int:
    """Convert digits of any number: Python refuses to convert long ones in one step."""
    if len(text) <= DIGITS_MAX:
        return int(text)
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    number, step = int(digits[: len(digits) % DIGITS_MAX] or "0"), 10**DIGITS_MAX
    for at in range(len(digits) % DIGITS_MAX, len(digits), DIGITS_MAX):
        number = number * step + int(digits[at : at + DIGITS_MAX])
    return sign * number


def _object(others: Mapping[str, Read], members: dict[str, Any]) -> Any:
    if KIND not in members:
        return members
    kind = members[KIND]
    if isinstance(kind, str) and kind in others and members.keys() == {KIND, VALUE}:
        return others[kind](base64.b64decode(members[VALUE], validate=True))
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None or members.keys() != {KIND, VALUE}:
        raise Undecodable(f"a value of kind {kind!r} is unknown to this version")
    return read(members[VALUE])


def _timedelta(value: list[int]) -> timedelta:
    days, seconds, microseconds = value
    return timedelta(days, seconds, microseconds)


def _float(word: str) -> float:
    if word not in ("NaN", "Infinity", "-Infinity"):
        raise Undecodable(f"{word!r} is no float")
    return float(word)


_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": _timedelta,
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": lambda value: base64.b64decode(value, validate=True),
    "float": _float,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "enum": lambda value: value,
    "map": dict,
}
