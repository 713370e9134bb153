"""Text from somebody else's code, made fit for every store: databases, JSON, headers and logs."""

from __future__ import annotations

import re

__all__ = ["is_plain", "plain"]

#: All of Unicode's control characters. PostgreSQL holds no NUL; a terminal minds the others.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: What stands between words or lines.
_BETWEEN = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_HALF = re.compile(r"[\ud800-\udfff]")


def plain(text: str, length_max: int) -> str:
    """At most `length_max` characters, each of which can be stored and shown. Of text that is plain already, the same.

    A line break becomes a space, other control characters go, and half of a surrogate pair becomes U+FFFD.
    """
    one_line = _CONTROL.sub("", _BETWEEN.sub(" ", text[: 2 * length_max]))
    # By way of UTF-16, in which two halves that stand together are one character.
    return one_line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")[:length_max]


def is_plain(text: str) -> bool:
    return not _CONTROL.search(text) and not _HALF.search(text)
