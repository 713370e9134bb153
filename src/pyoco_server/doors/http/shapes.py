"""Shapes: each request and response is declared once, as a msgspec Struct.

From the declaration follow the reader and its errors (`reading.py`), the OpenAPI document and the generated reference.
The docstring of a shape and `Meta(description=...)` of its members are the words of the documentation. A request
derives from `Request`, which refuses unknown members (STRICT-1):

    class RunRerunRequest(Request):
        \"\"\"The changes.\"\"\"

        tag: Tag | None = None
        limit: Annotated[int, Meta(ge=1, le=200, description="How many at most.")] = 50

`Meta(extra={"rule": ...})` is the text of an error where the one made from the constraints would not be clear enough.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from pyoco_server.core.durations import duration_of, duration_of_text, instant_of
from pyoco_server.core.names import TAG_LENGTH_MAX, TAG_PATTERN
from pyoco_server.core.states import RunState

__all__ = [
    "FLOW_WARNING",
    "Absent",
    "Answer",
    "Body",
    "Count",
    "Duration",
    "File",
    "FormRequest",
    "Instant",
    "Request",
    "RunId",
    "Status",
    "Tag",
    "Uuid",
    "components_of",
    "decode_hook",
    "one_of",
    "pattern",
    "query_parameters",
    "refers_to",
    "schema_of",
]

_COMPONENTS = "#/components/schemas/"


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """A request body, the fields of a form, or the parameters of a query."""


class FormRequest(Request):
    """The fields of a form, which has no null: a member that may be null may be left out."""


@dataclass(frozen=True)
class Body:
    """The body of an operation."""

    shape: Any
    required: bool = True
    media: str = "application/json"
    #: Shapes of members that are decoded one by one, and only refer to them.
    parts: tuple[type[Request], ...] = ()

    def document(self) -> dict[str, Any]:
        return {"required": self.required, "content": {self.media: {"schema": schema_of(self.shape)}}}


@dataclass(frozen=True)
class Answer:
    """A response with a body. `shape` is a Struct, or a type made of Structs, such as a list of them."""

    shape: Any
    description: str
    media: str = "application/json"
    #: Other media types that the response may have, with their schemas.
    more: dict[str, dict[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        media = {self.media: {"schema": schema_of(self.shape)}}
        media |= {name: {"schema": schema} for name, schema in self.more.items()}
        return {"description": self.description, "content": media}


def pattern(regex: str, rule: str, **more: Any) -> Meta:
    r"""Constrain a text to `^...$`, with the rule in words for its error.

    The reader uses `\Z`: in Python, `$` also matches before a line feed at the end.
    """
    assert regex.startswith("^")
    assert regex.endswith("$")
    return Meta(pattern=f"{regex[:-1]}{_END}", extra={"rule": rule}, **more)


_END = "\\Z"


def one_of(values: Iterable[str], **more: Any) -> Meta:
    """Constrain a text to these values."""
    names = tuple(map(str, values))
    regex = f"^({'|'.join(map(re.escape, names))}){_END}"
    return Meta(
        pattern=regex,
        extra={"rule": f"must be one of {', '.join(names)}"},
        extra_json_schema={"enum": list(names)},
        **more,
    )


Tag = Annotated[
    str,
    pattern(
        TAG_PATTERN,
        "must be letters, digits, '_' and '-', for example gpu-large",  # FLOW-33
        max_length=TAG_LENGTH_MAX,
    ),
]
Status = Annotated[str, one_of(RunState)]
RunId = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Uuid = RunId
Count = Annotated[int, Meta(ge=0)]
#: A member of a response that may be left out.
Absent = msgspec.UnsetType
#: Describes the member `warning` of an accepted submission by name.
FLOW_WARNING = "No live worker announces the flow, but one that announces no flows, or not all, may know it."
#: A file of a form. Its content is read as it arrives and is not part of the value.
File = Annotated[bytes, Meta(extra_json_schema={"type": "string", "format": "binary", "minLength": 1})]


def refers_to(name: str) -> Meta:
    """Describe an object by the component of this name instead of by its type."""
    return Meta(extra_json_schema={"$ref": f"{_COMPONENTS}{name}"})


class Duration(float):
    """Seconds, from a number or a text such as `1h30m`."""

    rule: ClassVar = staticmethod(duration_of)
    text_rule: ClassVar = staticmethod(duration_of_text)
    schema: ClassVar = {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$"},
        ]
    }


def _instant_of_text(text: str) -> float:
    try:
        return instant_of(float(text))
    except ValueError:
        return instant_of(text)


class Instant(float):
    """Unix seconds, from a number or an RFC 3339 text with an offset."""

    rule: ClassVar = staticmethod(instant_of)
    text_rule: ClassVar = staticmethod(_instant_of_text)
    schema: ClassVar = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "format": "date-time"}]}


def decode_hook(kind: type, value: Any) -> Any:
    """Read a value of one of our own types. Raises ValueError with the rule."""
    return kind(kind.rule(value))  # type: ignore[attr-defined]  # msgspec calls this for Duration and Instant alone


@functools.cache
def _documented(kind: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the schema of a type, and the components it refers to, by name."""
    (schema,), components = msgspec.json.schema_components(
        (kind,), schema_hook=lambda each: vars(each)["schema"], ref_template=f"{_COMPONENTS}{{name}}"
    )
    plain = {name: _plain(each) for name, each in components.items()}
    if isinstance(kind, type) and issubclass(kind, FormRequest):
        members = plain[kind.__name__]["properties"]
        members |= {name: _without_null(each) for name, each in members.items()}
    return _plain(schema), plain


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type; a Struct is a reference to its component."""
    return _documented(kind)[0]


def components_of(kinds: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the components of all these types."""
    components: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        components |= _documented(kind)[1]
    return dict(components)


