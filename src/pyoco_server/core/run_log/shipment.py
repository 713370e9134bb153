"""A batch of lines on its way to the store."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BYTES_MAX", "LINES_MAX", "Shipment"]

#: A batch takes this many bytes of text at most, so that a message stays below NATS' usual limit of 1 MiB.
BYTES_MAX = 256 * 1024
#: And this many lines, so that a batch of empty lines is encoded within milliseconds.
LINES_MAX = 16_384


@dataclass(frozen=True)
class Shipment:
    """A batch to be stored, and what has to be known of it without decoding it."""

    first: int
    count: int
    #: The number of bytes before it, and in it, as they are counted for the bounds.
    before: int
    size: int
    #: It counts for the tail: it may be deleted when later lines have been stored.
    is_tail: bool
    is_last: bool
    payload: bytes
    #: Its lines by stream, in the order of `Stream`.
    streams: tuple[int, ...] = (0, 0, 0, 0)
