"""One YAML document as plain values, read in bounded time and memory.

pyyaml's own loader is safe but not enough: it silently keeps the last of duplicate keys, it accepts 20,000 levels, and
aliases let a kilobyte stand for gigabytes. The C loader ignores the hooks against that (measured), so the values are
built here from its events, and every bound is checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from pyoco_server.core.flow_file import excerpt, refuse
from pyoco_server.core.strict_json import DEPTH_MAX, Bounds, Loc, bounds_of
from pyoco_server.errors import InvalidFlow, Problem

__all__ = ["read_document"]

#: The C loader is three times as fast; the Python one reads the same files.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_PREFIX = "tag:yaml.org,2002:"
_TEXT, _LIST, _MAPPING, _MERGE = (_PREFIX + name for name in ("str", "seq", "map", "merge"))
_COLLECTION_TAGS = (None, "!", _LIST, _MAPPING)
_resolve: Callable[..., str] = Resolver().resolve
_constructor = SafeConstructor()
#: Scalars other than text, as the engine's own loader reads them.
_SCALARS: dict[str, Callable[[yaml.ScalarNode], Any]] = {
    _PREFIX + "null": _constructor.construct_yaml_null,
    _PREFIX + "bool": _constructor.construct_yaml_bool,
    _PREFIX + "int": _constructor.construct_yaml_int,
    _PREFIX + "float": _constructor.construct_yaml_float,
    # JSON values are checked elsewhere, which refuses it with a better message than here.
    _PREFIX + "timestamp": _constructor.construct_yaml_timestamp,
}
#: Parsing a number is quadratic in its length, and no useful number is longer.
_NUMBER_LENGTH_MAX = 200


def read_document(text: str) -> object:
    """Return the values of the single document in `text`; None if it has none. O(len(text)).

    Aliases and merge keys are expanded within `bounds_of`. Raises InvalidFlow for invalid syntax, a second document, a
    duplicate key, an unsupported tag, or anything out of bounds; it names the line.
    """
    builder = _Builder(bounds_of(len(text)))
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        what = error.problem or error.context or "cannot be read"
        raise _syntax_error(what, error.problem_mark or error.context_mark) from error
    except yaml.YAMLError as error:  # a control character: it has a position, but no line
        raise _syntax_error(str(error).split("\n", 1)[0], None) from error
    return builder.root


def _syntax_error(what: str, mark: Any) -> InvalidFlow:
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return refuse(Problem(("workflow",), f"is not YAML: {place}{excerpt(what)}", "yaml_syntax"))


@dataclass(frozen=True, slots=True)
class _Part:
    """A finished value that an alias may repeat, and the cost of repeating it."""

    value: Any
    nodes: int
    characters: int
    height: int


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read."""

    value: list[Any] | dict[Any, Any]
    anchor: str | None
    #: The counts before it began.
    nodes: int
    characters: int
    height: int = 1
    has_key: bool = False
    key: Any = None
    is_merge: bool = False
    merges: list[dict[Any, Any]] = field(default_factory=list)


