"""Reassembles stored batches: lines in order, each once, with a gap wherever some are missing (LOG-9)."""

from __future__ import annotations

from collections.abc import Iterator

from pyoco_server.core.run_log.batch import Batch
from pyoco_server.core.run_log.line import Gap, Line, Why, gap_line
from pyoco_server.core.run_log.skipping import Head

__all__ = ["Assembly"]


class Assembly:
    """The lines of one run from its batches, which come in the order in which they were stored.

    A batch may be stored twice, since a lost response makes its sender repeat it: lines that were seen are left out.
    """

    def __init__(self) -> None:
        self._attempt = 0
        #: Of the current attempt: the sequence of the next line, and the number of bytes before it.
        self._next, self._bytes = 1, 0
        self._ts = 0.0
        self._is_closed = True

    def add(self, attempt: int, batch: Batch, stored_at: float) -> Iterator[Line]:
        """Yield the lines of the batch that have not been seen."""
        if attempt < self._attempt:
            return  # a fenced worker's last lines that were stored late: their place has been shown already
        if attempt > self._attempt:
            yield from self._open(attempt)
        first = batch.entries[0].ts if batch.entries else stored_at
        if batch.first > self._next:
            yield self._gap(batch, first)
        self._ts = first
        for line in batch.lines(attempt):
            if line.seq >= self._next:
                self._ts = line.ts
                yield line
        if batch.next >= self._next:
            self._next, self._bytes = batch.next, max(self._bytes, batch.before + batch.size)
        self._is_closed = self._is_closed or batch.is_last

    def skip(self, attempt: int, head: Head, following: Head, stored_at: float) -> Iterator[Line]:
        """Pass over a batch that the next one continues. Yields only the gap before it, if any."""
        yield from self.add(attempt, Batch(first=head.first, before=head.before), stored_at)
        if following.first > self._next:
            self._next, self._bytes = following.first, following.before

    def _open(self, attempt: int) -> Iterator[Line]:
        """Begin a new attempt: the previous one gets no more lines."""
        yield from self.end()
        self._attempt, self._next, self._bytes, self._is_closed = attempt, 1, 0, False

    def end(self) -> Iterator[Line]:
        """The current attempt is over. Without its last batch, lines of it were lost with its worker."""
        if not self._is_closed:
            self._is_closed = True
            yield gap_line(self._attempt, self._next, self._ts, Gap(Why.LOST))

    def _gap(self, batch: Batch, ts: float) -> Line:
        # Those at the beginning were deleted first; the bound of an attempt leaves out the middle.
        assumed = Why.RETENTION if self._next == 1 else Why.LIMIT
        why = batch.gap.why if batch.gap is not None else assumed
        missing = Gap(why, batch.first - self._next, max(0, batch.before - self._bytes))
        return gap_line(self._attempt, batch.first - 1, ts, missing)
