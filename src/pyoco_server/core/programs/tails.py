"""The end of what a program wrote, as text that a record can hold (GRID-151, GRID-153)."""

from __future__ import annotations

__all__ = ["TAIL_BYTES", "TAIL_BYTES_LEAST", "cut", "tail_of", "text_of"]

#: What is longer than this is kept as an object besides (GRID-145).
TAIL_BYTES = 8 * 1024
#: What is left of it when the record would be too large.
TAIL_BYTES_LEAST = 1024
#: Of a character of UTF-8, behind its first byte.
_FOLLOWING_MAX = 3


def text_of(data: bytes) -> str:
    """With replacement: a program may write anything."""
    return data.decode("utf-8", "replace")


def tail_of(data: bytes, bytes_max: int = TAIL_BYTES) -> str:
    """The last bytes. What the cut leaves of its first character is dropped, rather than shown as a replacement."""
    if len(data) <= bytes_max:
        return text_of(data)
    tail = data[-bytes_max:]
    follow = 0
    while follow < _FOLLOWING_MAX and 0x80 <= tail[follow] < 0xC0:
        follow += 1
    return text_of(tail[follow:])


def cut(text: str | None, bytes_max: int = TAIL_BYTES_LEAST) -> str | None:
    """The last bytes of a tail that is one already."""
    return None if text is None else tail_of(text.encode("utf-8", "replace"), bytes_max)
