"""Named tuples are objects in the encoding of values, and arrays for the library that converts by type hints."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Union, get_args, get_origin

__all__ = ["as_arrays"]

#: Deeper parts are left as they are: types may refer to themselves.
_DEPTH_MAX = 6


def as_arrays(value: Any, hint: Any) -> Any:
    """Return the value with an array in each place where the hint has a named tuple and the value an object with its
    fields. Everything else is returned as it is."""
    try:
        return _shaped(value, hint) if _has_any(hint, _DEPTH_MAX) else value
    except TypeError:  # a hint that cannot be hashed
        return value


def _shaped(value: Any, hint: Any) -> Any:
    hint = _plain(hint)
    arguments = get_args(hint)
    if isinstance(value, dict):
        fields = _fields(hint)
        if fields:
            shaped = {name: _shaped(item, fields.get(name)) for name, item in value.items()}
            return list(map(shaped.get, hint._fields)) if _is_named(hint) and shaped.keys() == fields.keys() else shaped
        return {key: _shaped(item, arguments[-1]) for key, item in value.items()} if arguments else value
    if isinstance(value, list | tuple) and arguments:
        is_fixed = get_origin(hint) is tuple and arguments[-1] is not ...
        hints = arguments if is_fixed else (arguments[0],) * len(value)
        return type(value)(_shaped(item, each) for item, each in zip(value, hints, strict=False))
    return value


@lru_cache(maxsize=1024)
def _has_any(hint: Any, depth: int) -> bool:
    hint = _plain(hint)
    if depth < 0:
        return False
    return _is_named(hint) or any(_has_any(each, depth - 1) for each in (*get_args(hint), *_fields(hint).values()))


def _plain(hint: Any) -> Any:
    """Return the hint without remarks, and without the choice of None."""
    if get_origin(hint) is typing.Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        choices = [each for each in get_args(hint) if each is not type(None)]
        return _plain(choices[0]) if len(choices) == 1 else hint
    return hint


def _is_named(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _fields(hint: Any) -> Mapping[str, Any]:
    """Return the hints of the fields of a class; nothing for a class that has none."""
    if not isinstance(hint, type) or get_args(hint):
        return {}
    try:
        return typing.get_type_hints(hint, include_extras=True)
    except Exception:  # noqa: BLE001  (a hint may be any expression, and name what is not there)
        return {}
