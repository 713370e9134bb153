"""Make text from third-party code safe for every store: databases, JSON, headers and logs."""

from __future__ import annotations

import re

__all__ = ["is_plain", "plain"]

#: All of Unicode's control characters. PostgreSQL cannot store NUL; a terminal interprets the others.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Separators of words and lines.
_BETWEEN = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_HALF = re.compile(r"[\ud800-\udfff]")


def plain(text: str, length_max: int) -> str:
    """Return at most `length_max` characters, each of which can be stored and shown. Clean text is returned unchanged.

    Line breaks and tabs become a space, other control characters are removed, and a lone surrogate becomes U+FFFD.
    """
    one_line = _CONTROL.sub("", _BETWEEN.sub(" ", text[: 2 * length_max]))
    # Via UTF-16, where two adjacent surrogates form one character.
    return one_line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")[:length_max]


def is_plain(text: str) -> bool:
    return not _CONTROL.search(text) and not _HALF.search(text)
