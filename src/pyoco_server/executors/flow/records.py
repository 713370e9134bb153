"""What tasks leave behind, made fit for a strict and bounded JSON snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["plain", "plain_records", "slim_records"]

DEPTH_MAX = 32
#: A value of more parts than this is shown as text: nobody reads it, and walking it costs.
PARTS_MAX = 20_000
#: How much of a value that JSON cannot hold is shown.
TEXT_LENGTH_MAX = 4096
_INT_MAX = 2**63 - 1

#: FLOW-360: what goes first.
_BULKY = ("inputs", "output", "artifacts", "traceback")


class _TooMuch(Exception):
    """The value has more parts or levels than a record may hold."""


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it; what it cannot hold becomes text (FLOW-345). O(parts), bounded."""
    try:
        return _plain(value, DEPTH_MAX, [PARTS_MAX])
    except Exception:  # noqa: BLE001  (too much of it, or somebody else's __str__ of a key)
        return _text(value)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise _TooMuch
    if value is None or value is True or value is False:
        return value
    # By the methods of the built-in type: a subclass (an enum, an OrderedDict) is what JSON takes it for, and what it
    # has overridden is not called.
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
        whole = int.__int__(value)
        return whole if -_INT_MAX <= whole <= _INT_MAX else _text(whole)
    fraction = float.__float__(value)
    return fraction if math.isfinite(fraction) else repr(fraction)


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else str(key)


def _text(value: Any) -> str:
    try:
        return repr(value)[:TEXT_LENGTH_MAX]
    except Exception:  # noqa: BLE001  (somebody else's __repr__)
        return f"<{type(value).__name__} that cannot be shown>"


def plain_records(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The records of all tasks as JSON values."""
    return {name: {key: plain(item) for key, item in record.items()} for name, record in records.items()}


def slim_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """The records without what makes them large (FLOW-360)."""
    return {name: {key: item for key, item in record.items() if key not in _BULKY} for name, record in records.items()}
