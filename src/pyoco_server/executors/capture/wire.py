"""What a guard sends to its worker: batches, each with a head that the worker reads instead of decoding the batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.shipment import Shipment

__all__ = ["Shipments", "argument", "pack_shipment", "read_argument"]

#: Length of the rest; number of the run; first, count, before, size; flags; lines by stream.
_HEAD = struct.Struct("<IIQIQIB4I")
_LENGTH = struct.Struct("<I")
_TAIL, _LAST = 1, 2
#: A batch is much smaller; anything larger is a defect.
_BYTES_MAX = 16 * 1024 * 1024


def pack_shipment(number: int, shipment: Shipment) -> bytes:
    flags = shipment.is_tail * _TAIL | shipment.is_last * _LAST
    head = _HEAD.pack(
        _HEAD.size - _LENGTH.size + len(shipment.payload),
        number,
        shipment.first,
        shipment.count,
        shipment.before,
        shipment.size,
        flags,
        *shipment.streams,
    )
    return head + shipment.payload


class Shipments:
    """Splits a stream of bytes, cut anywhere, into shipments with the numbers of their runs."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Shipment]]:
        """Raises ValueError if this is not what a guard sends."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEAD.size:
            length, number, first, count, before, size, flags, *streams = _HEAD.unpack_from(buffer)
            if not _HEAD.size - _LENGTH.size <= length <= _BYTES_MAX:
                raise ValueError(f"a batch of {length} bytes")
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            payload = bytes(buffer[_HEAD.size : end])
            del buffer[:end]
            is_tail, is_last = bool(flags & _TAIL), bool(flags & _LAST)
            yield number, Shipment(first, count, before, size, is_tail, is_last, payload, tuple(streams))


def argument(descriptor: int, limits: Limits, level: int) -> str:
    """Return the command-line argument by which a host process learns what to capture."""
    return f"{descriptor}:{limits.line_bytes}:{limits.head_bytes}:{limits.tail_bytes}:{level}"


def read_argument(text: str) -> tuple[int, Limits, int]:
    descriptor, line_bytes, head_bytes, tail_bytes, level = map(int, text.split(":"))
    return descriptor, Limits(line_bytes, head_bytes, tail_bytes), level
