"""Values that any JSON parser can read: a validated copy, made in bounded time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

__all__ = ["DEPTH_MAX", "Bounds", "Loc", "OutOfBoundsError", "bounds_of", "copy_mapping", "kind_of"]

#: The maximum nesting depth of lists and mappings.
DEPTH_MAX: Final = 40

#: A position in a document: keys and indexes from the outside in.
Loc = tuple[str | int, ...]
#: Receives one problem: position, message, and a machine-readable kind.
Report = Callable[[Loc, str, str], None]


@dataclass(frozen=True)
class Bounds:
    """How large a document may become once its aliases are expanded (FLOW-172)."""

    nodes: int
    characters: int


def bounds_of(size: int) -> Bounds:
    """Return the bounds for a document of `size` bytes: the same on every server, regardless of its settings.

    A line `key: value` is two nodes in some 30 bytes, so real files stay below one node in 10 bytes; 50,000 nodes
    take about 0.15 s to read. A file without aliases has at most as many characters as bytes, so only aliases can
    reach the second bound; 1 MiB is the size of one NATS message.
    """
    return Bounds(nodes=max(50_000, size // 5), characters=max(1 << 20, size))


class OutOfBoundsError(Exception):
    """The value exceeds its bounds."""


def copy_mapping(mapping: dict[Any, Any], loc: Loc, bounds: Bounds, report: Report) -> dict[str, Any]:
    """Return a copy without shared values. Values that JSON cannot hold are reported, and copied unchanged.

    O(n) in the expanded size, within `bounds`, even for shared or cyclic values. Raises OutOfBoundsError.
    """
    return _Walk(bounds, report).mapping(mapping, loc, 0)


_KINDS: dict[type, str] = {
    type(None): "empty",
    bool: "true or false (yes, no, on and off mean that too)",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    date: "a date",
    datetime: "a date",
    bytes: "binary data",
}


def kind_of(value: object) -> str:
    """Describe the type of a value for a message. Never contains the value itself, which may be long, or a secret."""
    return _KINDS.get(type(value), type(value).__name__)


class _Walk:
    def __init__(self, bounds: Bounds, report: Report) -> None:
        self._bounds, self._report = bounds, report
        self._nodes = self._characters = 0

    def mapping(self, mapping: dict[Any, Any], loc: Loc, depth: int) -> dict[str, Any]:
        copy = {}
        for key, value in mapping.items():
            trouble = _trouble(key) if isinstance(key, str) else f"a key is {kind_of(key)}, not text: quote it"
            if trouble:
                self._report(loc, trouble, "key_type")
                continue
            self._spend(key)
            copy[key] = self._value(value, (*loc, key), depth + 1)
        return copy

    def _value(self, value: object, loc: Loc, depth: int) -> Any:
        self._spend(value)
        if depth > DEPTH_MAX:
            raise OutOfBoundsError(f"is nested more than {DEPTH_MAX} levels deep")
        if isinstance(value, dict):
            return self.mapping(value, loc, depth)
        if isinstance(value, list):
            return [self._value(item, (*loc, index), depth + 1) for index, item in enumerate(value)]
        trouble = _trouble(value)
        if trouble:
            self._report(loc, trouble, "not_json")
        return value

    def _spend(self, value: object) -> None:
        self._nodes += 1
        self._characters += len(value) if isinstance(value, str) else 0
        if self._nodes > self._bounds.nodes or self._characters > self._bounds.characters:
            raise OutOfBoundsError(
                f"holds more than {self._bounds.nodes} values or {self._bounds.characters} characters, "
                "counting what aliases repeat"
            )


def _trouble(value: object) -> str | None:
    """Return why strict JSON cannot hold a scalar, or None."""
    trouble = None
    if isinstance(value, str):
        if not value.isascii() and not _is_unicode(value):
            trouble = "holds half of a surrogate pair, which is no text"
    elif isinstance(value, float):
        if not math.isfinite(value):
            trouble = "is not a finite number, which JSON cannot hold: quote it"
    elif isinstance(value, int):  # includes bool
        # Larger integers are legal JSON, but most parsers would round them silently.
        if not -(2**63) <= value < 2**64:
            trouble = "is a number beyond 64 bits: quote it"
    elif value is not None:
        trouble = f"is {kind_of(value)}, which JSON cannot hold: quote it"
    return trouble


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
