"""Encodes any plain Python value as JSON, without loss (section 3.1 of the contract)."""

from __future__ import annotations

import base64
import codecs
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from pyoco_server.core.values.forms import DIGITS_MAX, KIND, VALUE

__all__ = [
    "JSON_TYPE",
    "RAW_TYPE",
    "NotEncodable",
    "OtherForms",
    "WriteStopped",
    "encode_value",
    "to_bytes",
]

JSON_TYPE = "application/json"
#: RES-21: a value that is itself bytes is stored as it is.
RAW_TYPE = "application/octet-stream"

#: Deeper values are refused. JSON readers in most languages accept at least this depth.
DEPTH_MAX = 200
#: Items that are encoded at a time: bounds the memory for a long list of numbers.
_SLICE = 4096
#: Bytes that are encoded to base64 at a time; divisible by three, so that only the last piece is padded.
_RAW_SLICE = 3 * 65_536

_PLAIN = frozenset({str, int, bool, type(None), float})
_encode_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class NotEncodable(Exception):
    """A value that JSON cannot hold, and where it is."""

    def __init__(self, type_name: str, path: str, why: str = "") -> None:
        super().__init__(f"{type_name} at {path}" + (f": {why}" if why else ""))
        self.type_name, self.path, self.why = type_name, path, why


class WriteStopped(Exception):
    """Base of what a `write` function raises to end the encoding."""


class OtherForms(Protocol):
    """Encodes values of classes that this module does not know. None: it does not know them either."""

    def raw(self, value: Any) -> tuple[str, bytes] | None:
        """Return the content type and the bytes of a value that is stored as it is."""

    def form(self, value: Any) -> tuple[str, bytes] | None:
        """Return the name of its form inside of another value, and the bytes."""


def encode_value(value: Any, write: Callable[[bytes], None], other: OtherForms | None = None) -> str:
    """Pass the encoded value to `write` piece by piece: memory does not grow with its size, except for single texts.

    `other` encodes what this module does not know. Returns the content type. Raises NotEncodable, and the WriteStopped
    that `write` raises. O(size).
    """
    if isinstance(value, bytes | bytearray):
        return _write_raw(value, write, RAW_TYPE)
    if other is not None and (raw := other.raw(value)) is not None:
        return _write_raw(raw[1], write, raw[0])
    _Writer(write, other).root(value)
    return JSON_TYPE


def _write_raw(data: bytes | bytearray, write: Callable[[bytes], None], content_type: str) -> str:
    with memoryview(data) as view:
        for at in range(0, len(view), _RAW_SLICE):
            write(bytes(view[at : at + _RAW_SLICE]))
    return content_type


