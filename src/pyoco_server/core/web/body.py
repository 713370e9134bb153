"""The body of an answer, decoded as it comes, and never more of it than is kept (PRICED-139)."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

__all__ = ["ACCEPTED_ENCODINGS", "Body", "Flag"]

ACCEPTED_ENCODINGS: Final = "gzip, deflate, identity"
#: A stream may be put together of many, each of some twenty bytes: looking at the rest after each is quadratic.
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
        self._unzip: zlib._Decompress | None = None
        self.flag: Flag | None = None
        if self._encoding not in {"identity", "gzip", "deflate"}:
            self.flag = Flag.ENCODING_UNKNOWN

    @property
    def wants(self) -> bool:
        return self.flag is None

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
        is_cut = self._unzip is not None and not self._unzip.eof
        if self.wants and (is_cut or self._head):
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
        if self._unzip is None:
            self._head += data
            if len(self._head) < 2:
                return
            data, self._head = self._head, b""
            self._unzip = zlib.decompressobj(self._window(data))
        try:
            while data and self.wants:
                data = self._step(data)
        except zlib.error:
            self.flag = Flag.ENCODING_BROKEN

    def _step(self, data: bytes) -> bytes:
        """What is left to decode."""
        assert self._unzip is not None
        self._keep(self._unzip.decompress(data, self._kept_max - len(self._kept) + 1))
        if not self._unzip.eof:
            return self._unzip.unconsumed_tail
        rest = self._unzip.unused_data
        if self._encoding == "gzip" and rest.startswith(b"\x1f"):  # another member: what it says goes on
            self._members += 1
            if self._members > _MEMBERS_MAX:
                self.flag = Flag.TRUNCATED
            self._unzip = zlib.decompressobj(_GZIP)
            return rest
        return b""  # padding, or what nobody asked for

    def _window(self, head: bytes) -> int:
        """`deflate` means zlib's frame; some servers send it without."""
        if self._encoding == "gzip":
            return _GZIP
        is_framed = head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
        return _ZLIB if is_framed else _RAW
