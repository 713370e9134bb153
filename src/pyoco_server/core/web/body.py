"""Incremental decoding of a response body that never keeps more than its limit (PRICED-139)."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

__all__ = ["ACCEPTED_ENCODINGS", "Body", "Flag"]

ACCEPTED_ENCODINGS: Final = "gzip, deflate, identity"
#: A gzip stream may consist of many members of some twenty bytes each, and the rest is copied after each of them.
_MEMBERS_MAX: Final = 1_000
_GZIP: Final = zlib.MAX_WBITS | 16
_ZLIB: Final = zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS


class Flag(StrEnum):
    """Why a page was not read completely."""

    #: The page is longer than the limit.
    TRUNCATED = "TRUNCATED"
    #: The server closed the connection before the end.
    INCOMPLETE = "INCOMPLETE"
    #: The body has an encoding that was not requested: nothing of it was read.
    ENCODING_UNKNOWN = "ENCODING_UNKNOWN"
    #: The text ends where the compressed data is invalid.
    ENCODING_BROKEN = "ENCODING_BROKEN"
    #: We failed to parse the page. It may have a title and a text that were not extracted.
    UNREADABLE = "UNREADABLE"


class Body:
    """Feed data while `wants` is true. Holds at most `kept_bytes_max`, regardless of how far a few bytes expand."""

    def __init__(self, encoding: str, kept_bytes_max: int, fed_bytes_max: int) -> None:
        """`encoding` is the value of the header. `fed_bytes_max` bounds an endless stream that expands to nothing."""
        self._encoding = encoding.strip().lower().removeprefix("x-") or "identity"
        self._kept_max, self._fed_max = kept_bytes_max, fed_bytes_max
        self._kept = bytearray()
        self._fed = 0
        self._head = b""
        self._members = 0
        #: None: no gzip member has started.
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
        """Decode one chunk. O(bytes fed + bytes kept)."""
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
        """The server marked the end of the body."""
        if self.wants and (self._unzip is not None or self._head):
            self.flag = Flag.ENCODING_BROKEN

    def stop(self) -> None:
        """The body ended prematurely."""
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
        """Decode a part, and return the rest."""
        if self._unzip is None:
            self._begin(data)
        if self._unzip is None:
            return b""
        self._keep(self._unzip.decompress(data, self._kept_max - len(self._kept) + 1))
        if not self._unzip.eof:
            return self._unzip.unconsumed_tail
        # A finished decompressor would keep, and copy, everything else it is fed.
        rest, self._unzip = self._unzip.unused_data, None
        self._members += 1
        self._is_over = self._encoding == "deflate"
        return rest

    def _begin(self, data: bytes) -> None:
        """Start the first member, or another one, whose output follows that of the previous one."""
        if self._members and not data.startswith(b"\x1f"):  # padding, or data that was not requested
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
        """Return the window bits: `deflate` means the zlib format, but some servers send raw deflate."""
        is_framed = head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
        return _ZLIB if is_framed else _RAW