def _plain(schema: Any) -> Any:
    """Return the schema without what says nothing: titles that repeat names, and defaults that are null."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        return {"$ref": schema["$ref"]}
    kept = {name: _plain(each) for name, each in schema.items() if not _is_noise(schema, name)}
    if "enum" in kept:
        kept.pop("pattern", None)  # see `one_of`
    if isinstance(kept.get("pattern"), str):
        kept["pattern"] = kept["pattern"].removesuffix(_END) + ("$" if kept["pattern"].endswith(_END) else "")
    if "enum" in kept and "type" not in kept and all(isinstance(each, str) for each in kept["enum"]):
        kept = {"type": "string", **kept}
    options = kept.get("anyOf", ())
    if len(options) == 2 and options[1] == {"type": "null"} and "description" in options[0]:
        kept = {"anyOf": [{**options[0]}, options[1]], "description": options[0]["description"]}
        del kept["anyOf"][0]["description"]
    if kept.get("type") == "object" and "properties" not in kept:
        kept = {"additionalProperties": True, **kept}
    return kept


def _is_noise(schema: dict[str, Any], name: str) -> bool:
    is_member = not isinstance(schema[name], str | type(None))  # a property may have the name `title`
    return (
        (name == "title" and not is_member) or (name == "default" and schema[name] in (None, [], "")) or name == _BASE64
    )


#: msgspec takes bytes for base64; ours are files of a form.
_BASE64 = "contentEncoding"


def query_parameters(shape: type[Request]) -> list[dict[str, Any]]:
    """Return the members of a shape as the parameters of a query."""
    (component,) = components_of([shape]).values()
    return [
        {
            "name": name,
            "in": "query",
            "required": name in component["required"],
            "schema": {each: value for each, value in _without_null(member).items() if each != "description"},
            "description": member.get("description", ""),
        }
        for name, member in component["properties"].items()
    ]


def _without_null(member: dict[str, Any]) -> dict[str, Any]:
    """Queries and forms have no null: what may be left out may be null in the shape."""
    schema = dict(member)
    options = [each for each in schema.pop("anyOf", ()) if each != {"type": "null"}]
    if not options:
        return schema
    return (options[0] if len(options) == 1 else {"anyOf": options}) | schema
