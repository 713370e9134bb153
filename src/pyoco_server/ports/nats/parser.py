"""A fast parser of the NATS protocol for complete messages; the library parses everything else.

The library tries a regular expression for each kind of line, moves the rest of its buffer for each message, and passes
each message on in a coroutine. Nearly all input consists of messages, and nearly all of them arrive complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

__all__ = ["QuickParser"]

_LINE_END = b"\r\n"
#: A message with more than this missing is left to the library, which does not join the buffer for each piece.
_KEPT_BYTES_MAX = 1 << 16
#: The number of fields of a line without a reply: kind, subject, subscription id, and one or two sizes.
_WORDS = {b"MSG": 4, b"HMSG": 5}


class QuickParser(Parser):
    """Calls `hear` with the listener and the parts of each message, as bytes; `hear` must not raise."""

    def __init__(self, nc: Any, listeners: Mapping[int, Any], hear: Callable[[Any, bytes, bytes, bytes, bytes], None]):
        self._listeners, self._hear = listeners, hear
        super().__init__(nc)

    def reset(self) -> None:
        super().reset()
        #: The start of an incomplete message.
        self._kept = b""

    async def parse(self, data: bytes = b"") -> None:
        if self.buf or self.state != AWAITING_CONTROL_LINE:  # the library has not completed its last item
            await super().parse(data)
            return
        if self._kept:
            data, self._kept = self._kept + data, b""
        at, is_partial = 0, False
        while not is_partial and (line_end := data.find(_LINE_END, at)) >= 0:
            words = data[at:line_end].split()
            count = _WORDS.get(words[0]) if words else None
            if count is None or not count <= len(words) <= count + 1:
                break
            if not all(map(bytes.isdigit, (words[2], *words[3 - count :]))):  # the library reports the error
                break
            begin = line_end + 2
            end = begin + int(words[-1])
            is_partial = len(data) < end + 2
            if not is_partial:
                head_end = begin + int(words[-2]) if count == 5 else begin
                reply = words[3] if len(words) > count else b""
                listener = self._listeners.get(int(words[2]))
                head, body = data[begin:head_end], data[head_end:end]
                if listener is not None:
                    self._hear(listener, words[1], reply, body, head)
                else:
                    await self.nc._process_msg(int(words[2]), words[1], reply, body, head or None)
                at = end + 2
        if is_partial and end - len(data) <= _KEPT_BYTES_MAX:
            self._kept = data[at:]
        elif at < len(data):
            await super().parse(data[at:])
