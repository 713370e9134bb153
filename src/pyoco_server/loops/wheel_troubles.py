"""Which wheels failed on this worker, why, and when each of them is retried."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pyoco_server.core.wheel_sync import Hurdle, WheelTrouble, trouble_again
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.logs import get_logger

__all__ = ["Troubles"]

log = get_logger(__name__)

_ERROR_CHARACTERS_MAX = 1000


class Troubles:
    """Failures by wheel name. A wheel that keeps failing is retried less and less often; its last error stays
    reported."""

    def __init__(self, clock: Callable[[], float], every_seconds: float) -> None:
        self._clock, self._every_seconds = clock, every_seconds
        self._troubles: dict[str, WheelTrouble] = {}

    def remember(self, troubles: Mapping[str, WheelTrouble]) -> None:
        """Load the failures of the previous worker. They are not retried until `try_remembered`."""
        self._troubles |= {name: replace(one, again_at=math.inf) for name, one in troubles.items()}

    def try_remembered(self) -> bool:
        """Make the loaded failures due for a retry. Returns False if there are none."""
        due = {name: replace(one, again_at=0.0) for name, one in self._troubles.items() if one.again_at == math.inf}
        self._troubles |= due
        return bool(due)

    def add(self, wheel_name: str, nuid: str, hurdle: Hurdle, error: str) -> None:
        """Record one more failure (FLOW-242)."""
        error = error[:_ERROR_CHARACTERS_MAX]
        last = self._troubles.get(wheel_name)
        self._troubles[wheel_name] = trouble_again(last, nuid, hurdle, error, self._clock(), self._every_seconds)
        is_news = last is None or (last.nuid, last.error) != (nuid, error)
        log_failure = log.error if is_news else log.warning
        log_failure("wheel sync failed", error=WheelSyncFailed(error), wheel_name=wheel_name, nuid=nuid)

    def over(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> None:
        """Clear the failure of this upload at these stages."""
        if self.has_failed(wheel_name, nuid, *hurdles):
            del self._troubles[wheel_name]

    def has_failed(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> bool:
        """Whether this upload failed at one of these stages."""
        trouble = self._troubles.get(wheel_name)
        return trouble is not None and trouble.nuid == nuid and trouble.hurdle in hurdles

    def must_wait(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> bool:
        """Whether this upload failed at one of these stages and it is too early to retry."""
        is_early = wheel_name in self._troubles and self._troubles[wheel_name].again_at > self._clock()
        return is_early and self.has_failed(wheel_name, nuid, *hurdles)

    @property
    def is_any_due(self) -> bool:
        now = self._clock()
        return any(trouble.again_at <= now for trouble in self._troubles.values())

    def keep_only(self, uploads: Collection[tuple[str, str]]) -> None:
        """Forget all but these uploads, by wheel name and upload id: a new upload of the same wheel is independent."""
        self._troubles = {name: one for name, one in self._troubles.items() if (name, one.nuid) in uploads}

    def at(self, hurdle: Hurdle) -> dict[str, WheelTrouble]:
        """Return the failures at this stage, by wheel name."""
        return {name: one for name, one in self._troubles.items() if one.hurdle is hurdle}

    def by_name(self) -> list[tuple[str, WheelTrouble]]:
        return sorted(self._troubles.items(), key=lambda item: item[0])