class _Builder:
    def __init__(self, bounds: Bounds) -> None:
        self.root: Any = None
        self._bounds = bounds
        self._open: list[_Open] = []
        self._anchors: dict[str, _Part] = {}
        self._nodes = self._characters = self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Process one event. Raises InvalidFlow."""
        if isinstance(event, yaml.ScalarEvent):
            self._spend(1, len(event.value), event)
            value = self._scalar(event)
            if event.anchor is not None:
                self._anchors[event.anchor] = _Part(value, 1, len(event.value), 0)
            self._place(value, event)
        elif isinstance(event, yaml.AliasEvent):
            self._repeat(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._refusal(event, "a second document begins; one file holds one flow", "documents")

    def _begin(self, event: Any) -> None:
        self._spend(1, 0, event)
        if event.tag not in _COLLECTION_TAGS:
            raise self._refusal(event, f"the tag {excerpt(event.tag)!r} is not supported: remove it", "tag")
        if len(self._open) >= DEPTH_MAX:
            raise self._refusal(event, f"nested more than {DEPTH_MAX} levels deep", "too_deep")
        value: list[Any] | dict[Any, Any] = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        if self._expects_key():
            raise self._refusal(event, "a key must be text, not a list or mapping", "key_type")
        self._open.append(_Open(value, event.anchor, self._nodes - 1, self._characters))

    def _end(self, event: Any) -> None:
        done = self._open.pop()
        value = done.value
        if isinstance(value, dict) and done.merges:
            merged: dict[Any, Any] = {}
            for other in reversed(done.merges):  # the first merge wins, and keys written here override all
                merged |= other
            value = merged | value
        if done.anchor is not None:
            nodes, characters = self._nodes - done.nodes, self._characters - done.characters
            self._anchors[done.anchor] = _Part(value, nodes, characters, done.height)
        if self._open:
            self._open[-1].height = max(self._open[-1].height, done.height + 1)
        self._place(value, event)

    def _repeat(self, event: Any) -> None:
        part = self._anchors.get(event.anchor)
        if part is None:
            raise self._refusal(event, f"the alias *{excerpt(event.anchor)} has no finished anchor before it", "alias")
        self._spend(part.nodes, part.characters, event)
        if len(self._open) + part.height > DEPTH_MAX:
            raise self._refusal(event, f"aliases nest more than {DEPTH_MAX} levels deep", "too_deep")
        if self._open:
            self._open[-1].height = max(self._open[-1].height, part.height + 1)
        self._place(part.value, event)

    def _place(self, value: Any, event: Any) -> None:
        if not self._open:
            self.root = value
            return
        inner = self._open[-1]
        if isinstance(inner.value, list):
            inner.value.append(value)
        elif not inner.has_key:
            self._take_key(inner, value, event)
        else:
            inner.has_key = False
            if inner.is_merge:
                inner.merges = self._mergeable(value, event)
            else:
                inner.value[inner.key] = value

    def _take_key(self, inner: _Open, key: Any, event: Any) -> None:
        if isinstance(key, list | dict):
            raise self._refusal(event, "a key must be text, not a list or mapping", "key_type")
        inner.is_merge = key is _MERGE_KEY
        if key in inner.value or (inner.is_merge and inner.merges):
            shown = "<<" if inner.is_merge else excerpt(str(key))
            raise self._refusal(event, f"the key {shown!r} is there twice: keep one of them", "repeated_key")
        inner.has_key, inner.key = True, "<<" if inner.is_merge else key

    def _mergeable(self, value: Any, event: Any) -> list[dict[Any, Any]]:
        several = value if isinstance(value, list) else [value]
        if not several or not all(isinstance(item, dict) for item in several):
            raise self._refusal(event, "<< takes a mapping or a list of mappings", "merge")
        return several

    def _scalar(self, event: Any) -> Any:
        tag, text = event.tag, event.value
        if tag is None or tag == "!":
            tag = _resolve(yaml.ScalarNode, text, event.implicit)
        if tag == _TEXT:
            return text
        if tag == _MERGE and self._expects_key():
            return _MERGE_KEY
        read = _SCALARS.get(tag)
        if read is None:
            shown = excerpt(tag.removeprefix(_PREFIX))
            raise self._refusal(event, f"the tag {shown!r} is not supported: quote the value if it is text", "tag")
        if len(text) > _NUMBER_LENGTH_MAX:
            raise self._refusal(event, f"a number of {len(text)} characters is too long: quote it", "number")
        try:
            return read(yaml.ScalarNode(tag, text))
        except (ArithmeticError, AttributeError, LookupError, ValueError, yaml.YAMLError) as error:
            shown = f"{excerpt(text)!r} is not a {tag.removeprefix(_PREFIX)}: quote it"
            raise self._refusal(event, shown, "scalar") from error

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and not self._open[-1].has_key

    def _spend(self, nodes: int, characters: int, event: yaml.Event) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > self._bounds.nodes or self._characters > self._bounds.characters:
            limits = f"{self._bounds.nodes} values or {self._bounds.characters} characters"
            raise self._refusal(event, f"the file holds more than {limits}, counting what aliases repeat", "too_large")

    def _refusal(self, event: Any, msg: str, kind: str) -> InvalidFlow:
        mark = event.start_mark
        return refuse(Problem(self._loc(), f"line {mark.line + 1}, column {mark.column + 1}: {msg}", kind))

    def _loc(self) -> Loc:
        steps: list[str | int] = ["workflow"]
        for inner in self._open:
            if isinstance(inner.value, list):
                steps.append(len(inner.value))
            elif inner.has_key:
                steps.append(excerpt(str(inner.key)))
        return tuple(steps)


class _MergeKey:
    """Represents a plain `<<` in the position of a key."""


_MERGE_KEY = _MergeKey()
