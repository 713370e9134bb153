"""Prints results: JSON for programs, tables for people, with control characters escaped in both.

Results go to stdout, everything else to stderr (FLOW-430). Colours and live views are used only on terminals.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

__all__ = [
    "STATUS_COLOURS",
    "coloured",
    "has_colour",
    "instant",
    "is_printable",
    "is_terminal",
    "note",
    "print_answer",
    "print_fields",
    "print_json",
    "print_line",
    "print_page",
    "print_table",
    "safe",
    "span",
]

#: Control characters including C1: an escape sequence in a user's task name must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Control characters that JSON does not escape.
_RAW_CONTROL = re.compile(r"[\x7f-\x9f]")
#: The maximum width of a table cell on a terminal; in a file cells are never cut.
_CELL_COLUMNS_MAX = 48

_STATUS_COLUMNS = ("status", "state", "last_run_status")

STATUS_COLOURS = {
    "PENDING": "yellow",
    "QUEUED": "yellow",
    "RUNNING": "cyan",
    "PROCESSING": "cyan",
    "CANCELLING": "magenta",
    "COMPLETED": "green",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "IDLE": "green",
    "DISCONNECTED": "red",
}


def print_json(document: Any) -> None:
    click.echo(_json(document, indent=2))


def print_line(document: Any) -> None:
    """Print one event of a stream as one line, and flush it."""
    click.echo(_json(document, indent=None))


def _json(document: Any, indent: int | None) -> str:
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # an encoding without these characters, or a lone surrogate
        return json.dumps(document, indent=indent)
    return _RAW_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def note(text: str) -> None:
    """Print a message for the user on stderr."""
    click.echo("\n".join(safe(line) for line in text.splitlines()), err=True)


def safe(text: object) -> str:
    """Return the text with every control character escaped."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))


def is_terminal(stream: TextIO) -> bool:
    """Return whether the stream supports live views."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def coloured(word: str, stream: TextIO) -> str:
    """Return a status in its colour if the stream has colours."""
    return click.style(word, fg=STATUS_COLOURS[word]) if word in STATUS_COLOURS and has_colour(stream) else word


def print_page(
    page: Mapping[str, Any],
    output: str,
    columns: Sequence[str],
    row_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda item: item,
) -> None:
    """Print a page of a list: as JSON, or as a table and how to get the next page."""
    if output == "json":
        print_json(page)
        return
    print_table([row_of(item) for item in page["items"]], columns)
    if page["next_cursor"] is not None:
        note(f"there are more: --cursor {page['next_cursor']}")


def print_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, err: bool = False) -> None:
    """Print a header, then one line per row (FLOW-447).

    Unix times are shown as dates; wide characters count as two columns.
    """
    stream = sys.stderr if err else sys.stdout
    columns_max = _CELL_COLUMNS_MAX if stream.isatty() else None
    cells = [list(columns), *([_cell(row, name, columns_max) for name in columns] for row in rows)]
    widths = [max(_width(line[at]) for line in cells) for at in range(len(columns))]
    for line in cells:
        padded = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        for at, name in enumerate(columns):
            if name in _STATUS_COLUMNS:
                padded[at] = padded[at].replace(line[at], coloured(line[at], stream))
        click.echo("  ".join(padded).rstrip(), err=err)


def print_answer(answer: Mapping[str, Any], output: str) -> None:
    """Print what a command has changed: as JSON, or one line for each field."""
    if output == "json":
        print_json(answer)
    else:
        print_fields(answer)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one `name  value` line for each field that has a value."""
    shown = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    width = max(map(_width, shown), default=0)
    for name, value in shown.items():
        click.echo(f"  {name}{' ' * (width - _width(name))}  {_field(name, value)}")


def _field(name: str, value: Any) -> str:
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict | list) for each in value)):
        return safe(_json(value, indent=None))
    return _cell({name: value}, name, None)


def is_printable(text: str) -> bool:
    """Return whether a table cell on a terminal shows the text completely: a single line that is not too long."""
    return text.splitlines() in ([], [text]) and _width(safe(text)) <= _CELL_COLUMNS_MAX


def _cell(row: Mapping[str, Any], name: str, columns_max: int | None) -> str:
    value = row.get(name)
    if name.endswith("_at") or name == "timestamp":
        return instant(value)
    if isinstance(value, list):
        text = ",".join(map(str, value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = "" if value is None else str(value)
    return _cut(safe(text), columns_max)


def _cut(text: str, columns_max: int | None) -> str:
    if columns_max is None or _width(text) <= columns_max:
        return text
    kept = text[: columns_max - 1]
    while _width(kept) > columns_max - 1:
        kept = kept[:-1]
    return kept + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else not unicodedata.combining(each) for each in text)


def instant(value: Any) -> str:
    """Format Unix seconds as `2026-01-31T12:00:00Z`; other values are returned as text."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else safe(value)
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))
    except (OverflowError, ValueError, OSError):
        return str(value)


def span(seconds: float) -> str:
    """Format a duration: `400 ms`, `1.2 s`, `12 s`, `3 m 05 s`, `2 h 10 m`, `3 d 04 h`."""
    if seconds < 1:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole_seconds = int(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} m {whole_seconds % 60:02d} s"
    if whole_seconds < 86_400:
        return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} m"
    return f"{whole_seconds // 86_400} d {whole_seconds % 86_400 // 3600:02d} h"
