"""The history of a schedule: the newest entries in its record, older ones in chunks of a ring (SCHED-19).

Entries that are in the record when it is read do not change any more, but for the last one. So keepers that write the
same chunk at once write the same content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.schedules.record import Entry, Schedule

__all__ = [
    "CHUNK",
    "Chunk",
    "full_chunks",
    "newest_chunks",
    "slot_of",
    "without_chunks",
]

CHUNK: Final = 10
#: More chunks than the history has: the oldest are read while the newest are written.
_SPARE: Final = 2


@dataclass(frozen=True)
class Chunk:
    #: Counts up from 0 for each schedule.
    number: int
    entries: tuple[Entry, ...]


def slot_of(number: int, keep: int) -> int:
    """Return the place of a chunk in the ring."""
    return number % (keep // CHUNK + _SPARE)


def full_chunks(schedule: Schedule, keep: int) -> list[Chunk]:
    """Return the chunks to store before the record that was read is replaced: all but its newest entries.

    Entries beyond `keep` are left out.
    """
    count = max(0, len(schedule.tail) // CHUNK - 1)
    first = schedule.spilled // CHUNK
    chunks = [Chunk(first + index, schedule.tail[index * CHUNK : (index + 1) * CHUNK]) for index in range(count)]
    return chunks[-(keep // CHUNK) :]


def without_chunks(schedule: Schedule, tail: Sequence[Entry]) -> tuple[tuple[Entry, ...], int]:
    """Return the tail without what `full_chunks` of the record that was read has stored, and the new `spilled`.

    `tail`: that of its replacement, which begins with the same entries.
    """
    moved = max(0, len(schedule.tail) // CHUNK - 1) * CHUNK
    return tuple(tail[moved:]), schedule.spilled + moved


def newest_chunks(schedule: Schedule, keep: int) -> range:
    """Return the numbers of the stored chunks, newest first."""
    newest = schedule.spilled // CHUNK - 1
    return range(newest, max(-1, newest - keep // CHUNK), -1)
