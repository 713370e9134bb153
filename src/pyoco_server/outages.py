"""Failures that repeat are logged once when they begin and once when they end, with their number (CLI-2, SAFE-15).

    self._outage = Outage(log)
    while True:
        try:
            await self.turn()
        except Unavailable as error:
            self._outage.failed("turn failed; retrying", error, loop=name)
        self._outage.settle()

All loops of a process share one list of open outages, keyed by the cause: when a dozen loops miss one dependency, that
is one line. Not for requests: each of those is logged by its door.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyoco_server.errors import RecordUnreadable, Unavailable, missing_resource
from pyoco_server.logs import Log, get_logger

__all__ = ["Outage", "cause_of"]

log = get_logger(__name__)

#: Ids and numbers, which differ between warnings about the same cause.
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d+")
#: A loop that has not failed again for so long does not keep an outage open: its next turn may be an hour away.
_STALE_SECONDS = 60.0
#: Bounds memory when every error text is another one. The oldest outage is dropped without a line.
_OPEN_MAX = 1_000


def cause_of(error: BaseException) -> str:
    """What two equal warnings have in common: the missing resource, the unreadable record, or the text of the first
    error of the chain, without ids and numbers."""
    missing = missing_resource(error)
    if missing is not None:
        return missing.resource
    if isinstance(error, RecordUnreadable):
        return error.key
    first = error
    while isinstance(first.__cause__, Unavailable):
        first = first.__cause__
    return _VARYING.sub("#", f"{type(first).__name__}: {first}")


@dataclass
class _Episode:
    """One open outage."""

    reason: str
    began_at: float
    #: Warnings that were not written.
    repeats: int = 0
    #: When each loop last failed for this cause.
    failing: WeakKeyDictionary[Outage, float] = field(default_factory=WeakKeyDictionary)
    #: At least one of them has worked since.
    has_healed: bool = False


_open: dict[str, _Episode] = {}


class Outage:
    """What one loop, or one watch, reports about its failures."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        #: Causes that this loop has failed for, and those since the last `settle`.
        self._causes: set[str] = set()
        self._lately: set[str] = set()

    def failed(self, message: str, error: BaseException, **fields: object) -> None:
        """Write a warning with the error, unless this cause has been logged since it began."""
        if self._is_new(cause_of(error), str(error)):
            self._log.warning(message, **_told(error), **fields)

    def crashed(self, message: str, error: BaseException, **fields: object) -> None:
        """As `failed`, for a defect: at level ERROR."""
        if self._is_new(cause_of(error), str(error)):
            self._log.error(message, **_told(error), **fields)

    def settle(self) -> None:
        """To be called after each turn: what has not failed since the last call works again."""
        for cause in self._causes - self._lately:
            episode = _open.get(cause)
            if episode is not None and episode.failing.pop(self, None) is not None:
                episode.has_healed = True
        self._causes, self._lately = self._lately, set()
        if _open:
            self._close_ended()

    def worked(self) -> None:
        """The only thing that this loop does has worked: whatever it failed for before is over."""
        self._lately.clear()
        self.settle()

    def forget(self) -> None:
        """The loop ends: nobody knows whether the cause is gone."""
        for cause in self._causes | self._lately:
            episode = _open.get(cause)
            if episode is not None:
                episode.failing.pop(self, None)
                if not episode.failing:
                    del _open[cause]
        self._causes, self._lately = set(), set()

    def _is_new(self, cause: str, reason: str) -> bool:
        self._lately.add(cause)
        self._causes.add(cause)
        now = self._clock()
        episode = _open.get(cause)
        if episode is not None and (self in episode.failing or not _is_stale(episode, now)):
            episode.repeats += 1
            episode.failing[self] = now
            return False
        while len(_open) >= _OPEN_MAX:
            del _open[next(iter(_open))]
        _open[cause] = episode = _Episode(reason, now)
        episode.failing[self] = now
        return True

    def _close_ended(self) -> None:
        now = self._clock()
        for cause, episode in list(_open.items()):
            if not _is_stale(episode, now):
                continue
            del _open[cause]
            if episode.has_healed:
                seconds = round(now - episode.began_at, 1)
                log.info("works again", reason=episode.reason, repeats=episode.repeats, seconds=seconds)


def _told(error: BaseException) -> dict[str, object]:
    """The error with its traceback; of an unreadable record the reason says all (SAFE-16)."""
    if isinstance(error, RecordUnreadable):
        return {"reason": str(error), "err_id": error.text.err_id}
    return {"error": error}


def _is_stale(episode: _Episode, now: float) -> bool:
    """Whether nobody has failed for it lately."""
    return all(now - at > _STALE_SECONDS for at in episode.failing.values())
