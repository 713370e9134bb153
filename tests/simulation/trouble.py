"""Which faults have disturbed a process lately, so that the judge can be strict about all others."""

from __future__ import annotations

from typing import NamedTuple

from simulation.loop import SimLoop

__all__ = ["Trouble"]

#: After a fault, a process may need this long to notice what it has missed, to connect and to read it again.
_RECOVERY_SECONDS = 45.0


class _Span(NamedTuple):
    begins_at: float
    ends_at: float


class Trouble:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        #: In the order of their beginning, by process; those of "" concern all processes.
        self._spans: dict[str, list[_Span]] = {}

    def note(self, process: str, seconds: float) -> None:
        """A fault begins now. `process`: empty for one of the store."""
        now = self._loop.elapsed()
        self._spans.setdefault(process, []).append(_Span(now, now + seconds + _RECOVERY_SECONDS))

    def uninformed_since(self, process: str) -> float:
        """Since when a fault may have held up this process or its messages; now, if none has."""
        since = self._loop.elapsed()
        for span in sorted([*self._spans.get(process, ()), *self._spans.get("", ())], reverse=True):
            if span.begins_at <= since <= span.ends_at:
                since = span.begins_at
        return since

    def is_free(self, process: str) -> bool:
        return self.uninformed_since(process) == self._loop.elapsed()
