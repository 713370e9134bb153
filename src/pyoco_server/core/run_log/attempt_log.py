"""The lines of one attempt, on the way from its process to the store: cut, counted, bounded, batched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyoco_server.core.durations import INSTANT_MAX
from pyoco_server.core.run_log.batch import Batch, Entry, encode_batch, encode_row, encode_rows
from pyoco_server.core.run_log.cutting import OpenLine, cut, cut_text, shown
from pyoco_server.core.run_log.line import Stream
from pyoco_server.core.run_log.shipment import BYTES_MAX, LINES_MAX, Shipment

__all__ = ["AttemptLog", "Limits", "Record"]

_NUMBERS = {stream: number for number, stream in enumerate(Stream)}
#: The first lines wait this long for more, so that a short run needs a single batch.
_FIRST_SECONDS = 0.05
#: The pause between two batches of an attempt, unless the first lines of a chatty one are still to be sent.
_PAUSE_SECONDS = 0.25
#: Open lines of one attempt: each of its tasks may have begun one on each stream.
_OPEN_MAX = 64
#: Pieces of the head, and of the tail, that are kept: each takes some memory beside its text, which may be one byte.
_PIECES_MAX = 65_536


@dataclass(frozen=True)
class Limits:
    """LOG-23 and LOG-24."""

    line_bytes: int = 16_384
    head_bytes: int = 1_048_576
    tail_bytes: int = 7_340_032


@dataclass(frozen=True)
class Record:
    """A record of Python's `logging`."""

    ts: float
    level: str
    logger: str
    text: str
    exc: str | None = None


class _Piece:
    """Consecutive lines of the same stream and task, that were read together."""

    __slots__ = ("before", "body", "count", "first", "left_out", "record", "size", "stream", "task", "ts")

    def __init__(self, stream: Stream, task: str | None, ts: float, body: bytes, left_out: int = 0) -> None:
        """`body`: whole lines, each with its LF; or one line that was shortened by `left_out` bytes."""
        self.stream, self.task, self.ts, self.body, self.left_out = stream, task, ts, body, left_out
        self.record: Record | None = None
        #: The sequence of the first line, and the number of bytes before it.
        self.first = self.before = 0
        self.count = body.count(b"\n")
        self.size = _shown_size(body)

    @property
    def is_divisible(self) -> bool:
        return self.record is None and self.count > 1

    def end_within(self, size: int) -> int:
        """Return the end of the last line of those that take `size` bytes together at most; 0: not even the first."""
        if self.size == len(self.body):
            return self.body.rfind(b"\n", 0, max(size, 0)) + 1
        return self._end(lambda total: total > size, is_included=False)

    def end_beyond(self, size: int) -> int:
        """Return the end of the first line with which the lines take at least `size` bytes."""
        if self.size == len(self.body):
            return self.body.find(b"\n", size - 1) + 1
        return self._end(lambda total: total >= size, is_included=True)

    def end_after(self, count: int) -> int:
        """Return the end of the line with this number; the end of all if there are fewer."""
        if count >= self.count:
            return len(self.body)
        at = 0
        for _ in range(count):
            at = self.body.find(b"\n", at) + 1
        return at

    def _end(self, is_reached: Callable[[int], bool], *, is_included: bool) -> int:
        """O(lines), for text that is not plain ASCII."""
        at = total = 0
        while at < len(self.body):
            end = self.body.find(b"\n", at) + 1
            total += _shown_size(self.body[at:end])
            if is_reached(total):
                return end if is_included else at
            at = end
        return at


