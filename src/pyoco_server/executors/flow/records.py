"""Converts the results of tasks to values for a strict and bounded JSON snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["plain", "plain_records", "slim_records"]

DEPTH_MAX = 32
#: A value with more parts than this is shown as text: nobody reads it, and converting it is expensive.
PARTS_MAX = 20_000
#: The maximum length of the text for a value that JSON cannot hold.
TEXT_LENGTH_MAX = 4096
_INT_MAX = 2**63 - 1

#: FLOW-360: the members that are dropped first.
_BULKY = ("inputs", "output", "artifacts", "traceback")


class _TooMuch(Exception):
    """The value has more parts or levels than a record may hold."""


def plain(value: Any) -> Any:
    """Convert a value to strict JSON; what JSON cannot hold becomes text (FLOW-345). O(parts), bounded."""
    try:
        return _plain(value, DEPTH_MAX, [PARTS_MAX])
    except Exception:  # noqa: BLE001  (too large, or a third-party __str__ of a key)
        return _text(value)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise _TooMuch
    if value is None or value is True or value is False:
        return value
    # Call the methods of the built-in type: JSON treats a subclass (an enum, an OrderedDict) as that type, and
    # overridden methods must not run.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth - 1, left) for key, item in list(dict.items(value))}
    if isinstance(value, list | tuple):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [_plain(item, depth - 1, left) for item in list(items)]
    return _text(value)


def _number(value: int | float) -> int | float | str:
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_INT_MAX <= number <= _INT_MAX else _text(number)
    fraction = float.__float__(value)
    return fraction if math.isfinite(fraction) else repr(fraction)


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else str(key)


def _text(value: Any) -> str:
    try:
        return repr(value)[:TEXT_LENGTH_MAX]
    except Exception:  # noqa: BLE001  (a third-party __repr__)
        return f"<{type(value).__name__} that cannot be shown>"


def plain_records(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Convert the records of all tasks to JSON values."""
    return {name: {key: plain(item) for key, item in record.items()} for name, record in records.items()}


def slim_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records without their bulky members (FLOW-360)."""
    return {name: {key: item for key, item in record.items() if key not in _BULKY} for name, record in records.items()}
