"""Lines as text: for files, for terminals, and without anything that a terminal would execute (LOG-4, LOG-10)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pyoco_server.core.run_log.line import Line

__all__ = ["line_text", "plain", "text_of", "with_colours"]

#: Control characters except TAB: C0, DEL and C1, which some terminals execute, too. Also line separators.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
#: A sequence that sets colours and weight of the text that follows, and nothing else.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_RESET = "\x1b[0m"


def plain(text: str) -> str:
    """Show control characters instead of letting them act; colours are left out."""
    return _CONTROL.sub(_escaped, _COLOUR.sub("", text))


def with_colours(text: str) -> str:
    """The same for a terminal, with colours, which end with the text."""
    parts, at = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [_CONTROL.sub(_escaped, text[at : colour.start()]), colour[0]]
        at = colour.end()
    parts.append(_CONTROL.sub(_escaped, text[at:]))
    return "".join(parts) + (_RESET if len(parts) > 1 else "")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def line_text(line: Line, *, is_terminal: bool = False) -> str:
    """Return `<RFC 3339 with milliseconds> <task or -> <stream> <text>`.

    An exception follows on lines of its own, each with the same beginning.
    """
    return text_of(
        ts=line.ts,
        task=line.task,
        stream=line.stream,
        text=line.text,
        exc=line.exc,
        cut_bytes=line.cut_bytes,
        is_terminal=is_terminal,
    )


def text_of(
    *, ts: float, task: str | None, stream: str, text: str, exc: str | None, cut_bytes: int, is_terminal: bool
) -> str:
    """Return the text of a line that consists of these members, as `line_text`."""
    show = with_colours if is_terminal else plain
    front = f"{_instant(ts)} {plain(task) if task is not None else '-'} {plain(stream)}"
    cut = f" [{cut_bytes} bytes cut]" if cut_bytes else ""
    exception = "" if exc is None else "".join(f"\n{front} {show(each)}" for each in exc.split("\n"))
    return f"{front} {show(text)}{cut}{exception}"


def _instant(ts: float) -> str:
    try:
        return datetime.fromtimestamp(ts, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # not from our clock
        return str(ts)
