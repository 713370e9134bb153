"""What callers were told, from the first answer to the last reading: the accepted set, and every state anybody saw."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["ENDS", "Accepted", "Book", "Kind"]

#: Of flows, programs and packs.
ENDS = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_TOLD_MAX = 50


class Kind(StrEnum):
    FLOW = "flow"
    PACK = "pack"
    PROGRAM = "program"


@dataclass
class Accepted:
    """A run whose caller was told yes."""

    run_id: str
    kind: Kind
    tenant: str
    key: str
    #: As which it may end.
    wanted: Collection[str]
    at: float
    #: Terminal states that anybody saw, and by which way first.
    ends: dict[str, str] = field(default_factory=dict)
    ended_at: float | None = None

    @property
    def end(self) -> str | None:
        return next(iter(self.ends), None)

    @property
    def ended_well(self) -> bool:
        """A pack may fail with its worker, and has shown then that nothing works."""
        return self.end == "COMPLETED" if self.kind is Kind.PACK else self.end in self.wanted


class Book:
    def __init__(self, *, is_strict: bool = True) -> None:
        #: Strict: with one store, no reader may see an older state than any reader before.
        self._is_strict = is_strict
        self.runs: dict[str, Accepted] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        #: Forbidden answers.
        self.wrong: list[str] = []
        self.refused: Counter[str] = Counter()
        #: Tenant and key of what was refused for good: nothing of it may ever be there.
        self.denied: set[tuple[str, str]] = set()
        self.unanswered = 0
        self.repeated = 0
        #: Older states shown after an end, by way.
        self.stale: Counter[str] = Counter()
        #: By tenant, what it has tried to see of the other.
        self.spied: Counter[str] = Counter()

    def accept(self, run_id: str, kind: Kind, tenant: str, key: str, wanted: Collection[str]) -> Accepted:
        """A yes, the first or a repeated one: under one key it is the same run for ever."""
        known = self._by_key.setdefault((tenant, key), run_id)
        if known != run_id:
            self.complain(f"{tenant}'s key {key} stands for {known} and for {run_id}")
        return self.runs.setdefault(run_id, Accepted(run_id, kind, tenant, key, wanted, time.monotonic()))

    def saw(self, run_id: str, status: str, way: str, began: float) -> None:
        """`began`: when this look began; what it shows is no older."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if status not in ENDS:
            if run.ended_at is not None and began > run.ended_at:
                self.stale[way] += 1
                if self._is_strict and way in {"read", "priced"}:
                    self.complain(f"{run.kind} {run_id} was {run.ends} and is shown as {status} by {way}")
            return
        if run.ended_at is None:
            run.ended_at = time.monotonic()
        if status not in run.ends:
            run.ends[status] = way
            if len(run.ends) > 1:
                self.complain(f"{run.kind} {run_id} has two ends: {run.ends}")

    def complain(self, words: str) -> None:
        if len(self.wrong) < _TOLD_MAX:
            self.wrong.append(words)

    def unfinished(self, tenant: str | None = None, kind: Kind | None = None) -> list[Accepted]:
        return [
            run
            for run in self.runs.values()
            if run.ended_at is None and tenant in {None, run.tenant} and kind in {None, run.kind}
        ]

    def reached(self, since: float) -> dict[Kind, tuple[float | None, float | None]]:
        """For each kind: when, after that moment, the first run was accepted; and when the first one that was accepted
        after it was seen to have ended well. None: not yet."""
        found: dict[Kind, tuple[float | None, float | None]] = {}
        for kind in Kind:
            after = [run for run in self.runs.values() if run.kind is kind and run.at >= since]
            ends = [run.ended_at for run in after if run.ended_at is not None and run.ended_well]
            found[kind] = (min((run.at for run in after), default=None), min(ends, default=None))
        return found
