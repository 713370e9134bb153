"""What a gateway answers, looked at before a command does anything with it.

Whoever listens at the address may speak JSON, too. The types of the results say what an answer looks like; one that
does not is told of in a sentence, where a command would stumble over it. More fields may come at any time, and so may
new words for a status.
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

#: These read parts of an answer themselves, before anybody could look at it.
_READ_ON_THEIR_OWN = frozenset(
    {"read_pack_result", "save_result", "upload_input", "upload_wheel", "wait_pack_run", "wait_run"}
)


class LookedAt:
    """A client whose answers have been looked at. Every method of it raises AnswerDamaged, too."""

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
        if method.__name__ not in _READ_ON_THEIR_OWN:
            raise
        raise AnswerDamaged("it has another shape") from error
    if isinstance(answer, Generator):
        return _each(answer, get_args(kind)[0] if get_args(kind) else Any)
    _look(answer, kind)
    return answer


def _each(answers: Generator[Any], kind: Any) -> Iterator[Any]:
    with contextlib.closing(answers):
        for answer in answers:
            _look(answer, kind)
            yield answer


def _look(answer: Any, kind: Any) -> None:
    found = misfit(answer, kind, "it")
    if found is not None:
        raise AnswerDamaged(found)


def misfit(value: Any, kind: Any, place: str) -> str | None:
    """Where the value is not what its type says; None: it is. O(size)."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _misfit_of_object(value, kind, place)
    if origin in {list, dict}:
        return _misfit_of_many(value, origin, inner[-1], place)
    if origin in {Union, types.UnionType}:
        found = [misfit(value, each, place) for each in inner]
        return None if None in found else found[0]
    return None if _is_plain(value, type(inner[0]) if origin is Literal else kind) else f"{place} is something else"


def _misfit_of_many(value: Any, kind: type, inner: Any, place: str) -> str | None:
    if not isinstance(value, kind):
        return f"{place} is no {'list' if kind is list else 'object'}"
    places: Iterable[tuple[object, Any]] = enumerate(value) if isinstance(value, list) else cast(Any, value).items()
    found = (misfit(each, inner, f"{place}.{name}") for name, each in places)
    return next((each for each in found if each is not None), None)


def _misfit_of_object(value: Any, kind: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is no object"
    for name, (inner, is_required) in _fields(kind).items():
        if name not in value:
            if is_required:
                return f"{place} has no {name}"
        elif (value[name] is not None or is_required) and (found := misfit(value[name], inner, f"{place}.{name}")):
            return found
    return None


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Each with its type, and whether it has to be there. `__required_keys__` alone does not know: annotations are
    text, and NotRequired is not seen in them."""
    marked, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    required = {name for name in kind.__required_keys__ if get_origin(marked[name]) is not NotRequired}
    return {name: (plain[name], name in required) for name in plain}


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        try:
            return isinstance(value, int | float) and math.isfinite(value)
        except OverflowError:  # a whole number of 400 digits
            return False
    return kind is Any or isinstance(value, kind)
