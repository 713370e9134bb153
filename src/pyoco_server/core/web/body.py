"""The body of an answer, decoded as it comes, and never more of it than is kept (PRICED-139)."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

__all__ = ["ACCEPTED_ENCODINGS", "Body", "Flag"]

ACCEPTED_ENCODINGS: Final = "gzip, deflate, identity"
#: A stream may be put together of many, each of some twenty bytes, and the rest is copied after each.
_MEMBERS_MAX: Final = 1_000
_GZIP: Final = zlib.MAX_WBITS | 16
_ZLIB: Final = zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS


class Flag(StrEnum):
    """What is to be known of a page that was not read whole."""

    #: There is more than is kept.
    TRUNCATED = "TRUNCATED"
    #: The server stopped before the end.
    INCOMPLETE = "INCOMPLETE"
    #: In an encoding that nobody asked for: nothing of it was read.
    ENCODING_UNKNOWN = "ENCODING_UNKNOWN"
    #: What was read ends where the compression does not make sense any more.
    ENCODING_BROKEN = "ENCODING_BROKEN"
    #: We failed to read it. There may be a title and a text, which nobody knows.
    UNREADABLE = "UNREADABLE"


class Body:
    """Feed it until it `wants` no more. Holds at most `kept_bytes_max`, whatever a few bytes would expand to."""

    def __init__(self, encoding: str, kept_bytes_max: int, fed_bytes_max: int) -> None:
        """`encoding` is that of the header. `fed_bytes_max` ends a stream that expands to nothing, for ever."""
        self._encoding = encoding.strip().lower().removeprefix("x-") or "identity"
        self._kept_max, self._fed_max = kept_bytes_max, fed_bytes_max
        self._kept = bytearray()
        self._fed = 0
        self._head = b""
        self._members = 0
        #: None: no member is begun.
        self._unzip: zlib._Decompress | None = None
        self._is_over = False
        self.flag: Flag | None = None
        if self._encoding not in {"identity", "gzip", "deflate"}:
            self.flag = Flag.ENCODING_UNKNOWN

    @property
    def wants(self) -> bool:
        return self.flag is None and not self._is_over

    @property
    def data(self) -> bytes:
        return bytes(self._kept)

    def feed(self, data: bytes) -> None:
        """O(bytes fed + bytes kept)."""
        if not self.wants or not data:
            return
        self._fed += len(data)
        if self._encoding == "identity":
            self._keep(data)
        else:
            self._decode(data)
        if self._fed > self._fed_max and self.wants:
            self.flag = Flag.TRUNCATED

    def end(self) -> None:
        """The server says that this was all."""
        if self.wants and (self._unzip is not None or self._head):
            self.flag = Flag.ENCODING_BROKEN

    def stop(self) -> None:
        """There would have been more, and it does not come."""
        if self.wants:
            self.flag = Flag.INCOMPLETE

    def _keep(self, data: bytes) -> None:
        self._kept += data[: self._kept_max - len(self._kept) + 1]
        if len(self._kept) > self._kept_max:
            del self._kept[self._kept_max :]
            self.flag = Flag.TRUNCATED

    def _decode(self, data: bytes) -> None:
        data, self._head = self._head + data, b""
        try:
            while data and self.wants:
                data = self._step(data)
        except zlib.error:
            self.flag = Flag.ENCODING_BROKEN

    def _step(self, data: bytes) -> bytes:
        """What is left to decode."""
        if self._unzip is None:
            self._begin(data)
        if self._unzip is None:
            return b""
        self._keep(self._unzip.decompress(data, self._kept_max - len(self._kept) + 1))
        if not self._unzip.eof:
            return self._unzip.unconsumed_tail
        # Whatever else it was fed it would keep, and copy each time.
        rest, self._unzip = self._unzip.unused_data, None
        self._members += 1
        self._is_over = self._encoding == "deflate"
        return rest

    def _begin(self, data: bytes) -> None:
        """The first member, or another one, which goes on where the last one ended."""
        if self._members and not data.startswith(b"\x1f"):  # padding, or what nobody asked for
            self._is_over = True
        elif self._members > _MEMBERS_MAX:
            self.flag = Flag.TRUNCATED
        elif self._encoding == "gzip":
            self._unzip = zlib.decompressobj(_GZIP)
        elif len(data) < 2:
            self._head = data
        else:
            self._unzip = zlib.decompressobj(self._window(data))

    def _window(self, head: bytes) -> int:
        """`deflate` means zlib's frame; some servers send it without."""
        is_framed = head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
        return _ZLIB if is_framed else _RAW
