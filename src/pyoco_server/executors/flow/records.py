"""Converts the results of tasks to values for a strict and bounded JSON snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pyoco_server.core.values.forms import KIND

__all__ = ["plain", "plain_and_lossless", "plain_records", "slim_records"]

DEPTH_MAX = 32
#: A value with more parts than this is shown as text: it is unreadable anyway, and converting it is expensive.
PARTS_MAX = 20_000
#: The maximum length of the text for a value that JSON cannot hold.
TEXT_LENGTH_MAX = 4096
_INT_MAX = 2**63 - 1

#: FLOW-360: the members that are dropped first.
_BULKY = ("inputs", "output", "artifacts", "traceback", "exception")


class _TooMuch(Exception):
    """The value has more parts or levels than a record may hold."""


def plain(value: Any) -> Any:
    """Convert a value to strict JSON; what JSON cannot hold becomes text (FLOW-345). O(parts), bounded."""
    return plain_and_lossless(value)[0]


def plain_and_lossless(value: Any) -> tuple[Any, bool]:
    """The same, and whether it is the whole value: the encoding of section 3.1 of the contract would be the same."""
    budget = _Budget()
    try:
        return _plain(value, DEPTH_MAX, budget), budget.is_lossless
    except Exception:  # noqa: BLE001  (too large, or a third-party __str__ of a key)
        return _text(value), False


class _Budget:
    """The parts that are left, and whether all so far could be converted without loss."""

    __slots__ = ("is_lossless", "parts")

    def __init__(self) -> None:
        self.parts = PARTS_MAX
        self.is_lossless = True


def _plain(value: Any, depth: int, left: _Budget) -> Any:  # noqa: PLR0911  (a table, by type)
    left.parts -= 1
    if left.parts < 0 or depth < 0:
        raise _TooMuch
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        left.is_lossless = left.is_lossless and (value.isascii() or _has_no_surrogates(value))
        return value
    if kind is int:
        return value if -_INT_MAX <= value <= _INT_MAX else _lossy(_text(value), left)
    if kind is dict and left.is_lossless:
        left.is_lossless = KIND not in value and all(type(key) is str for key in list(value))
    elif kind not in (list, float):
        left.is_lossless = False
    # Call the methods of the built-in type: JSON treats a subclass (an enum, an OrderedDict) as that type, and
    # overridden methods must not run.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        number = _number(value)
        return number if type(number) is kind else _lossy(number, left)
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth - 1, left) for key, item in list(dict.items(value))}
    if isinstance(value, list | tuple):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [_plain(item, depth - 1, left) for item in list(items)]
    return _text(value)


def _lossy(value: Any, left: _Budget) -> Any:
    left.is_lossless = False
    return value


def _has_no_surrogates(text: str) -> bool:
    """A record cannot hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: int | float) -> int | float | str:
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_INT_MAX <= number <= _INT_MAX else _text(number)
    fraction = float.__float__(value)
    return fraction if math.isfinite(fraction) else repr(fraction)


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else str(key)


def _text(value: Any) -> str:
    if type(value) in (bytes, bytearray):  # as text they take four times the memory
        value = value[:TEXT_LENGTH_MAX]
    try:
        return repr(value)[:TEXT_LENGTH_MAX]
    except Exception:  # noqa: BLE001  (a third-party __repr__)
        return f"<{type(value).__name__} that cannot be shown>"


def plain_records(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Convert the records of all tasks to JSON values. Outputs that are not shown as a whole are marked (RES-4)."""
    return {name: _plain_record(record) for name, record in records.items()}


def _plain_record(record: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: plain(item) for key, item in record.items() if key != "output"}
    if "output" not in record:
        return shown
    shown["output"], is_lossless = plain_and_lossless(record["output"])
    return shown if is_lossless else shown | {"output_truncated": True}


def slim_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records without their bulky members (FLOW-360)."""
    return {name: {key: item for key, item in record.items() if key not in _BULKY} for name, record in records.items()}
