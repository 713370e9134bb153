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
    except (_TooMuch, RecursionError):
        return _text(value)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise _TooMuch
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return value if -_INT_MAX <= value <= _INT_MAX else _text(value)
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if kind is dict:
        return {str(key): _plain(item, depth - 1, left) for key, item in list(value.items())}
    if kind in (list, tuple):
        return [_plain(item, depth - 1, left) for item in list(value)]
    return _text(value)


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
