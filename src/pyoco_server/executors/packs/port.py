"""How one pack is executed. It never sees the ledger, the budget, the queue or the results (contract 14.1)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.envelope import PackResult

__all__ = [
    "Call",
    "Context",
    "Executed",
    "Execution",
    "Faulted",
    "Outcome",
    "PackError",
    "PackExecutor",
    "PackUnavailable",
    "Stopped",
    "TimedOut",
    "WarmProcess",
    "stopped_by_budget",
]

_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class PackError(Exception):
    """A pack cannot do what it was asked. The owner of the run reads `detail`, so it never quotes an input."""

    def __init__(self, code: str, detail: str) -> None:
        """Raises ValueError for a code that is not made of capitals, digits and underscores."""
        if not _CODE.fullmatch(code):
            raise ValueError("the code of a PackError has a form such as PAGE_UNREADABLE")
        super().__init__(code)
        self.code, self.detail = code, detail


class PackUnavailable(PackError):
    """A pack lacks something that its operator provides: an engine, a model, data, a service. The run costs nothing."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a pack knows of its run, besides its inputs."""

    run_id: str
    tenant_id: str
    trace_id: str | None
    #: When the timebox ends, by `time.monotonic`.
    deadline: float
    #: 0 to 1; for display, and never a reason to charge more.
    min_reliability_score: float
    #: Which artifacts were asked for.
    artifacts: Mapping[str, Any]
    #: What the run can cost at most. A pack whose price grows with its work stops before it costs more.
    reserved_usd_micros: int = MAX_AMOUNT_USD_MICROS
    #: The files that the inputs name, by their keys: copies of this run's own, which go when it ends.
    files: Mapping[str, Path] = field(default_factory=dict)
    #: Set when nobody waits for the result any more. Who is still alive five seconds later is killed.
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def stopped_by_budget(done: int, of: int) -> dict[str, Any]:
    """A member for the data of a result: the reservation covered fewer units of work than were asked for (SAFE-2).
    Empty when all are done."""
    return {} if done == of else {"stopped": {"reason": "BUDGET", "done": done, "of": of}}


#: A pack's executor: returns a result, or raises PackError. Whatever else it raises is told by its type alone.
Execute = Callable[[Mapping[str, Any], Context], PackResult]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is to be executed, and for whom."""

    pack_type: str
    inputs: Mapping[str, Any]
    run_id: str
    tenant_id: str
    trace_id: str | None
    timebox_seconds: float
    min_reliability_e4: int
    reserved_usd_micros: int
    artifacts: Mapping[str, Any]
    #: Where the files lie that the inputs name, by their keys.
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Executed:
    """The pack returned this. Its form is checked; whether it can be stored is seen when it is sealed."""

    result: PackResult
    #: Roughly; 0: not known. What is large is dealt with beside the event loop.
    size_bytes: int = 0


@dataclass(frozen=True)
class Faulted:
    """The pack failed. `detail` is for the owner of the run; `where` is for the log: a place in the code, no value."""

    detail: str
    where: str | None = None
    #: By the operator's fault: the run is refunded (SAFE-3).
    is_unavailable: bool = False


@dataclass(frozen=True)
class TimedOut:
    """The timebox was over before the pack was."""


@dataclass(frozen=True)
class Stopped:
    """It was stopped by us: nobody may make anything of it."""


Outcome = Executed | Faulted | TimedOut | Stopped


class Execution(Protocol):
    """One pack under way."""

    async def outcome(self) -> Outcome:
        """How it ended. Waits for the end, which is at most `KILL_SECONDS` after the timebox's; never raises."""

    def cancel(self) -> None:
        """Ask it to stop; it is killed when it has not within `KILL_SECONDS`. The outcome is Stopped. Repeatable."""

    def kill(self) -> None:
        """Stop it now, with everything it started. The outcome is Stopped."""


class WarmProcess(Protocol):
    """A warm process that is kept for one call."""

    async def begin(self, call: Call) -> Execution:
        """The timebox begins when this returns. A process that died while it waited is replaced first: that may take
        as long as a start, or for ever where none can be started."""

    def leave(self) -> None:
        """Of no use any more, used or not. Repeatable. Whatever still runs on it is killed."""


class PackExecutor(Protocol):
    """Executes packs. `start`, `stop`, and as many seats at a time as it has slots."""

    @property
    def restarts(self) -> int:
        """Processes that had to be replaced because they fell over or were killed."""

    @property
    def packs(self) -> frozenset[str]:
        """Which packs it can execute; known once it has started."""

    async def start(self) -> None:
        """Returns once it can take a call. Raises UsageError when it never will. May be called twice."""

    async def stop(self) -> None:
        """Ends whatever still runs, at once. May be called twice, and before `start`."""

    async def seat(self) -> WarmProcess:
        """Waits until a process is warm and free."""
