"""Read requests by their shapes: every problem at once, with its place and its reason.

A valid JSON body costs one pass of msgspec. Only a refused one is parsed again and compared with its shape member by
member, because msgspec stops at the first problem.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect
from starlette.datastructures import QueryParams

from pyoco_server.core.unknown import UNKNOWN_MAX, unknown_members
from pyoco_server.doors.http.requests import Malformed, malformed, read_flag, read_number
from pyoco_server.doors.http.shapes import Request, decode_hook
from pyoco_server.errors import Problem, Refused

__all__ = ["Reading", "members_of", "read_document", "read_query", "read_texts"]

S = TypeVar("S", bound=Request)
Loc = tuple[str | int, ...]

_BODY: Loc = ("body",)


def read_document(shape: type[S], body: bytes) -> S:
    """Read a JSON body. Raises Malformed with every problem (FLOW-50)."""
    decoder: msgspec.json.Decoder[S] = _decoder(shape)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        problems = _problems_of(shape, body) if isinstance(error, msgspec.ValidationError) else []
        if not problems:
            raise malformed(error, body) from error
        raise Malformed(problems[0].msg, problems=tuple(problems)) from error


@functools.cache
def _decoder(shape: type[Request]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape, dec_hook=decode_hook)


def _problems_of(shape: type[Request], body: bytes) -> list[Problem]:
    """Return every problem of a body of the wrong shape; none if it is not even JSON."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return []
    return list(islice(_faults(document, _type_of(shape), _BODY), UNKNOWN_MAX))


@functools.cache
def _type_of(shape: Any) -> inspect.StructType:
    found = inspect.type_info(shape)
    assert isinstance(found, inspect.StructType)
    return found


def members_of(shape: type[Request]) -> tuple[str, ...]:
    """Return the names of the members as they are sent."""
    return tuple(each.encode_name for each in _type_of(shape).fields)


def _faults(value: Any, kind: inspect.Type, loc: Loc) -> Iterator[Problem]:
    """Yield the problems of a JSON value."""
    if isinstance(kind, inspect.Metadata) and isinstance(
        kind.type, inspect.StructType | inspect.ListType if isinstance(value, list) else inspect.StructType
    ):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        yield from _faults_of_either(value, kind, loc)
    elif isinstance(kind, inspect.StructType):
        yield from _faults_of_object(value, kind, loc)
    elif isinstance(kind, inspect.ListType) and isinstance(value, list) and _fits(len(value), kind):
        for index, item in enumerate(value):
            yield from _faults(item, kind.item_type, (*loc, index))
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for name, item in value.items():
            yield from _faults(item, kind.value_type, (*loc, name))
    else:
        problem = _fault(value, kind)
        if problem is not None:
            yield Problem(loc, *problem)


def _faults_of_either(value: Any, kind: inspect.UnionType, loc: Loc) -> Iterator[Problem]:
    """A value that may be null has the problems of its other type; one of several types matches one or none."""
    types = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    if value is None and len(types) < len(kind.types):
        return
    found = [list(_faults(value, each, loc)) for each in types]
    if [] not in found:
        yield from min(found, key=len)


def _faults_of_object(value: Any, kind: inspect.StructType, loc: Loc) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(loc, "must be an object", "type")
        return
    fields = {each.encode_name: each for each in kind.fields}
    for name, field in fields.items():
        if name in value:
            yield from _faults(value[name], field.type, (*loc, name))
        elif field.required:
            yield Problem((*loc, name), "is required", "missing")
    if kind.forbid_unknown_fields:
        yield from unknown_members(loc, value, fields)


def _fault(value: Any, kind: inspect.Type) -> tuple[str, str] | None:
    """Return the message and the type of the problem of a value that has no parts, or None."""
    kind, extra = _without_metadata(kind)
    rule = extra.get("rule")
    if isinstance(kind, inspect.StrType):
        return _text_fault(value, kind, rule) if isinstance(value, str) else (rule or "must be a string", "type")
    if isinstance(kind, inspect.CustomType):
        return _custom_fault(value, kind)
    if isinstance(kind, inspect.ListType):
        return _list_fault(value, kind, rule)
    return None if _matches(value, kind) else (rule or _rule_of(kind), "type")