class AttemptLog:
    """Turns the output of an attempt into batches to be stored. Uses no clock and no store.

    Memory: the bound of the head, that of the tail and what was fed last, while nothing is taken; one stored line per
    stream and task for lines that are still open. Time: O(bytes), a few passes in C for lines that will be dropped.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[tuple[Stream, str | None], OpenLine] = {}
        self._head: deque[_Piece] = deque()
        self._tail: deque[_Piece] = deque()
        self._head_room = limits.head_bytes
        self._is_head_closed = False
        self._tail_size = 0
        self._head_size = 0
        #: The sequence of the next line.
        self._next = 1
        #: The bytes of all lines before it.
        self._bytes = 0
        self._waits_since: float | None = None
        self._taken_at = float("-inf")
        self._is_finished = self._is_last_taken = False
        #: Whether anything was printed.
        self.is_touched = False

    # What is printed.

    def feed(self, stream: Stream, task: str | None, data: bytes, ts: float) -> None:
        """Take bytes, cut anywhere."""
        if not data:
            return
        self.is_touched = True
        end = data.rfind(b"\n") + 1
        open_line = self._open.get((stream, task))
        if end and open_line:
            first = data.find(b"\n") + 1
            open_line.add(data[: first - 1])
            self._close(stream, task, open_line, ts)
            body = data[first:end]
        else:
            body = data[:end]
        if body:
            self._add_lines(stream, task, body, ts)
        if end < len(data):
            self._open_line(stream, task, ts).add(data[end:])

    def _open_line(self, stream: Stream, task: str | None, ts: float) -> OpenLine:
        found = self._open.get((stream, task))
        if found is None:
            if len(self._open) >= _OPEN_MAX:
                self._close_all(ts)
            found = self._open[stream, task] = OpenLine(self._limits.line_bytes)
        return found

    def _close(self, stream: Stream, task: str | None, open_line: OpenLine, ts: float) -> None:
        data, left_out = open_line.take()
        if not left_out:
            data = data.removesuffix(b"\r")
        kept, cut_bytes = cut(data, self._limits.line_bytes)
        self._add(_Piece(stream, task, ts, kept + b"\n", cut_bytes + left_out))

    def _close_all(self, ts: float) -> None:
        for (stream, task), open_line in self._open.items():
            if open_line:
                self._close(stream, task, open_line, ts)
        self._open.clear()

    def _add_lines(self, stream: Stream, task: str | None, body: bytes, ts: float) -> None:
        if b"\r\n" in body:
            body = body.replace(b"\r\n", b"\n")
        for part, is_long in _by_length(body, self._limits.line_bytes):
            if is_long:
                kept, left_out = cut(part[:-1], self._limits.line_bytes)
                self._add(_Piece(stream, task, ts, kept + b"\n", left_out))
            else:
                self._add(_Piece(stream, task, ts, part))

    def record(self, task: str | None, record: Record, ts: float, left_out: int = 0) -> None:
        """Take a record at `ts`, whatever time it has itself: tests freeze clocks, and other code may set anything.

        `left_out`: the number of bytes that were cut off its text before.
        """
        self.is_touched = True
        text, more = cut_text(record.text, self._limits.line_bytes)
        exc = None if record.exc is None else cut_text(record.exc, self._limits.line_bytes)[0]
        piece = _Piece(Stream.LOG, task, ts, text.encode(), left_out + more)
        piece.count, piece.size = 1, len(text.encode()) + len((exc or "").encode()) + 1
        shown_at = record.ts if abs(record.ts) <= INSTANT_MAX else ts  # NaN is not
        piece.record = Record(shown_at, record.level, record.logger, text, exc)
        self._add(piece)

    def say(self, text: str, ts: float) -> None:
        """Add a line of our own."""
        self.is_touched = True
        self._add(_Piece(Stream.SYSTEM, None, ts, text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n"))

    def finish(self, ts: float) -> None:
        """The attempt is over: unfinished lines count as lines."""
        self._close_all(ts)
        self._is_finished = True

    def _add(self, piece: _Piece) -> None:
        if self._waits_since is None:
            self._waits_since = piece.ts
        piece.first, piece.before = self._next, self._bytes
        self._next += piece.count
        self._bytes += piece.size
        rest: _Piece | None = piece
        if not self._is_head_closed:
            rest = self._fill_head(piece)
        if rest is not None:
            self._tail.append(rest)
            self._tail_size += rest.size
            self._trim()

    def _fill_head(self, piece: _Piece) -> _Piece | None:
        """Put a piece into the head, as far as it fits. Returns the rest."""
        if piece.size > self._head_room or len(self._head) >= _PIECES_MAX:
            self._is_head_closed = True
            end = piece.end_within(self._head_room) if piece.is_divisible else 0
            if not end:
                return piece
            piece, rest = _divided(piece, end)
        else:
            rest = None
        self._head_room -= piece.size
        self._head_size += piece.size
        self._head.append(piece)
        return rest

    def _trim(self) -> None:
        """Drop what the tail certainly does not need. Lines of the first piece that is left may be too many: dividing
        it takes long, and is done when it is taken."""
        while self._tail and (
            self._tail_size - self._tail[0].size >= self._limits.tail_bytes or len(self._tail) > _PIECES_MAX
        ):
            self._tail_size -= self._tail.popleft().size

    def _cut_tail(self) -> None:
        excess = self._tail_size - self._limits.tail_bytes
        if excess > 0:
            piece = self._tail.popleft()
            dropped = piece
            if piece.size > excess and piece.is_divisible:
                dropped, kept = _divided(piece, piece.end_beyond(excess))
                if kept is not None:
                    self._tail.appendleft(kept)
            self._tail_size -= dropped.size

    # What is to be stored.

    @property
    def pending_bytes(self) -> int:
        return self._head_size + self._tail_size

    @property
    def is_over(self) -> bool:
        """All batches have been taken, and no more will come."""
        return self._is_finished and (self._is_last_taken or not self.is_touched)

    def due_at(self) -> float | None:
        """When the next batch should be taken. None: not before more is printed, or the attempt is finished."""
        if self._is_finished:
            return None if self.is_over else float("-inf")
        if self._head_size >= BYTES_MAX:
            return float("-inf")
        if not self.pending_bytes or self._waits_since is None:
            return None
        return max(self._waits_since + _FIRST_SECONDS, self._taken_at + _PAUSE_SECONDS)

    def take(self, now: float) -> Shipment | None:
        """Return the next batch. None: there is nothing to be stored."""
        is_tail = not self._head
        if is_tail:
            self._cut_tail()
        queue = self._tail if is_tail else self._head
        if not queue and (self.is_over or not self._is_finished):
            return None
        pieces: list[_Piece] = []
        size = lines = 0
        while (
            queue
            and size < BYTES_MAX
            and lines < LINES_MAX
            and (not pieces or queue[0].first == pieces[-1].first + pieces[-1].count)
        ):
            piece = queue.popleft()
            if piece.is_divisible:
                end = len(piece.body)
                if size + piece.size > BYTES_MAX:
                    end = piece.end_within(BYTES_MAX - size) or piece.end_beyond(1)
                piece, rest = _divided(piece, min(end, piece.end_after(LINES_MAX - lines)))
                if rest is not None:
                    queue.appendleft(rest)
            pieces.append(piece)
            size += piece.size
            lines += piece.count
        if is_tail:
            self._tail_size -= size
        else:
            self._head_size -= size
        self._taken_at = now
        self._waits_since = now if self.pending_bytes else None
        is_last = self._is_finished and not self.pending_bytes
        self._is_last_taken = is_last
        return self._shipment(pieces, size, is_tail=is_tail, is_last=is_last)

    def _shipment(self, pieces: list[_Piece], size: int, *, is_tail: bool, is_last: bool) -> Shipment:
        tasks: dict[str, int] = {}
        rows: list[str] = []
        streams = [0, 0, 0, 0]
        for piece in pieces:
            streams[_NUMBERS[piece.stream]] += piece.count
            task = -1 if piece.task is None else tasks.setdefault(piece.task, len(tasks))
            rows.append(_encoded(piece, task))
        first, before = (pieces[0].first, pieces[0].before) if pieces else (self._next, self._bytes)
        batch = Batch(first=first, before=before, size=size, tasks=list(tasks), is_last=is_last)
        return Shipment(first, sum(streams), before, size, is_tail, is_last, encode_batch(batch, rows), tuple(streams))


def _by_length(body: bytes, limit: int) -> Iterator[tuple[bytes, bool]]:
    """Divide whole lines into those that are longer, one by one, and those between them, together.

    Looks at about two line ends per `limit` bytes.
    """
    begin = at = 0
    while len(body) - at > limit + 1:
        end = body.rfind(b"\n", at, at + limit + 1)
        if end >= 0:
            at = end + 1
            continue
        if at > begin:
            yield body[begin:at], False
        begin = body.find(b"\n", at) + 1
        yield body[at:begin], True
        at = begin
    if begin < len(body):
        yield body[begin:], False


def _shown_size(body: bytes) -> int:
    """Return the size of what will be shown, which may be longer: U+FFFD and U+2400 have three bytes."""
    return len(body) if body.isascii() and b"\0" not in body else len(shown(body).encode())


def _divided(piece: _Piece, at: int) -> tuple[_Piece, _Piece | None]:
    if at >= len(piece.body):
        return piece, None
    one = _Piece(piece.stream, piece.task, piece.ts, piece.body[:at])
    other = _Piece(piece.stream, piece.task, piece.ts, piece.body[at:])
    one.first, other.first = piece.first, piece.first + one.count
    one.before, other.before = piece.before, piece.before + one.size
    return one, other


def _encoded(piece: _Piece, task: int) -> str:
    ts, stream = round(piece.ts, 3), _NUMBERS[piece.stream]
    record = piece.record
    if record is not None:
        ts, text, exc = round(record.ts, 3), record.text, record.exc
        return encode_row(Entry(ts, stream, task, text, piece.left_out, record.level, record.logger, exc))
    if piece.left_out:
        return encode_row(Entry(ts, stream, task, shown(piece.body)[:-1], piece.left_out))
    return encode_rows(ts, stream, task, shown(piece.body)[:-1].split("\n"))
