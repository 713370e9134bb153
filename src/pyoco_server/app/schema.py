"""JSON Schema of type hints, for forms and tools. What it cannot describe is `{}`: any value."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

__all__ = ["schema_of"]

#: Deeper parts are not described: types may refer to themselves.
_DEPTH_MAX = 6

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "string", "format": "duration"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": "string", "format": "decimal"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(hint: Any, depth: int = _DEPTH_MAX) -> dict[str, Any]:  # noqa: PLR0911  (a table, by type)
    """Return the schema of the values that this hint allows."""
    if depth < 0:
        return {}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return schema_of(arguments[0], depth)
    if origin is Literal:
        return _enum_of(list(arguments))
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each, depth - 1) for each in arguments]}
    if isinstance(origin, type):
        return _generic(origin, arguments, depth)
    try:
        known = _SCALARS.get(hint)
    except TypeError:  # a hint that cannot be hashed
        return {}
    if known is not None:
        return dict(known)
    return _class(hint, depth) if inspect.isclass(hint) else {}


def _generic(origin: type, arguments: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if issubclass(origin, tuple) and not (len(arguments) == 2 and arguments[1] is ...):
        items = [schema_of(each, depth - 1) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[-1], depth - 1)}
    if issubclass(origin, Set):
        return {"type": "array", "uniqueItems": True, "items": schema_of(arguments[0], depth - 1)}
    if issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], depth - 1)}
    return {}


def _class(kind: type, depth: int) -> dict[str, Any]:
    if issubclass(kind, Enum):
        return _enum_of([member.value for member in kind])
    fields = _fields_of(kind)
    if fields is None:
        return {}
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  (a hint may be any expression, and name what is not there)
        hints = {}
    properties = {name: schema_of(hints.get(name, Any), depth - 1) for name in fields}
    required = [name for name, is_required in fields.items() if is_required]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _fields_of(kind: type) -> dict[str, bool] | None:
    """Return the fields and whether each is required. None: not a class with fields."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: field.default is missing and field.default_factory is missing
            for field in dataclasses.fields(kind)
            if field.init
        }
    if isinstance(names := getattr(kind, "__struct_fields__", None), tuple):  # a msgspec Struct
        optional = len(getattr(kind, "__struct_defaults__", ()))
        return {name: number < len(names) - optional for number, name in enumerate(names)}
    if issubclass(kind, tuple) and isinstance(names := getattr(kind, "_fields", None), tuple):
        defaults = getattr(kind, "_field_defaults", {})
        return {name: name not in defaults for name in names}
    if isinstance(required := getattr(kind, "__required_keys__", None), frozenset):  # a TypedDict
        return {name: name in required for name in kind.__annotations__}
    return None


def _enum_of(values: list[Any]) -> dict[str, Any]:
    """Return the choices. Those that JSON cannot hold make it any value."""
    if not all(value is None or type(value) in _JSON_TYPES for value in values):
        return {}
    kinds = {type(value) for value in values}
    known = {"type": _JSON_TYPES[kinds.pop()]} if len(kinds) == 1 and kinds <= _JSON_TYPES.keys() else {}
    return known | {"enum": values}
