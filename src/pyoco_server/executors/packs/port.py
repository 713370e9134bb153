"""The port for executing one pack. It uses no ledger, budget, queue or result store (contract 14.1)."""

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
    """A pack cannot do what was requested. The owner of the run can read `detail`, so it must never quote an input."""

    def __init__(self, code: str, detail: str) -> None:
        """Raises ValueError if the code contains anything but capitals, digits and underscores."""
        if not _CODE.fullmatch(code):
            raise ValueError("the code of a PackError has a form such as PAGE_UNREADABLE")
        super().__init__(code)
        self.code, self.detail = code, detail


class PackUnavailable(PackError):
    """A pack lacks something that its operator provides: an engine, a model, data, a service. The run is free of
    charge."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a pack receives about its run, besides its inputs."""

    run_id: str
    tenant_id: str
    trace_id: str | None
    #: End of the timebox, by `time.monotonic`.
    deadline: float
    #: 0 to 1; for display, and never a reason to charge more.
    min_reliability_score: float
    #: The requested artifacts.
    artifacts: Mapping[str, Any]
    #: The maximum cost of the run. A pack whose price grows with its work stops before it exceeds this.
    reserved_usd_micros: int = MAX_AMOUNT_USD_MICROS
    #: The files that the inputs name, by key: private copies of this run, deleted when it ends.
    files: Mapping[str, Path] = field(default_factory=dict)
    #: Set when the run was cancelled. A pack that is still running five seconds later is killed.
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def stopped_by_budget(done: int, of: int) -> dict[str, Any]:
    """Return the member for the data of a result that says the reservation covered fewer units of work than were
    requested (SAFE-2). Empty if all are done."""
    return {} if done == of else {"stopped": {"reason": "BUDGET", "done": done, "of": of}}


#: A pack's executor: returns a result, or raises PackError. Of other exceptions only the type is reported.
Execute = Callable[[Mapping[str, Any], Context], PackResult]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What to execute, and for which tenant."""

    pack_type: str
    inputs: Mapping[str, Any]
    run_id: str
    tenant_id: str
    trace_id: str | None
    timebox_seconds: float
    min_reliability_e4: int
    reserved_usd_micros: int
    artifacts: Mapping[str, Any]
    #: Paths of the files that the inputs name, by key.
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Executed:
    """The pack returned this. Its structure is validated; whether it can be stored is determined when it is sealed."""

    result: PackResult
    #: Approximate size; 0: unknown. Large results are processed outside of the event loop.
    size_bytes: int = 0


@dataclass(frozen=True)
class Faulted:
    """The pack failed. `detail` is for the owner of the run; `where` is for the log: a code location, without
    values."""

    detail: str
    where: str | None = None
    #: The operator's fault: the run is refunded (SAFE-3).
    is_unavailable: bool = False


@dataclass(frozen=True)
class TimedOut:
    """The timebox ended before the pack did."""


@dataclass(frozen=True)
class Stopped:
    """The worker stopped it: the outcome must not be recorded."""


Outcome = Executed | Faulted | TimedOut | Stopped


class Execution(Protocol):
    """One pack call in progress."""

    async def outcome(self) -> Outcome:
        """Wait for the end and return the outcome, at most `KILL_SECONDS` after the timebox. Never raises."""

    def cancel(self) -> None:
        """Request it to stop; it is killed if it has not within `KILL_SECONDS`. The outcome is Stopped. Idempotent."""

    def kill(self) -> None:
        """Stop it immediately, with everything it started. The outcome is Stopped."""


class WarmProcess(Protocol):
    """A warm process that is reserved for one call."""

    async def begin(self, call: Call) -> Execution:
        """Start the call; its timebox begins when this returns. A process that died while it was reserved is replaced
        first: that takes as long as a start, or forever if none can be started."""

    def leave(self) -> None:
        """Release the process, used or not. Idempotent. A call that is still running on it is killed."""


class PackExecutor(Protocol):
    """Executes packs. Call `start`, then hold at most as many processes at a time as there are slots, then `stop`."""

    @property
    def restarts(self) -> int:
        """Number of processes that were replaced because they crashed or were killed."""

    @property
    def packs(self) -> frozenset[str]:
        """The packs it can execute; known after `start`."""

    async def start(self) -> None:
        """Return once it can take a call. Raises UsageError if it never will. Idempotent."""

    async def stop(self) -> None:
        """End all running work immediately. Idempotent; may be called before `start`."""

    async def reserve_process(self) -> WarmProcess:
        """Wait until a process is warm and idle, and reserve it."""
