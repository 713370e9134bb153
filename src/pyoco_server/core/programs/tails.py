"""The end of a program's output, as text for the record (GRID-151, GRID-153)."""

from __future__ import annotations

__all__ = ["TAIL_BYTES", "TAIL_BYTES_LEAST", "cut", "tail_of", "text_of"]

#: Longer output is stored as an object as well (GRID-145).
TAIL_BYTES = 8 * 1024
#: The length to which a tail is cut when the record would be too large.
TAIL_BYTES_LEAST = 1024
#: Continuation bytes of a UTF-8 character, at most.
_FOLLOWING_MAX = 3


def text_of(data: bytes) -> str:
    """Decode output, replacing invalid bytes: a program may write anything."""
    return data.decode("utf-8", "replace")


def tail_of(data: bytes, bytes_max: int = TAIL_BYTES) -> str:
    """Return the last bytes as text. A character split by the cut is dropped rather than shown as a replacement."""
    if len(data) <= bytes_max:
        return text_of(data)
    tail = data[-bytes_max:]
    follow = 0
    while follow < _FOLLOWING_MAX and 0x80 <= tail[follow] < 0xC0:
        follow += 1
    return text_of(tail[follow:])


def cut(text: str | None, bytes_max: int = TAIL_BYTES_LEAST) -> str | None:
    """Shorten a tail further."""
    return None if text is None else tail_of(text.encode("utf-8", "replace"), bytes_max)
