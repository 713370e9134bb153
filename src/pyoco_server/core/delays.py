"""When a run may start: as requested, and as recorded (section 6 of the contract)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

__all__ = ["NO_DELAY", "Delay", "WaitsFor", "delay_problem", "instant_text"]


class WaitsFor(StrEnum):
    """What a PENDING run without a job waits for. An alarm of the clock queues its job."""

    #: The time that its caller or its schedule requested.
    SCHEDULED = "scheduled"
    #: The next try, after a failed one.
    RETRY = "retry"


@dataclass(frozen=True)
class Delay:
    """What a caller asks for: seconds from acceptance, or an instant; not both. Neither: start at once."""

    seconds: float | None = None
    until: float | None = None

    def due_at(self, now: float) -> float | None:
        """Return the instant before which the run must not start. None: it may start at once (DELAY-2)."""
        due = self.until if self.until is not None else now + (self.seconds or 0.0)
        return due if due > now else None


NO_DELAY = Delay()


def delay_problem(delay: Delay, now: float, seconds_max: float, setting: str) -> tuple[str, str] | None:
    """Return the member at fault and what is wrong with it (DELAY-2, DELAY-3). None: the delay is allowed."""
    if delay.seconds is not None and delay.until is not None:
        return "not_before", "cannot be given together with delay"
    name = "not_before" if delay.until is not None else "delay"
    due = delay.due_at(now)
    if due is not None and due - now > seconds_max:
        return name, f"is at most {seconds_max:.0f} seconds ahead ({setting})"
    return None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_text(instant: float) -> str:
    """Return the instant as RFC 3339 text in UTC, in whole seconds, for sentences."""
    try:
        return f"{_EPOCH + timedelta(seconds=int(instant)):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError):  # written by a foreign client
        return str(instant)