def to_bytes(text: str) -> bytes:
    """Encode JSON text. A lone surrogate, which UTF-8 cannot hold, is escaped: it can only be part of a string."""
    return text.encode("utf-8", "pyoco.escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(f"\\u{ord(character):04x}" for character in error.object[error.start : error.end]), error.end


codecs.register_error("pyoco.escape", _escape)


class _Writer:
    def __init__(self, write: Callable[[bytes], None], other: OtherForms | None = None) -> None:
        self._write, self._other = write, other
        #: Keys and positions from the value to the current part.
        self._path: list[str | int] = []

    def root(self, value: Any) -> None:
        try:
            self._value(value)
        except RecursionError:
            raise self._refusal(value, "nested too deep") from None

    def _text(self, text: str) -> None:
        self._write(to_bytes(text))

    def _refusal(self, value: Any, why: str = "") -> NotEncodable:
        path = "".join(f"[{step!r}]" for step in self._path)
        return NotEncodable(type(value).__qualname__, f"${path[:200]}", why)

    def _value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            return self._text(self._scalar(value))
        if len(self._path) >= DEPTH_MAX:
            raise self._refusal(value, f"nested deeper than {DEPTH_MAX} levels")
        if kind is list:
            return self._items(value)
        if kind is dict:
            return self._mapping(value)
        try:
            return self._special(value)
        except (NotEncodable, RecursionError, WriteStopped):
            raise
        except Exception as error:
            # Methods and properties of third-party classes may raise anything.
            raise self._refusal(value, f"{type(error).__name__}: {error}"[:500]) from error

    def _special(self, value: Any) -> None:
        """Encode a value of any type but JSON's own. The order matters: an enum member may be an int, too."""
        if isinstance(value, Enum):
            return self._form("enum", lambda: self._value(value.value))
        if isinstance(value, str):
            return self._text(self._scalar(str.__str__(value)))
        if isinstance(value, int):
            return self._text(self._scalar(int.__int__(value)))
        if isinstance(value, float):
            return self._text(self._scalar(float.__float__(value)))
        for kind, (name, encoded) in _SCALARS.items():
            if isinstance(value, kind):
                self._text(f'{{"{KIND}":"{name}","{VALUE}":')
                self._value(encoded(value))
                return self._text("}")
        return self._container(value)

    def _container(self, value: Any) -> None:  # noqa: PLR0911  (a table, by type)
        if isinstance(value, bytes | bytearray):
            return self._form("bytes", lambda: self._base64(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._object(zip(value._fields, tuple.__iter__(value), strict=True))
        if isinstance(value, tuple):
            return self._form("tuple", lambda: self._items(tuple.__getitem__(value, slice(None))))
        if isinstance(value, list):
            return self._items(list.__getitem__(value, slice(None)))
        if isinstance(value, set | frozenset):
            return self._form("frozenset" if isinstance(value, frozenset) else "set", lambda: self._set(value))
        if isinstance(value, Mapping):
            return self._mapping(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        names = getattr(type(value), "__struct_fields__", None)  # a msgspec Struct
        if isinstance(names, tuple):
            return self._object((name, getattr(value, name)) for name in names)
        if self._other is not None and (form := self._other.form(value)) is not None:
            return self._form(form[0], lambda: self._base64(form[1]))
        raise self._refusal(value)

    @staticmethod
    def _scalar(value: str | int | float | None) -> str:
        if type(value) is float:
            if math.isfinite(value):
                return float.__repr__(value)
            word = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
            return f'{{"{KIND}":"float","{VALUE}":"{word}"}}'
        if type(value) is int and value.bit_length() > 3 * DIGITS_MAX:
            return _digits(value)
        return _encode_plain(value)

    def _form(self, name: str, write_value: Callable[[], None]) -> None:
        self._text(f'{{"{KIND}":"{name}","{VALUE}":')
        write_value()
        self._text("}")

    def _base64(self, value: bytes | bytearray) -> None:
        self._text('"')
        with memoryview(value) as view:
            for at in range(0, len(view), _RAW_SLICE):
                self._write(base64.b64encode(view[at : at + _RAW_SLICE]))
        self._text('"')

    def _items(self, items: list[Any] | tuple[Any, ...]) -> None:
        self._text("[")
        for at in range(0, len(items), _SLICE):
            some = items[at : at + _SLICE]
            if at:
                self._text(",")
            if (text := _all_plain(some)) is not None:
                self._text(text[1:-1])
            else:
                self._each(some, at)
        self._text("]")

    def _each(self, items: Iterable[Any], first: int) -> None:
        for number, item in enumerate(items, first):
            if number > first:
                self._text(",")
            self._part(number, item)

    def _part(self, step: str | int, value: Any) -> None:
        self._path.append(step)
        self._value(value)
        self._path.pop()

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        items = list(dict.items(value) if isinstance(value, dict) else value.items())
        if all(type(key) is str and key != KIND for key, _ in items):
            if len(items) <= _SLICE and (text := _all_plain_of(dict(items))) is not None:
                return self._text(text)
            return self._object(iter(items))
        return self._form("map", lambda: self._pairs(items))

    def _pairs(self, items: list[tuple[Any, Any]]) -> None:
        self._text("[")
        for number, (key, item) in enumerate(items):
            self._text(",[" if number else "[")
            self._part(f"key {number}", key)
            self._text(",")
            self._part(key if isinstance(key, str | int) else f"value {number}", item)
            self._text("]")
        self._text("]")

    def _object(self, items: Iterator[tuple[str, Any]]) -> None:
        separator = "{"
        for name, item in items:
            self._text(f"{separator}{_encode_plain(name)}:")
            self._part(name, item)
            separator = ","
        self._text("{}" if separator == "{" else "}")

    def _set(self, items: Collection[Any]) -> None:
        encoded = []
        for item in items:
            pieces: list[bytes] = []
            inner = _Writer(pieces.append, self._other)
            inner._path = [*self._path, "item"]
            inner._value(item)
            encoded.append(b"".join(pieces))
        self._text("[")
        for number, piece in enumerate(sorted(encoded)):
            if number:
                self._text(",")
            self._write(piece)
        self._text("]")


def _all_plain(items: Collection[Any]) -> str | None:
    """Encode items of JSON's own scalar types in one call. None: there are others."""
    if not _PLAIN.issuperset(map(type, items)):
        return None
    try:
        return _encode_plain(list(items))
    except ValueError:  # NaN, infinity, or an integer of thousands of digits
        return None


def _all_plain_of(members: dict[str, Any]) -> str | None:
    """The same for an object."""
    if not _PLAIN.issuperset(map(type, members.values())):
        return None
    try:
        return _encode_plain(members)
    except ValueError:
        return None


def _digits(number: int) -> str:
    """Convert an integer of any size: Python refuses to convert long ones in one step."""
    if number < 0:
        return f"-{_digits(-number)}"
    pieces = []
    step = 10**DIGITS_MAX
    while number >= step:
        number, rest = divmod(number, step)
        pieces.append(f"{rest:0{DIGITS_MAX}d}")
    return str(number) + "".join(reversed(pieces))


#: `datetime` before `date`, which it is a subclass of.
_SCALARS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
}
