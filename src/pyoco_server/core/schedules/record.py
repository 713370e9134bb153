"""A schedule as it is stored: what it does, how far its ticks are handled, and the newest part of its history.

One record, so that every change of it is one compare-and-set: a tick, a pause and an edit never overlap.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from pyoco_server.core.schedules.cron import parse_cron
from pyoco_server.core.schedules.ids import schedule_key
from pyoco_server.core.schedules.when import At, Every, When
from pyoco_server.core.schedules.zones import zone_of

__all__ = [
    "ACTIVE_MAX",
    "CatchUp",
    "Definition",
    "Entry",
    "Kind",
    "Outcome",
    "Overlap",
    "Schedule",
    "Source",
    "Start",
    "check_schedule",
    "compiled",
    "etag_of",
    "every_of_cron",
]

#: Runs that are remembered as perhaps not ended. More can only come from a backfill that allows overlaps.
ACTIVE_MAX: Final = 1000
_EVERY: Final = "@every"


class Kind(StrEnum):
    """The kind of run that a schedule submits."""

    FLOW = "flow"
    EXEC = "exec"
    PACK = "pack"


class Overlap(StrEnum):
    """What happens to a tick while a run of the schedule has not ended (SCHED-7)."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_OLD = "cancel_old"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """Which missed ticks are run (SCHED-8)."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Source(StrEnum):
    """Why a tick was handled (SCHED-19)."""

    TICK = "tick"
    CATCH_UP = "catch_up"
    TRIGGER = "trigger"
    BACKFILL = "backfill"


class Outcome(StrEnum):
    """What became of a tick (SCHED-19)."""

    RUN = "run"
    WAITING = "waiting"
    SKIPPED = "skipped"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What its author decides."""

    name: str
    #: `kind`, and the members of a submission of that kind, with their templates.
    what: dict[str, Any]
    #: `cron`; or `every` and `offset` in seconds; or `at`, sorted unix seconds.
    when: dict[str, Any]
    timezone: str = "UTC"
    start_at: float | None = None
    end_at: float | None = None
    jitter: float = 0.0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LAST
    window: float = 86_400.0
    paused: bool = False
    pause_reason: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return str(self.what.get("kind"))


@dataclass(frozen=True)
class Start:
    """A tick that is to be run."""

    tick: int
    source: Source
    #: When that was decided.
    at: float
    #: The runs before it are cancelled (`cancel_old`).
    cancels: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of a tick (SCHED-19)."""

    tick: int
    due_at: float
    handled_at: float
    source: Source
    outcome: Outcome
    run_id: str | None = None
    reason: str | None = None
    err_id: str | None = None
    message: str | None = None
    message_ja: str | None = None
    #: How many ticks it stands for, and the last of them.
    count: int | None = None
    last_tick: int | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The stored record."""

    id: str
    definition: Definition
    #: Incremented by each change of the definition, and by nothing else (SCHED-31).
    version: int = 1
    tenant_id: str | None = None
    #: The key of the last writer: ticks are submitted with its rights.
    api_key_id: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    #: Ticks up to this instant are handled.
    cursor: int = 0
    #: The first tick after it. None: there is none, or the schedule is paused.
    next_at: int | None = None
    #: The alarm that the last keeper has set, or was about to set. Another one than `next_at` has still to be set.
    alarm_at: int | None = None
    #: Decided, and perhaps not submitted yet.
    starting: tuple[Start, ...] = ()
    #: They start when the runs before them have ended, one after another.
    waiting: tuple[Start, ...] = ()
    #: Runs that had not ended when they were last checked, without triggered ones.
    active: tuple[str, ...] = ()
    #: The newest entries of the history, oldest first. Older ones are in chunks.
    tail: tuple[Entry, ...] = ()
    #: Entries that were moved to chunks.
    spilled: int = 0

    @property
    def key(self) -> str:
        return schedule_key(self.tenant_id, self.definition.name)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_paused(self) -> bool:
        return self.definition.paused


def check_schedule(schedule: Schedule) -> Schedule:
    """Check a stored schedule for what its types do not say. Raises ValueError, KeyError, TypeError."""
    compiled(schedule.definition)
    zone_of(schedule.definition.timezone)
    return schedule


def etag_of(schedule: Schedule) -> str:
    digest = hashlib.sha256(f"{schedule.id}:{schedule.version}".encode()).hexdigest()
    return f'"{digest[:32]}"'


def compiled(definition: Definition) -> When:
    """Return when it ticks."""
    when = definition.when
    if "cron" in when:
        duration = every_of_cron(when["cron"])
        if duration is None:
            return _parsed_cron(when["cron"])
        return Every(int(when["seconds"]), 0, _anchor(definition))
    if "every" in when:
        return Every(int(when["every"]), int(when.get("offset", 0)), _anchor(definition))
    return At(tuple(when["at"]))


_parsed_cron = lru_cache(maxsize=4096)(parse_cron)


def _anchor(definition: Definition) -> int:
    return 0 if definition.start_at is None else int(definition.start_at)


def every_of_cron(text: str) -> str | None:
    """Return the duration of `@every DURATION` (SCHED-10). None: another expression."""
    word, _, duration = text.strip().partition(" ")
    return duration.strip() if word.lower() == _EVERY else None