def _without_metadata(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """Return the type itself, and what its `Meta(extra=...)` says."""
    return (kind.type, kind.extra or {}) if isinstance(kind, inspect.Metadata) else (kind, {})


def _text_fault(text: str, kind: inspect.StrType, rule: str | None) -> tuple[str, str] | None:
    if len(text) < (kind.min_length or 0):
        few = kind.min_length
        return rule or f"must have at least {'one character' if few == 1 else f'{few} characters'}", "too_short"
    if kind.pattern is not None and not re.search(kind.pattern, text):
        return rule or f"must match {kind.pattern}", "pattern"
    if kind.max_length is not None and len(text) > kind.max_length:
        return f"has at most {kind.max_length} characters", "too_long"
    return None


def _custom_fault(value: Any, kind: inspect.CustomType) -> tuple[str, str] | None:
    try:
        decode_hook(kind.cls, value)
    except ValueError as error:
        return str(error), "value"
    return None


def _list_fault(value: Any, kind: inspect.ListType, rule: str | None) -> tuple[str, str]:
    if not isinstance(value, list):
        return rule or "must be an array", "type"
    if len(value) < (kind.min_length or 0):
        return f"must have at least {kind.min_length} items; it has {len(value)}", "too_short"
    return f"has at most {kind.max_length} items; it has {len(value)}", "too_long"


def _fits(size: int, kind: inspect.ListType) -> bool:
    return (kind.min_length or 0) <= size <= (size if kind.max_length is None else kind.max_length)


def _matches(value: Any, kind: inspect.Type) -> bool:
    """Return whether a value without parts is of its type; True for types that take any value."""
    if isinstance(kind, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(kind, inspect.IntType):
        return isinstance(value, int) and not isinstance(value, bool) and _in_range(value, kind)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool) and _in_range(value, kind)
    if isinstance(kind, inspect.LiteralType):
        return value in kind.values
    if isinstance(kind, inspect.EnumType):
        return value in [each.value for each in kind.cls]
    return isinstance(value, dict) if isinstance(kind, inspect.DictType) else True


def _in_range(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _rule_of(kind: inspect.Type) -> str:
    """Return the rule of a type that is not text, in words."""
    if isinstance(kind, inspect.LiteralType):
        return f"must be one of {', '.join(map(str, kind.values))}"
    if isinstance(kind, inspect.EnumType):
        return f"must be one of {', '.join(str(each.value) for each in kind.cls)}"
    if isinstance(kind, inspect.BoolType):
        return "must be true or false"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        what = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        if kind.ge is not None and kind.le is not None:
            return f"must be {what} from {kind.ge} to {kind.le}"
        return f"must be {what}" if kind.ge is None else f"must be {what}, at least {kind.ge}"
    return "must be an object" if isinstance(kind, inspect.DictType) else "is not valid"


# Texts: queries and the fields of forms


@dataclass
class Reading(Generic[S]):
    """What was read, and its problems so far. A member with a problem has its default, or "" if it is required."""

    value: S
    problems: list[Problem]
    _place: str

    def wrong(self, name: str, message: str, kind: str = "value") -> None:
        self.problems.append(Problem((self._place, name), message, kind))

    def checked(self, error: type[Refused] = Malformed, unknown: type[Refused] | None = None) -> S:
        """Return the value. Raises `error` with every problem; `unknown` if one of them is an unknown name."""
        if not self.problems:
            return self.value
        if unknown is not None and any(each.type == "unknown_member" for each in self.problems):
            error = unknown
        raise error(self.problems[0].msg, problems=tuple(self.problems))


def read_query(shape: type[S], query: QueryParams) -> Reading[S]:
    """Read the parameters of a query. A parameter that is no list is given once at most."""
    if not query and not any(each.required for each in _type_of(shape).fields):
        return Reading(shape(), [], "query")
    given: dict[str, list[str]] = {}
    for name, value in query.multi_items():
        given.setdefault(name, []).append(value)
    return read_texts(shape, given, "query")


def read_texts(shape: type[S], given: Mapping[str, Sequence[str]], place: str) -> Reading[S]:
    """Read texts by name, such as the parameters of a query."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    known = _type_of(shape).fields
    for each in known:
        if isinstance(_without_metadata(each.type)[0], inspect.BytesType):
            values[each.name] = b""  # a file, which is read as it arrives
            continue
        texts = given.get(each.encode_name, ())
        try:
            if texts:
                values[each.name] = _member_of(texts, each.type)
            elif each.required:
                raise _WrongText("is required", "missing")  # noqa: TRY301  (the same handling as of a bad value)
        except _WrongText as error:
            problems.append(Problem((place, each.encode_name), str(error), error.kind))
            if each.required:
                values[each.name] = ""
    problems += unknown_members((place,), given, [each.encode_name for each in known])
    return Reading(shape(**values), problems, place)


class _WrongText(ValueError):
    def __init__(self, message: str, kind: str = "value") -> None:
        super().__init__(message)
        self.kind = kind


def _member_of(texts: Sequence[str], kind: inspect.Type) -> Any:
    """Raises _WrongText."""
    bare, _ = _without_metadata(kind)
    if isinstance(bare, inspect.ListType):
        return [_value_of(text, bare.item_type) for text in texts]
    if len(texts) > 1:
        raise _WrongText("is given more than once")
    if isinstance(bare, inspect.UnionType):  # with null, which no text is
        (kind,) = (each for each in bare.types if not isinstance(each, inspect.NoneType))
    return _value_of(texts[0], kind)


def _value_of(text: str, kind: inspect.Type) -> Any:
    """Raises _WrongText."""
    bare, extra = _without_metadata(kind)
    try:
        if isinstance(bare, inspect.CustomType):
            return bare.cls(bare.cls.text_rule(text))  # type: ignore[attr-defined]  # Duration and Instant have one
        value = extra.get("read", _parsed)(text, bare)
    except ValueError as error:
        raise _WrongText(str(error)) from error
    if value is None:
        raise _WrongText(extra.get("rule") or _rule_of(bare))
    problem = _fault(value, kind)
    if problem is not None:
        raise _WrongText(problem[0])
    return bare.cls(value) if isinstance(bare, inspect.EnumType) else value


_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


def _parsed(text: str, kind: inspect.Type) -> Any:
    """Return the value that a text stands for, or None if it stands for none of this type."""
    if isinstance(kind, inspect.BoolType):
        return read_flag(text)
    if isinstance(kind, inspect.IntType):
        return int(text) if _DIGITS.fullmatch(text) else None
    if isinstance(kind, inspect.FloatType):
        return read_number(text)
    return text
