"""Whether what was written, and what was read, can have happened to one register per run, one thing after another.

In general that is hard to decide (Wing and Gong search all orders). Here it is cheap: every write is a compare-and-set
and carries the revision it made and the one it replaced, so their order is known, and only reads have to be placed:
each between the newest revision that was certainly there when it began, and the newest that was there when it ended.
O(n log n) for n writes and reads of a key.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.run import PACK
from pyoco_server.core.states import FLOW_MOVES, PROGRAM_MOVES, TERMINAL

__all__ = ["LOST", "Facts", "History", "Put", "Read", "Seen", "Violation", "Write", "check", "facts_of"]

#: Of two clocks of one machine, read by two programs.
_CLOCK_SECONDS = 0.05

_FLOW_STEPS = frozenset((source, target) for sources, target in FLOW_MOVES.values() for source in sources)
_PROGRAM_STEPS = frozenset((source, target) for sources, target in PROGRAM_MOVES.values() for source in sources)


@dataclass(frozen=True)
class Facts:
    """What a record says, as far as it is looked at here."""

    status: str
    attempt: int = 0
    #: The attempt's; no door shows that of a program.
    token: str | None = None
    updated_at: float = 0.0
    kind: str = "flow"
    #: Of a pack's row.
    version: int = 0

    @property
    def shown(self) -> tuple[str, int, float]:
        """By which a reader's answer is known again."""
        return self.status, self.attempt, self.updated_at

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


def facts_of(snapshot: Mapping[str, Any]) -> Facts:
    """Of a stored record, or of what a gateway shows of it."""
    kind = str(snapshot.get("kind", "flow"))
    return Facts(
        status=str(snapshot["status"]),
        attempt=int(snapshot.get("attempt", 0)),
        token=snapshot.get("token" if kind == EXEC else "attempt_id"),
        updated_at=float(snapshot.get("updated_at", 0.0)),
        kind=kind,
        version=int(snapshot.get("ledger_version", 0)) if kind == PACK else 0,
    )


@dataclass(frozen=True)
class Write:
    """One committed write. All instants are of the observer's steady clock."""

    key: str
    #: Its place among all writes of the bucket.
    revision: int
    #: The revision it says it replaces; None: it does not say.
    replaced: int | None
    #: None: the record was taken away, or has expired.
    facts: Facts | None
    #: By the server's clock; it cannot have been read before.
    stored_at: float = 0.0
    #: The server's own, left where a record has expired.
    is_mark: bool = False


@dataclass(frozen=True)
class Read:
    """An answer to a reader, with the times of request and answer."""

    key: str
    began: float
    ended: float
    #: None: there is no such run.
    facts: Facts | None
    #: Where the reader was told that, too.
    revision: int | None = None


class _Lost:
    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()


@dataclass(frozen=True)
class Put:
    """A write as its writer knows it: over `asked`, and with which end. None: its writer got no answer."""

    key: str
    began: float
    ended: float
    asked: int
    facts: Facts | None
    outcome: int | _Lost | None


@dataclass(frozen=True)
class Seen:
    """A write that the observer was shown in passing: it was committed by then."""

    key: str
    revision: int
    at: float
    facts: Facts | None


@dataclass
class History:
    """All there is to know. `writes` and the rest may come in any order."""

    committed: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    @property
    def writes(self) -> int:
        return len(self.committed)

    @property
    def keys(self) -> set[str]:
        return {write.key for write in self.committed}


@dataclass(frozen=True)
class Violation:
    key: str
    what: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.key}: {self.what}: {self.evidence}"


def check(history: History, *, stale_reads: bool = True) -> list[Violation]:
    """Everything that cannot have been, key by key. None: there is an order in which all of it happened.

    `stale_reads`: whether a read must tell the newest. It must where one node answers; of three, one that has been
    deposed and does not know it yet may tell what it knows.
    """
    found: list[Violation] = []
    parts = [_by_key(part) for part in (history.committed, history.reads, history.puts, history.seen)]
    for key in sorted(set().union(*parts)):
        writes, reads, puts, seen = (part[key] for part in parts)
        register = _Register(key, sorted(writes, key=lambda write: write.revision))
        found += register.check_chain()
        found += register.check_moves()
        found += register.check_seen(seen)
        found += register.check_puts(puts)
        found += register.check_reads(reads, puts, seen, stale_reads=stale_reads)
    return found


def _by_key(items: Sequence[Any]) -> defaultdict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        found[item.key].append(item)
    return found


