"""Turns bytes into lines of text (LOG-2, LOG-4, LOG-23)."""

from __future__ import annotations

__all__ = ["OpenLine", "cut", "cut_text", "shown"]

_NUL = "\u2400"
_CONTINUES, _LEADS = 0x80, 0xC0


def shown(data: bytes) -> str:
    """Decode: invalid UTF-8 becomes U+FFFD, and NUL becomes U+2400."""
    return data.decode("utf-8", "replace").replace("\0", _NUL)


def cut(data: bytes, bytes_max: int) -> tuple[bytes, int]:
    """Return at most `bytes_max` bytes, without a divided character at the end, and the number of bytes left out."""
    if len(data) <= bytes_max:
        return data, 0
    end = bytes_max
    # The byte after the end continues a character: leave that character out. Four bytes at most in valid UTF-8.
    for back in range(4):
        if end - back <= 0 or data[end - back] & 0xC0 != _CONTINUES:
            end -= back
            break
    return data[: max(end, 0)], len(data) - max(end, 0)


def cut_text(text: str, bytes_max: int) -> tuple[str, int]:
    """Return a text of at most `bytes_max` bytes in UTF-8, and the number of bytes left out."""
    if len(text) * 4 <= bytes_max:
        return text.encode("utf-8", "replace").decode().replace("\0", _NUL), 0
    kept, left_out = cut(text.encode("utf-8", "replace"), bytes_max)
    return shown(kept), left_out


class OpenLine:
    """The part of a line that was read so far. Memory is bounded by the length of a stored line."""

    __slots__ = ("_bytes_max", "_held", "_parts", "left_out")

    def __init__(self, bytes_max: int) -> None:
        # Four more, so that `cut` sees whether a character is divided; one more for a CR that belongs to the line end.
        self._bytes_max = bytes_max + 5
        self._parts: list[bytes] = []
        self._held = 0
        #: The number of bytes that were dropped.
        self.left_out = 0

    def __bool__(self) -> bool:
        return bool(self._held or self.left_out)

    def add(self, data: bytes) -> None:
        room = self._bytes_max - self._held
        if room > 0 and data:
            self._parts.append(data[:room])
            self._held += min(len(data), room)
        self.left_out += max(0, len(data) - max(room, 0))

    def take(self) -> tuple[bytes, int]:
        """Return the bytes, and how many were dropped after them; then it is empty."""
        taken = b"".join(self._parts), self.left_out
        self._parts.clear()
        self._held = self.left_out = 0
        return taken
