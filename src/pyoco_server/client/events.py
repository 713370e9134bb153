"""Decodes server-sent events from bytes that may be split anywhere. No socket, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["EVENT_BYTES_MAX", "EventDecoder", "EventTooLarge", "ServerEvent"]

#: Snapshots have at most 256 KiB by default. A longer line or event than this is an error.
EVENT_BYTES_MAX = 64 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_RETRY_MS_DIGITS_MAX = 9


class EventTooLarge(ValueError):
    """A line, or the data of one event, is longer than it may be."""


@dataclass(frozen=True)
class ServerEvent:
    #: `message` if the server does not set it.
    name: str
    data: str
    #: The latest id of the stream so far; None: no event had one.
    id: str | None


class EventDecoder:
    """Decodes one stream. An incomplete event at the end of the stream is dropped, as the standard demands."""

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        #: The delay before the next connection that the server requests.
        self.retry_seconds: float | None = None
        self._id: str | None = None
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        #: The pieces of an incomplete line. They are joined only once, so many small pieces cost no more than a few.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_at_start = True
        self._after_cr = False

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yield the events that these bytes complete; O(bytes). Raises EventTooLarge after the valid ones."""
        for line in self._lines(data):
            event = self._take(line)
            if event is not None:
                yield event

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the completed lines, which end with CR, LF or CRLF."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if data.endswith(b"\r"):
            self._after_cr = True
        *complete, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for end in complete:
            self._keep(end)
            line = b"".join(self._pieces)
            self._pieces, self._pieces_bytes = [], 0
            yield line.removeprefix(_BOM) if self._is_at_start else line
            self._is_at_start = False
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
        if self._pieces_bytes > self._bytes_max:
            raise EventTooLarge(f"a line has more than {self._bytes_max} bytes")

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._bytes_max:
                raise EventTooLarge(f"an event has more than {self._bytes_max} bytes")
        elif name == b"event":
            self._name = _text(value)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_MS_DIGITS_MAX:
            self.retry_seconds = int(value) / 1000
        return None  # a comment (no name), or an unknown field

    def _dispatch(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._data, self._data_bytes, self._name = [], 0, ""
        if not data:
            return None
        return ServerEvent(name or "message", _text(b"\n".join(data)), self._id)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
