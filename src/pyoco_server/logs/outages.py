"""Repeated failures are logged once when they begin and once when they end, with their count (CLI-2, SAFE-15).

    self._outage = Outage(log)
    while True:
        try:
            await self.turn()
        except Unavailable as error:
            self._outage.failed("turn failed; retrying", error, loop=name)
        self._outage.settle()

All loops of a process share one list of open outages, keyed by the cause: if a dozen loops fail because of the same
dependency, that is one line. Not for requests: each of those is logged by its door.
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

#: Ids and numbers, which differ between warnings with the same cause.
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d+")
#: A loop that has not failed for this long no longer keeps an outage open: its next turn may be an hour away.
_STALE_SECONDS = 60.0
#: Bounds memory if every error text is different. The oldest outage is dropped without a log line.
_OPEN_MAX = 1_000


def cause_of(error: BaseException) -> str:
    """Return the key under which warnings count as the same.

    It is the missing resource, the unreadable record, or the text of the first error of the chain without ids and
    numbers.
    """
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
    #: Suppressed warnings.
    repeats: int = 0
    #: When each loop last failed with this cause.
    failing: WeakKeyDictionary[Outage, float] = field(default_factory=WeakKeyDictionary)
    #: At least one of the loops has succeeded since.
    has_healed: bool = False


_open: dict[str, _Episode] = {}


class Outage:
    """Reports the failures of one loop or one watch."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        #: Causes of this loop's failures: all known ones, and those since the last `settle`.
        self._causes: set[str] = set()
        self._lately: set[str] = set()

    def failed(self, message: str, error: BaseException, **fields: object) -> None:
        """Log a warning with the error, unless an outage with this cause is already open."""
        if self._is_new(cause_of(error), str(error)):
            self._log.warning(message, **_error_fields(error), **fields)

    def crashed(self, message: str, error: BaseException, **fields: object) -> None:
        """Like `failed`, for a defect: at level ERROR."""
        if self._is_new(cause_of(error), str(error)):
            self._log.error(message, **_error_fields(error), **fields)

    def settle(self) -> None:
        """Call after each turn: causes that have not failed since the last call count as recovered."""
        for cause in self._causes - self._lately:
            episode = _open.get(cause)
            if episode is not None and episode.failing.pop(self, None) is not None:
                episode.has_healed = True
        self._causes, self._lately = self._lately, set()
        if _open:
            self._close_ended()

    def worked(self) -> None:
        """The loop's only operation has succeeded: all its earlier causes count as recovered."""
        self._lately.clear()
        self.settle()

    def forget(self) -> None:
        """The loop ends: whether its causes still exist is unknown, so they are dropped without a log line."""
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
                log.info("recovered", reason=episode.reason, repeats=episode.repeats, seconds=seconds)


def _error_fields(error: BaseException) -> dict[str, object]:
    """Return the error with its traceback; for an unreadable record the reason is enough (SAFE-16)."""
    if isinstance(error, RecordUnreadable):
        return {"reason": str(error), "err_id": error.text.err_id}
    return {"error": error}


def _is_stale(episode: _Episode, now: float) -> bool:
    """Return whether no loop has failed with this cause lately."""
    return all(now - at > _STALE_SECONDS for at in episode.failing.values())
