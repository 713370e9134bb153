"""The short form of a record, for people at a terminal: `16:49:54 info worker-1: worker started (slots: 4)` (CLI-1)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TextIO

__all__ = ["clock_of", "has_colour", "short_text", "with_colour"]

#: Fields with another label than their name. The others are shown under their own, as far as they are not hidden.
_LABELS = {"run_id": "run", "exc_message": "error", "err_id": "id"}
#: For programs, or shown at another place of the line.
_HIDDEN = frozenset(
    {"ts", "service", "level", "logger", "message", "pathname", "lineno", "func", "msg_id"}
    | {"exc_type", "exc_traceback", "exc_origin", "exc_chain"}
)
_VALUE_LENGTH_MAX = 300
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_PLAIN_TERMINALS = frozenset({"dumb", "unknown"})


def short_text(name: str, facts: Mapping[str, object]) -> str:
    """Format a record: `warning worker-1: NATS connection lost (reason: …)`. One line, whatever its fields hold."""
    shown = [
        f"{_LABELS.get(field, field)}: {_short(value)}" for field, value in facts.items() if _is_shown(field, value)
    ]
    head = f"{str(facts['level']).lower()} {name}: {facts.get('message', '')}"
    return _CONTROL.sub(_escaped, head + (f" ({'; '.join(shown)})" if shown else ""))


def clock_of(facts: Mapping[str, object]) -> str:
    """Return the time of day of a record."""
    return str(facts.get("ts", ""))[11:19]


def with_colour(line: str, level: object) -> str:
    """Colour a line by its level."""
    code = _COLOURS.get(str(level))
    return line if code is None else f"\x1b[{code}m{line}\x1b[0m"


def has_colour(stream: TextIO) -> bool:
    """Return whether to colour what is written to this stream."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in _PLAIN_TERMINALS
    return stream.isatty() and not is_plain


def _is_shown(field: str, value: object) -> bool:
    return field not in _HIDDEN and value not in (None, "", [], {})


def _short(value: object) -> str:
    if isinstance(value, list):
        text = ", ".join(map(_short, value))
    elif isinstance(value, str | int | float):
        text = str(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _VALUE_LENGTH_MAX else text[: _VALUE_LENGTH_MAX - 1] + "…"


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
