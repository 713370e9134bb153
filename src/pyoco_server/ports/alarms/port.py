"""Alarms that survive crashes: one per run or schedule, at its next due time.

They carry no truth. A lost alarm is set again from the records, and one that comes early, late or twice only makes a
keeper look at the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["Alarm", "AlarmKind", "Alarms", "DueAlarm", "DueAlarms", "NoAlarms"]


class AlarmKind(StrEnum):
    RUN = "run"
    SCHEDULE = "schedule"


@dataclass(frozen=True)
class Alarm:
    kind: AlarmKind
    #: A run id, or the id of a schedule.
    id: str
    due_at: float


class DueAlarm(Protocol):
    """An alarm whose time has come, delivered to one keeper. Unless answered, any keeper gets it again."""

    @property
    def kind(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def due_at(self) -> float:
        """The time that it was set to; 0.0: unknown. It may be delivered a quarter of a second before."""

    async def settle(self) -> None:
        """Mark it as handled, best effort: if that gets lost, it is delivered again."""

    async def put_off(self, seconds: float) -> None:
        """Deliver it again after this time. Best effort."""


class DueAlarms(Protocol):
    """The due alarms of one keeper, never more than it requests."""

    async def want(self, count: int) -> None:
        """Request up to `count` more from now on."""

    async def tick(self) -> None:
        """Call once a second: rebuilds the requests if the store is silent."""

    async def close(self) -> None: ...


class Alarms(Protocol):
    """Raises Unavailable in an outage."""

    async def put(self, alarm: Alarm) -> None:
        """Store the alarm, over any earlier one for the same run or schedule. One round trip; may be repeated.

        One whose time has passed is due at once; one that falls due while the store is down is due at its restart.
        """

    async def known(self, kind: AlarmKind) -> set[str]:
        """Return the ids for which an alarm is stored, due or not. O(alarms)."""

    async def open_due(self, on_due: Callable[[DueAlarm], None]) -> DueAlarms:
        """Take due alarms, together with all other keepers."""


class NoAlarms:
    """For processes that do not handle alarms: all but keepers."""

    async def put(self, alarm: Alarm) -> None:
        raise NotImplementedError

    async def known(self, kind: AlarmKind) -> set[str]:
        raise NotImplementedError

    async def open_due(self, on_due: Callable[[DueAlarm], None]) -> DueAlarms:
        raise NotImplementedError