class _Register:
    """One key: its committed writes, the oldest first."""

    def __init__(self, key: str, writes: list[Write]) -> None:
        self._key, self._writes = key, writes
        self._at = {write.revision: place for place, write in enumerate(writes)}

    def _no(self, what: str, *evidence: object) -> Violation:
        return Violation(self._key, what, "; ".join(map(str, evidence)))

    def check_chain(self) -> Iterator[Violation]:
        """Each write names its predecessor. The server's own mark of an expiry names none."""
        newest = 0
        for write in self._writes:
            if write.is_mark:
                pass
            elif write.replaced is None:
                yield self._no("a blind write", write)
            elif write.replaced != newest:
                yield self._no("written over another revision than the newest", f"newest was {newest}", write)
            newest = write.revision

    def check_moves(self) -> Iterator[Violation]:
        gone: set[str] = set()
        first = self._writes[0] if self._writes else None
        if (
            first is not None
            and first.facts is not None
            and first.facts.kind != PACK
            and first.facts.status != "PENDING"
        ):
            yield self._no("it does not begin as PENDING", first)
        for before, after in itertools.pairwise(self._writes):
            old, new = before.facts, after.facts
            if old is not None and old.token is not None and (new is None or new.token != old.token):
                gone.add(old.token)
            if new is not None and new.token in gone:
                yield self._no("a token came back", before, after)
            what = _problem(old, new, is_mark=after.is_mark)
            if what:
                yield self._no(what, before, after)

    def check_seen(self, seen: Sequence[Seen]) -> Iterator[Violation]:
        """What was committed stays, and as it was."""
        for each in seen:
            place = self._at.get(each.revision)
            if place is None:
                yield self._no("a committed write is gone", each)
            elif self._writes[place].facts != each.facts:
                yield self._no("a committed write is another by now", each, self._writes[place])

    def check_puts(self, puts: Sequence[Put]) -> Iterator[Violation]:
        for put in puts:
            if isinstance(put.outcome, int):
                place = self._at.get(put.outcome)
                if place is None:
                    yield self._no("an acknowledged write is gone", put)
                elif (self._writes[place].replaced, self._writes[place].facts) != (put.asked, put.facts):
                    yield self._no("an acknowledged write is another by now", put, self._writes[place])
            elif put.outcome is LOST and not self._was_faster(put):
                yield self._no("lost, though nobody was faster", put)

    def _was_faster(self, put: Put) -> bool:
        """Whether the newest revision was another than the one asked for, at some moment of this write."""
        next_place = self._at[put.asked] + 1 if put.asked in self._at else 0
        if put.asked == 0 or put.asked in self._at:
            return next_place < len(self._writes) and self._writes[next_place].stored_at <= put.ended + _CLOCK_SECONDS
        return True  # there never was such a revision

    def check_reads(
        self, reads: Sequence[Read], puts: Sequence[Put], seen: Sequence[Seen], *, stale_reads: bool
    ) -> Iterator[Violation]:
        """Each read has its place. What was read before counts as there, too: nobody goes back in time."""
        placed = []
        for read in reads:
            places = self._places(read)
            if not places:
                yield self._no("a read told what was never written", read)
            elif places[0] >= 0 and self._writes[places[0]].stored_at > read.ended + _CLOCK_SECONDS:
                yield self._no("a read told what was written later", read, self._writes[places[0]])
            else:
                placed.append((read, places))
        if not stale_reads:
            return
        known = [(read.ended, places[0]) for read, places in placed]
        known += [(put.ended, self._at[put.outcome]) for put in puts if put.outcome in self._at]
        known += [(each.at, self._at[each.revision]) for each in seen if each.revision in self._at]
        floor = _Floor(known)
        for read, places in placed:
            least = floor.before(read.began)
            if places[-1] < least:
                yield self._no("a stale read", read, f"{self._writes[least]} was there before it began")

    def _places(self, read: Read) -> list[int]:
        """Which writes it may have told of, in their order; -1: the time before the first."""
        if read.facts is None:
            return [-1, *(place for place, write in enumerate(self._writes) if write.facts is None)]
        if read.revision is not None:
            place = self._at.get(read.revision)
            fits = place is not None and self._shows(place, read.facts)
            return [place] if fits and place is not None else []
        return [place for place in range(len(self._writes)) if self._shows(place, read.facts)]

    def _shows(self, place: int, facts: Facts) -> bool:
        written = self._writes[place].facts
        return written is not None and written.shown == facts.shown


class _Floor:
    """The newest place that was known at an instant."""

    def __init__(self, known: list[tuple[float, int]]) -> None:
        known = sorted(known)
        self._instants = [instant for instant, _ in known]
        self._places = list(itertools.accumulate((place for _, place in known), max))

    def before(self, instant: float) -> int:
        count = bisect_left(self._instants, instant)
        return self._places[count - 1] if count else -1


def _problem(old: Facts | None, new: Facts | None, *, is_mark: bool) -> str | None:
    """Why `new` may not be written over `old`; None: it may. `is_mark`: the server wrote it, at an expiry."""
    if new is None:
        is_kept = old is not None and old.is_terminal and old.kind != PACK
        return "an ended run was taken away" if is_kept and not is_mark else None
    if old is None:
        return None if new.status == "PENDING" or new.kind == PACK else "taken away, and back in the middle"
    if old.kind != new.kind:
        return "another kind of run under the same key"
    if old.is_terminal and old.status != new.status:
        return "a second end" if new.is_terminal else "an ended run went on"
    if new.kind == PACK:
        return None if new.version > old.version else "an older version of a row was shown over a newer one"
    return _problem_after_end(old, new) if old.is_terminal else _problem_of_step(old, new)


def _problem_after_end(old: Facts, new: Facts) -> str | None:
    """A flow is never written again; a program once more, when its letter is out (GRID-47)."""
    is_letter = new.kind == EXEC and (old.attempt, old.token) == (new.attempt, new.token)
    return None if is_letter else "a write after the end"


def _problem_of_step(old: Facts, new: Facts) -> str | None:
    steps = _PROGRAM_STEPS if new.kind == EXEC else _FLOW_STEPS
    if old.status != new.status and (old.status, new.status) not in steps:
        return "a step that no table has"
    return _problem_of_attempt(old, new)


def _problem_of_attempt(old: Facts, new: Facts) -> str | None:
    if new.attempt == old.attempt:
        if new.token not in (old.token, None):
            return "another token in the same attempt"
        return None
    if new.attempt == old.attempt + 1:
        return None if new.status == "RUNNING" and new.token not in (old.token, None) else "an attempt without a claim"
    # GRID-41: claimed and never handed over, as if it had not been.
    is_release = new.kind == EXEC and new.attempt == old.attempt - 1 and (new.status, new.token) == ("PENDING", None)
    return None if is_release else f"attempt {new.attempt} after attempt {old.attempt}"
