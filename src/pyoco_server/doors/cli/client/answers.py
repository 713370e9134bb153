"""Validates what a gateway returns before a command uses it.

The address may belong to another server that also returns JSON. The response is checked against the return type of the
client method; a mismatch is reported in one sentence instead of failing somewhere in a command. Unknown fields and
unknown statuses are accepted, because a newer gateway may send them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Literal, NotRequired, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pyoco_server.http_client import AnswerDamaged, PyocoHttpClient

__all__ = ["LookedAt", "misfit"]

#: These methods read parts of a response themselves, before it can be validated here.
_SELF_READING_METHODS = frozenset(
    {
        "read_pack_result",
        "read_run_result",
        "save_result",
        "save_run_result",
        "upload_input",
        "upload_wheel",
        "wait_pack_run",
        "wait_run",
    }
)


class LookedAt:
    """A client whose responses are validated. Each of its methods may also raise AnswerDamaged."""

    def __init__(self, client: PyocoHttpClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return functools.partial(_call, getattr(self._client, name))


def _call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kind = get_type_hints(method).get("return", Any)
    try:
        answer = method(*args, **kwargs)
    except RecursionError as error:
        raise AnswerDamaged("it is nested too deeply") from error
    except (AttributeError, KeyError, TypeError) as error:
        if method.__name__ not in _SELF_READING_METHODS:
            raise
        raise AnswerDamaged("its structure is unexpected") from error
    if isinstance(answer, Generator):
        return _each(answer, get_args(kind)[0] if get_args(kind) else Any)
    _validate(answer, kind)
    return answer


def _each(answers: Generator[Any], kind: Any) -> Iterator[Any]:
    with contextlib.closing(answers):
        for answer in answers:
            _validate(answer, kind)
            yield answer


def _validate(answer: Any, kind: Any) -> None:
    found = misfit(answer, kind, "it")
    if found is not None:
        raise AnswerDamaged(found)


def misfit(value: Any, kind: Any, place: str) -> str | None:
    """Return where the value does not match its type, or None if it matches. O(size)."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _misfit_of_object(value, kind, place)
    if origin in {list, dict}:
        return _misfit_of_many(value, origin, inner[-1], place)
    if origin in {Union, types.UnionType}:
        found = [misfit(value, each, place) for each in inner]
        return None if None in found else found[0]
    return None if _is_plain(value, type(inner[0]) if origin is Literal else kind) else f"{place} has another type"


def _misfit_of_many(value: Any, kind: type, inner: Any, place: str) -> str | None:
    if not isinstance(value, kind):
        return f"{place} is not {'a list' if kind is list else 'an object'}"
    places: Iterable[tuple[object, Any]] = enumerate(value) if isinstance(value, list) else cast(Any, value).items()
    found = (misfit(each, inner, f"{place}.{name}") for name, each in places)
    return next((each for each in found if each is not None), None)


def _misfit_of_object(value: Any, kind: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is not an object"
    for name, (inner, is_required) in _fields(kind).items():
        if name not in value:
            if is_required:
                return f"{place} has no {name}"
        elif (value[name] is not None or is_required) and (found := misfit(value[name], inner, f"{place}.{name}")):
            return found
    return None


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether the field is required.

    `__required_keys__` alone is not enough: the annotations are strings, in which it does not detect NotRequired.
    """
    marked, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    required = {name for name in kind.__required_keys__ if get_origin(marked[name]) is not NotRequired}
    return {name: (plain[name], name in required) for name in plain}


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        try:
            return isinstance(value, int | float) and math.isfinite(value)
        except OverflowError:  # an integer of 400 digits
            return False
    return kind is Any or isinstance(value, kind)
