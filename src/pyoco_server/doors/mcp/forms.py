"""JSON schemas of the tools' arguments and results (contract section 22), and their validation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyoco_server.errors import Problem

__all__ = [
    "DECISION",
    "FILE",
    "FILE_BASE64_LENGTH_MAX",
    "FLOW_RUN",
    "GET",
    "LINES",
    "LOGS",
    "OCR",
    "RECEIPT",
    "RUN",
    "STORED",
    "URL",
    "misfits",
]

Schema = dict[str, Any]
Loc = tuple[str | int, ...]

_MAX_COST: Final[Schema] = {"type": "number", "minimum": 0.01}
_TIMEBOX: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 90}
_SCORE: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1}
_KEY: Final[Schema] = {"type": "string", "minLength": 8, "maxLength": 64}

# Verbatim from the contract. A tool's usage is explained in its description.
URL: Final[Schema] = {
    "type": "object",
    "required": ["urls", "max_cost_usd"],
    "properties": {
        "urls": {"type": "array", "items": {"type": "string", "format": "uri"}, "minItems": 1, "maxItems": 30},
        "max_cost_usd": _MAX_COST,
        "timebox_sec": _TIMEBOX,
        "min_reliability_score": _SCORE,
        "idempotency_key": _KEY,
    },
    "additionalProperties": False,
}
OCR: Final[Schema] = {
    "type": "object",
    "required": ["input_files", "max_cost_usd"],
    "properties": {
        "input_files": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 10},
        "max_cost_usd": _MAX_COST,
        "ocr_profile": {"type": "string", "enum": ["P1", "P2A", "P2B", "P3"]},
        "language": {"type": "string", "default": "kor+eng"},
        "timebox_sec": _TIMEBOX,
        "artifacts": {
            "type": "object",
            "properties": {"include_markdown": {"type": "boolean"}, "include_docx": {"type": "boolean"}},
        },
        "idempotency_key": _KEY,
    },
    "additionalProperties": False,
}
DECISION: Final[Schema] = {
    "type": "object",
    "required": ["question", "max_cost_usd"],
    "properties": {
        "question": {"type": "string"},
        "context": {"type": "string"},
        "max_cost_usd": _MAX_COST,
        "timebox_sec": _TIMEBOX,
        "min_reliability_score": _SCORE,
        "idempotency_key": _KEY,
    },
    "additionalProperties": False,
}
GET: Final[Schema] = {
    "type": "object",
    "required": ["run_id"],
    "properties": {"run_id": {"type": "string", "minLength": 1, "maxLength": 64}},
    "additionalProperties": False,
}
LOGS: Final[Schema] = {
    "type": "object",
    "required": ["run_id"],
    "properties": {
        "run_id": {"type": "string", "minLength": 1, "maxLength": 64},
        "task": {"type": "string", "minLength": 1, "maxLength": 255},
        "tail": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
        "search": {"type": "string", "minLength": 1, "maxLength": 200},
    },
    "additionalProperties": False,
}

#: Length for a file of 8 MiB, which a tool call holds in memory completely. Larger files are uploaded without a tool.
FILE_BASE64_LENGTH_MAX: Final = 4 * -(-8 * 1_048_576 // 3)
FILE: Final[Schema] = {
    "type": "object",
    "required": ["name", "content_base64"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 255},
        "content_base64": {"type": "string", "minLength": 1, "maxLength": FILE_BASE64_LENGTH_MAX},
        "content_type": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    "additionalProperties": False,
}

_TEXT: Final[Schema] = {"type": "string"}
_PROBLEM: Final[Schema] = {
    "type": "object",
    "description": "With isError: why not (RFC 9457).",
    "required": ["type", "title", "status", "detail", "instance", "reason_code", "trace_id"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "instance": _TEXT,
        "reason_code": _TEXT,
        "trace_id": _TEXT,
        "run_id": _TEXT,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "message"],
                "properties": {"pointer": _TEXT, "message": _TEXT},
            },
        },
        "err_id": _TEXT,
        "price_usd": _TEXT,
    },
}


def _or_problem(answer: Schema) -> Schema:
    """Allow a problem document too: some clients also validate errors against the output schema."""
    return {"type": "object", "anyOf": [answer, _PROBLEM]}


RECEIPT: Final[Schema] = _or_problem(
    {
        "type": "object",
        "description": "The run was accepted; its result is not there yet. Poll it with dpp_run_get.",
        "required": ["run_id", "status", "reservation", "poll", "meta", "idempotency_key"],
        "properties": {
            "run_id": _TEXT,
            "status": {"const": "QUEUED"},
            "reservation": {"type": "object"},
            "poll": {"type": "object"},
            "meta": {"type": "object"},
            "idempotency_key": _TEXT,
        },
    }
)
LINES: Final[Schema] = _or_problem(
    {
        "type": "object",
        "description": "The lines, oldest first. A line with event: gap stands where lines are missing.",
        "required": ["lines"],
        "properties": {
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["id", "attempt", "ts", "stream", "text"],
                    "properties": {
                        "id": _TEXT,
                        "attempt": {"type": "integer"},
                        "ts": {"type": "number"},
                        "task": _TEXT,
                        "stream": _TEXT,
                        "level": _TEXT,
                        "logger": _TEXT,
                        "text": _TEXT,
                        "exc": _TEXT,
                        "cut_bytes": {"type": "integer"},
                        "event": {"const": "gap"},
                        "missing_lines": {"type": "integer"},
                        "why": _TEXT,
                    },
                },
            },
        },
    }
)
STORED: Final[Schema] = _or_problem(
    {
        "type": "object",
        "description": "The file is stored. input_file is what dpp_ocr_run_submit takes in input_files.",
        "required": ["input_file", "sha256", "bytes", "content_type", "expires_at"],
        "properties": {
            "input_file": _TEXT,
            "sha256": _TEXT,
            "bytes": {"type": "integer"},
            "content_type": _TEXT,
            "expires_at": _TEXT,
        },
    }
)
FLOW_RUN: Final[Schema] = _or_problem(
    {
        "type": "object",
        "description": "The run of a flow. COMPLETED: with result, or result_preview of a long one. FAILED: with error."
        " Otherwise it has not ended; call get_run with run_id.",
        "required": ["run_id", "status"],
        "properties": {
            "run_id": _TEXT,
            "status": {"enum": ["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]},
            "result": {},
            "result_preview": _TEXT,
            "result_href": _TEXT,
            "error": _TEXT,
            "reason": _TEXT,
            "warning": _TEXT,
        },
    }
)
RUN: Final[Schema] = _or_problem(
    {
        "type": "object",
        "description": "The run as it is now.",
        "required": ["run_id", "status", "money_state", "cost", "result", "meta"],
        "properties": {
            "run_id": _TEXT,
            "status": {"enum": ["QUEUED", "PROCESSING", "COMPLETED", "FAILED"]},
            "money_state": _TEXT,
            "cost": {"type": "object"},
            "result": {"type": ["object", "null"]},
            "meta": {"type": "object"},
        },
    }
)


def _is_number(value: object) -> bool:
    """NaN and infinities are not numbers here, although some JSON parsers accept them."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    """Integers as JSON Schema defines them: 90.0 is valid."""
    return _is_number(value) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


_TYPES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "object": (lambda value: isinstance(value, dict), "must be an object"),
    "array": (lambda value: isinstance(value, list), "must be a list"),
    "string": (lambda value: isinstance(value, str), "must be a string"),
    "boolean": (lambda value: isinstance(value, bool), "must be true or false"),
    "number": (_is_number, "must be a number"),
    "integer": (_is_whole, "must be a whole number"),
}
#: The keywords used in the schemas above: the check, and the message if it fails.
_LIMITS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, limit: value >= limit, "must be at least {}"),
    "maximum": (lambda value, limit: value <= limit, "must be at most {}"),
    "minLength": (lambda value, limit: len(value) >= limit, "must have at least {} characters"),
    "maxLength": (lambda value, limit: len(value) <= limit, "must have at most {} characters"),
    "minItems": (lambda value, limit: len(value) >= limit, "must have at least {} items"),
    "maxItems": (lambda value, limit: len(value) <= limit, "must have at most {} items"),
    "enum": (lambda value, words: value in words, "must be one of: {}"),
}
#: A member name that is safe to repeat in a message: most likely a typo.
_SHOWABLE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def misfits(value: object, form: Mapping[str, Any], loc: Loc = ()) -> Iterator[Problem]:
    """Yield the problems of a value and their locations, never the value itself. O(size).

    Supports only the keywords used above.
    """
    fits, rule = _TYPES[form["type"]]
    if not fits(value):
        yield Problem(loc, rule, "type")
        return
    for keyword, (holds, message) in _LIMITS.items():
        if keyword in form and not holds(value, form[keyword]):
            limit = form[keyword]
            yield Problem(loc, message.format(", ".join(limit) if isinstance(limit, list) else limit), "value")
    if isinstance(value, list):
        for index, item in enumerate(value[: form.get("maxItems")]):
            yield from misfits(item, form["items"], (*loc, index))
    if isinstance(value, dict):
        yield from _members(value, form, loc)


def _members(value: dict[str, Any], form: Mapping[str, Any], loc: Loc) -> Iterator[Problem]:
    known = form["properties"]
    for name in form.get("required", ()):
        if name not in value:
            yield Problem((*loc, name), "is required", "missing")
    rule = f"is unknown; there may be: {', '.join(known)}"
    for name, item in value.items():
        if name in known:
            yield from misfits(item, known[name], (*loc, name))
        elif _SHOWABLE.fullmatch(name):
            yield Problem((*loc, name), rule, "unknown")
        else:
            yield Problem(loc, f"a member of it {rule}", "unknown")
