"""A run: one accepted piece of work. `flow_moves` and `programs.moves` change it.

Instants are unix seconds as floats everywhere, as in every wire and storage format of the contract; a second
representation would only be a second source of errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.programs.record import EXEC, Program
from pyoco_server.core.states import TERMINAL, RunState

__all__ = [
    "EARLIER_ATTEMPTS_MAX",
    "ERROR_LENGTH_MAX",
    "FAILED_TRY",
    "FLOW",
    "GATEWAY",
    "HANDED_BACK",
    "KEEPER",
    "LOST",
    "OPERATOR",
    "PACK",
    "TASK_TIMEOUT",
    "AttemptOver",
    "Caller",
    "Owner",
    "Run",
    "RunChanges",
    "Submission",
    "changed",
    "over",
    "with_this_one",
]

#: FLOW-352
ERROR_LENGTH_MAX = 4096
#: A run that is put back again and again must not outgrow its record: the oldest attempts are dropped first.
EARLIER_ATTEMPTS_MAX = 20
#: Length limit of the error of an attempt that did not end its run.
_ATTEMPT_ERROR_MAX = 200

#: Why an attempt was not the last one. Its worker put the run back, because it was stopping or had no room.
HANDED_BACK = "handed_back"
#: The attempt never reported an outcome: another claim took over.
LOST = "lost"
#: The attempt ended a failed try of the run, and another one is allowed.
FAILED_TRY = "failed_try"
#: A task took too long, so its process was killed, and its policy allows another try of it.
TASK_TIMEOUT = "task_timeout"

#: Who ended a run if not its worker. The last two end packs only.
KEEPER = "keeper"
GATEWAY = "gateway"
OPERATOR = "operator"

#: The kind of a priced run. Its record is only a projection of the ledger's row, and a change made here would not reach
#: the row. So it is shown like any other run, but no code for flows writes to it.
PACK = "pack"
#: The default kind: code that does not check the kind is made for flows.
FLOW = "flow"


@dataclass(frozen=True)
class Caller:
    """The authenticated client. Without authentication, all callers are the same."""

    tenant_id: str | None = None
    api_key_id: str | None = None


@dataclass(frozen=True)
class Owner:
    """The worker process that executes. The instance id is random per process start, so a reused name is not mistaken
    for it."""

    worker_id: str
    instance_id: str


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A validated submission: it can be recorded and queued unchanged."""

    flow_name: str
    tag: str
    tags: tuple[str, ...]
    params: Mapping[str, Any]
    #: The text of an uploaded flow.yaml. It travels in the job and is stored nowhere else (FLOW-174).
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    #: The run that this one repeats.
    rerun_of: str | None = None
    delay: Delay = NO_DELAY
    #: The retry policy, as `core.retries.policy.to_document` makes it. Empty: no retry, whatever the flow says. None:
    #: as the flow says.
    retry: Mapping[str, Any] | None = None
    #: Seconds for each try. None: as the flow says.
    timeout: float | None = None
    #: The tick of a schedule that this run is for (SCHED-14).
    schedule: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One accepted piece of work, up to its terminal state."""

    run_id: str
    flow_name: str
    tag: str
    submitted_at: float
    #: Every write sets it, heartbeats included (FLOW-350).
    updated_at: float
    heartbeat_at: float
    kind: str = FLOW
    status: RunState = RunState.PENDING
    tags: tuple[str, ...] = ()
    #: As submitted; changes that tasks make to them are not recorded (FLOW-351).
    params: Mapping[str, Any] = field(default_factory=dict)
    params_truncated: bool = False
    tasks: Mapping[str, str] = field(default_factory=dict)
    task_records: Mapping[str, Any] = field(default_factory=dict)
    task_records_truncated: bool = False
    #: Each task of the flow and its dependencies. Empty until the flow has been built, or if it is too large. Kept as
    #: read; its format is checked when it is shown (`shown_snapshot`).
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The result, and the outputs that their task records do not hold (`core/values/kept.py`). Private: the public form
    #: of a run shows them in their own members.
    kept_values: Mapping[str, Any] = field(default_factory=dict)
    #: Incremented by each claim. The newest attempt owns the run; older ones are fenced.
    attempt: int = 0
    #: Unique per attempt (FLOW-311), so that a write of another attempt is never mistaken for this one's.
    attempt_id: str | None = None
    worker_id: str | None = None
    instance_id: str | None = None
    #: How the earlier attempts ended, oldest first (`with_this_one`). For display only, so they are kept as read,
    #: including members written by a newer version (FLOW-551).
    earlier_attempts: tuple[Mapping[str, Any], ...] = ()
    start_time: float | None = None
    end_time: float | None = None
    error: str | None = None
    #: Why it became a dead letter, a `DeadReason`.
    reason: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    cancel_requested_at: float | None = None
    cancel_reason: str | None = None
    #: The API key that requested it. None: no request, or authentication is off.
    cancel_requested_by: str | None = None
    #: When the work is killed unless it stops before, by the clock of the gateway. Later requests may shorten it.
    cancel_deadline_at: float | None = None
    #: KEEPER, GATEWAY or OPERATOR. None: a worker ended it, or it has not ended.
    ended_by: str | None = None
    #: The run that this one repeats.
    rerun_of: str | None = None
    #: The run must not start before this instant. Kept afterwards. Programs have their own member (`due_at`).
    not_before: float | None = None
    #: The retry policy and the seconds for each try: of the submission, else of the flow, once it was built. See
    #: `Submission`. Kept as read.
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None
    #: The ended failed tries, oldest first. Only runs with a policy have them.
    tries: tuple[Mapping[str, Any], ...] = ()
    #: When the current try began. None: it has not begun, or the run has ended with a failed one.
    try_since: float | None = None
    #: Attempts that ended neither the run nor a try: lost, or put back. A failed try of kind `lost` sets it back.
    attempts_lost: int = 0
    #: The failed tries of tasks in earlier attempts of the current try, by task: `first_try_at`, `tries`.
    task_tries: Mapping[str, Any] = field(default_factory=dict)
    #: What the PENDING run waits for, a `WaitsFor`; it has no job meanwhile. None: it has a job, or had one.
    waits_for: str | None = None
    #: The tick of a schedule that this run is for: id and name of the schedule, tick, source.
    schedule: Mapping[str, Any] | None = None
    #: The members specific to a run of a program. None: another kind.
    program: Program | None = None
    #: Fields written by a newer version and unknown to this one: preserved, never dropped (FLOW-551).
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_flow(self) -> bool:
        """Whether this is a flow. An explicit check, because a later version may write kinds that this one does not
        know."""
        return self.kind == FLOW

    @property
    def is_pack(self) -> bool:
        return self.kind == PACK

    @property
    def is_exec(self) -> bool:
        """Whether this is a run of a program. Code for flows must skip it: programs have their own claim, end and
        cancel."""
        return self.kind == EXEC

    @property
    def due_at(self) -> float | None:
        """The instant before which the run must not start, of any kind."""
        return self.not_before if self.program is None else self.program.not_before

    @property
    def waits_for_time(self) -> bool:
        """Whether the run waits for an alarm, and has no job until then."""
        return self.waits_for is not None and self.status is RunState.PENDING

    @property
    def cancel_grace_seconds(self) -> float | None:
        """How long cancelled work may take to stop. None: not cancelled, or by a version without deadlines.

        Both instants are of the gateway's clock, so the worker counts from when it learned of the request.
        """
        if self.cancel_requested_at is None or self.cancel_deadline_at is None:
            return None
        return max(round(self.cancel_deadline_at - self.cancel_requested_at, 3), 0.0)

    def is_owned_by(self, attempt_id: str) -> bool:
        return self.attempt_id == attempt_id


class AttemptOver(TypedDict):
    worker_id: None
    earlier_attempts: tuple[Mapping[str, Any], ...]
    error: str | None
    updated_at: float


def over(run: Run, why: str, now: float, error: str | None = None) -> AttemptOver:
    """Return what changes in a run of any kind when its attempt ends and the run does not."""
    return {
        "worker_id": None,
        "earlier_attempts": with_this_one(run, why, now, error),
        "error": error and error[:_ATTEMPT_ERROR_MAX],
        "updated_at": now,
    }


def with_this_one(run: Run, why: str, ended_at: float, error: str | None = None) -> tuple[Mapping[str, Any], ...]:
    """Return the earlier attempts plus the current one, which ends now. A run without an owner has none in progress."""
    if run.attempt_id is None:
        return run.earlier_attempts
    past: dict[str, Any] = {
        "attempt": run.attempt,
        "worker_id": run.worker_id,
        "started_at": run.start_time,
        "ended_at": ended_at,
        "why": why,
    }
    if error is not None:
        past["error"] = error[:_ATTEMPT_ERROR_MAX]
    return (*run.earlier_attempts, past)[-EARLIER_ATTEMPTS_MAX:]


class RunChanges(TypedDict, total=False):
    """The members of a run that a transition may change. A test compares them with the fields of `Run`."""

    tag: str
    updated_at: float
    heartbeat_at: float
    status: RunState
    tags: tuple[str, ...]
    params: Mapping[str, Any]
    params_truncated: bool
    tasks: Mapping[str, str]
    task_records: Mapping[str, Any]
    task_records_truncated: bool
    graph: Mapping[str, Sequence[str]]
    kept_values: Mapping[str, Any]
    attempt: int
    attempt_id: str | None
    worker_id: str | None
    instance_id: str | None
    earlier_attempts: tuple[Mapping[str, Any], ...]
    start_time: float | None
    end_time: float | None
    error: str | None
    reason: str | None
    workflow_yaml_sha256: str | None
    workflow_yaml_bytes: int | None
    tenant_id: str | None
    api_key_id: str | None
    cancel_requested_at: float | None
    cancel_reason: str | None
    cancel_requested_by: str | None
    cancel_deadline_at: float | None
    ended_by: str | None
    rerun_of: str | None
    not_before: float | None
    retry: Mapping[str, Any] | None
    timeout: float | None
    tries: tuple[Mapping[str, Any], ...]
    try_since: float | None
    attempts_lost: int
    task_tries: Mapping[str, Any]
    waits_for: str | None
    schedule: Mapping[str, Any] | None
    program: Program | None
    extra: Mapping[str, Any]


def changed(run: Run, **changes: Unpack[RunChanges]) -> Run:
    """Do what `dataclasses.replace` does at a tenth of its cost: it is called five times per run."""
    copy = object.__new__(Run)
    copy.__dict__.update(run.__dict__)
    copy.__dict__.update(changes)
    return copy
