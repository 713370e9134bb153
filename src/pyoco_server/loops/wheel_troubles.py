"""Which wheels failed on this worker, why, and when each of them is tried again."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyoco_server.core.wheel_sync import Hurdle, Trouble, trouble_again
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.logs import get_logger

__all__ = ["Troubles"]

log = get_logger(__name__)

_ERROR_CHARACTERS_MAX = 1000


class Troubles:
    """By wheel name. A wheel that fails again and again is tried less and less often; what it failed at stays told."""

    def __init__(self, clock: Callable[[], float], every_seconds: float) -> None:
        self._clock, self._every_seconds = clock, every_seconds
        self._troubles: dict[str, Trouble] = {}

    def add(self, wheel_name: str, nuid: str, hurdle: Hurdle, error: str) -> None:
        """It failed, once more (FLOW-242)."""
        error = error[:_ERROR_CHARACTERS_MAX]
        last = self._troubles.get(wheel_name)
        self._troubles[wheel_name] = trouble_again(last, nuid, hurdle, error, self._clock(), self._every_seconds)
        is_news = last is None or (last.nuid, last.error) != (nuid, error)
        tell = log.error if is_news else log.warning
        tell("wheel sync failed", error=WheelSyncFailed(error), wheel_name=wheel_name, nuid=nuid)

    def over(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> None:
        """This upload did not fail at these."""
        if self.has_failed(wheel_name, nuid, *hurdles):
            del self._troubles[wheel_name]

    def has_failed(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> bool:
        """Whether this upload failed at one of these."""
        trouble = self._troubles.get(wheel_name)
        return trouble is not None and trouble.nuid == nuid and trouble.hurdle in hurdles

    def must_wait(self, wheel_name: str, nuid: str, *hurdles: Hurdle) -> bool:
        """The same, and it is too early to try again."""
        is_early = wheel_name in self._troubles and self._troubles[wheel_name].again_at > self._clock()
        return is_early and self.has_failed(wheel_name, nuid, *hurdles)

    @property
    def is_any_due(self) -> bool:
        now = self._clock()
        return any(trouble.again_at <= now for trouble in self._troubles.values())

    def keep_only(self, wheel_names: Collection[str]) -> None:
        self._troubles = {name: one for name, one in self._troubles.items() if name in wheel_names}

    def by_name(self) -> list[tuple[str, Trouble]]:
        return sorted(self._troubles.items(), key=lambda item: item[0])
