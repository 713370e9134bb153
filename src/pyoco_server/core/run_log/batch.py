"""The stored form of lines: consecutive lines of one attempt, compressed, as one message."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from pyoco_server.core.run_log.line import LEVELS, Gap, Line, Stream, Why
from pyoco_server.core.run_log.shipment import BYTES_MAX, LINES_MAX
from pyoco_server.errors import Corrupt

__all__ = [
    "Batch",
    "Entry",
    "check_size",
    "decode_batch",
    "encode_batch",
    "encode_gap",
    "encode_row",
    "encode_rows",
    "unpacked",
]

#: What a batch may unpack to. JSON needs up to six bytes for one, and each line has at least one byte of text.
_UNPACKED_BYTES_MAX = 64 * 1024 * 1024
#: What JSON readers take exactly.
_COUNT_MAX = 2**53
_VERSION = 1
_STREAMS = tuple(Stream)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: That of the smallest window that is used.
_WINDOW_BITS_MIN = 10
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Entry(NamedTuple):
    """One line as it is stored. Its attempt and its sequence follow from the batch."""

    ts: float
    stream: int
    #: The index of the task's name in the batch; -1: none.
    task: int
    text: str
    cut_bytes: int = 0
    level: str | None = None
    logger: str | None = None
    exc: str | None = None


@dataclass(frozen=True)
class Batch:
    """Consecutive lines of an attempt, or a gap."""

    #: The sequence of the first line.
    first: int
    #: The number of bytes of all lines before, including those that are missing.
    before: int
    tasks: Sequence[str] = ()
    entries: Sequence[Entry] = ()
    #: No more lines follow in this attempt.
    is_last: bool = False
    #: Why the lines after the previous batch are missing; None: there is no gap, or the bound of the attempt.
    gap: Gap | None = None
    size: int = field(default=0)

    @property
    def next(self) -> int:
        """The sequence of the line after this batch."""
        return self.first + len(self.entries)

    def lines(self, attempt: int) -> Iterator[Line]:
        for seq, entry in enumerate(self.entries, self.first):
            yield Line(
                attempt=attempt,
                seq=seq,
                ts=entry.ts,
                text=entry.text,
                stream=_STREAMS[entry.stream],
                task=self.tasks[entry.task] if entry.task >= 0 else None,
                level=entry.level,
                logger=entry.logger,
                exc=entry.exc,
                cut_bytes=entry.cut_bytes,
            )


def encode_batch(batch: Batch, rows: Sequence[str] | None = None) -> bytes:
    """Encode a batch. `rows` are its lines, encoded, if it has no `entries`: creating those takes most of the time."""
    gap = batch.gap
    parts = (
        f'"v":{_VERSION},"first":{batch.first},"before":{batch.before},"size":{batch.size}',
        f'"last":{"true" if batch.is_last else "false"}',
        f'"tasks":[{",".join(map(encode_basestring, batch.tasks))}]',
        *(() if gap is None else (f'"gap":{_encode({"why": gap.why.value, "lines": gap.lines, "size": gap.size})}',)),
        f'"lines":[{",".join(rows if rows is not None else map(encode_row, batch.entries))}]',
    )
    return _packed(f"{{{','.join(parts)}}}".encode("utf-8", "replace"))


def _packed(data: bytes) -> bytes:
    """Compress. Most batches are short: a window beyond their end costs ten times what compressing them costs."""
    bits = min(max(len(data).bit_length() + 1, _WINDOW_BITS_MIN), zlib.MAX_WBITS)  # it reaches back by half of itself
    packing = zlib.compressobj(1, zlib.DEFLATED, bits, bits - _WINDOW_BITS_MIN + 3)
    return packing.compress(data) + packing.flush()


def encode_row(entry: Entry) -> str:
    """Encode one line for `encode_batch`, without the members at its end that most lines do not have."""
    if entry.level is not None:
        return _encode(entry)
    return _encode(entry[:5] if entry.cut_bytes else entry[:4])


def encode_rows(ts: float, stream: int, task: int, texts: list[str]) -> str:
    """Encode lines that differ in nothing but their text, without a step of the interpreter for each."""
    front = f"[{ts!r},{stream},{task},"
    return front + f"],{front}".join(map(encode_basestring, texts)) + "]"


def encode_gap(first: int, before: int, gap: Gap) -> bytes:
    """Encode a batch without lines: the lines from the previous batch to `first` are missing for this reason."""
    return encode_batch(Batch(first=first, before=before, gap=gap))


def unpacked(data: bytes) -> bytes:
    """Return the JSON of a batch. Raises Corrupt."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, _UNPACKED_BYTES_MAX)
    except zlib.error as error:
        raise Corrupt(f"a batch of log lines is unreadable: {error!r}") from error
    if unpacking.unconsumed_tail:
        raise Corrupt("a batch of log lines unpacks to too many bytes")
    return text


def decode_batch(data: bytes) -> Batch:
    """Raises Corrupt: this is not a batch, or one of a later version."""
    text = unpacked(data)
    try:
        document = json.loads(text)
        if _SURROGATE.search(text):
            _encode(document).encode()  # half of a pair cannot be shown
        if document["v"] != _VERSION:
            raise Corrupt(f"a batch of log lines has the unknown version {document['v']!r}")
        batch = Batch(
            first=_count(document["first"]),
            before=_count(document["before"]),
            size=_count(document["size"]),
            tasks=[str(name) for name in document["tasks"]],
            entries=[Entry(*line) for line in document["lines"]],
            is_last=bool(document["last"]),
            gap=_gap_in(document),
        )
        is_valid = all(_is_valid(entry, len(batch.tasks)) for entry in batch.entries)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"a batch of log lines is unreadable: {error!r}") from error
    if not is_valid:
        raise Corrupt("a batch of log lines has an invalid line")
    return batch


def check_size(data: bytes) -> None:
    """Check that a batch of another machine unpacks to as much as a batch may. Raises Corrupt. O(bytes), no parsing."""
    unpacking = zlib.decompressobj()
    try:
        unpacking.decompress(data, LINES_MAX * 64 + BYTES_MAX * 6)
    except zlib.error as error:
        raise Corrupt(f"a batch of log lines is unreadable: {error!r}") from error
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise Corrupt("a batch of log lines unpacks to too many bytes")


def _gap_in(document: dict[str, Any]) -> Gap | None:
    found = document.get("gap")
    if found is None:
        return None
    lines, size = (None if found[name] is None else _count(found[name]) for name in ("lines", "size"))
    return Gap(Why(found["why"]), lines, size)


def _count(value: object) -> int:
    """Raises ValueError: this is not a number of lines or bytes."""
    if type(value) is int and 0 <= value <= _COUNT_MAX:
        return value
    raise ValueError("not a count")


def _is_valid(entry: Entry, tasks: int) -> bool:
    return (
        isinstance(entry.text, str)
        and type(entry.ts) in (float, int)
        and abs(entry.ts) <= _COUNT_MAX
        and type(entry.cut_bytes) is int
        and 0 <= entry.cut_bytes <= _COUNT_MAX
        and type(entry.stream) is int
        and 0 <= entry.stream < len(_STREAMS)
        and type(entry.task) is int
        and -1 <= entry.task < tasks
        and (entry.level is None or entry.level in LEVELS)
        and (entry.logger is None or isinstance(entry.logger, str))
        and (entry.exc is None or isinstance(entry.exc, str))
    )
