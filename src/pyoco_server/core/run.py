"""One accepted piece of work, and the pure functions that move it towards its one end.

Instants are unix seconds as floats throughout: every wire and every store of the contract holds them so, and a
second form would be a second place to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from pyoco_server.core.outcome import Completed, Outcome, Progress
from pyoco_server.core.programs.record import EXEC, Program
from pyoco_server.core.states import FLOW_MOVES, TERMINAL, IllegalMove, RunState, TaskState
from pyoco_server.errors import CATALOGUE

__all__ = [
    "EARLIER_ATTEMPTS_MAX",
    "ERROR_LENGTH_MAX",
    "FLOW",
    "GATEWAY",
    "HANDED_BACK",
    "KEEPER",
    "LOST",
    "OPERATOR",
    "PACK",
    "Caller",
    "Owner",
    "Run",
    "RunChanges",
    "Submission",
    "accept",
    "ask_cancel",
    "beat",
    "changed",
    "claim",
    "conclude",
    "hand_back",
    "mark_cancel_overdue",
    "with_this_one",
]

#: FLOW-352
ERROR_LENGTH_MAX = 4096
#: A run that is handed around for ever must not outgrow its record: the oldest attempts are forgotten first.
EARLIER_ATTEMPTS_MAX = 20

#: Why an attempt was not the last one. Its worker gave it back, because it had to stop or had no room for it.
HANDED_BACK = "handed_back"
#: Nobody heard of its end: another claim took over.
LOST = "lost"

#: Who ended a run that its worker did not end. The last two end packs alone.
KEEPER = "keeper"
GATEWAY = "gateway"
OPERATOR = "operator"

#: The kind of a priced run. Its record is a picture of the ledger's row: whatever is done to it here, the row does not
#: hear of. So it is shown as any other, and nothing of the flows' side writes to it.
PACK = "pack"
#: The kind that everything here is made for which does not ask.
FLOW = "flow"


@dataclass(frozen=True)
class Caller:
    """Who asks. Without authentication nobody is told apart."""

    tenant_id: str | None = None
    api_key_id: str | None = None


@dataclass(frozen=True)
class Owner:
    """Who executes. The instance is random per process start, so that a reused name is never mistaken."""

    worker_id: str
    instance_id: str


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An ask that has been checked: whatever is in here can be recorded and queued as it is."""

    flow_name: str
    tag: str
    tags: tuple[str, ...]
    params: Mapping[str, Any]
    #: The text of an uploaded flow.yaml. It travels in the job and nowhere else (FLOW-174).
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    #: The run this one repeats.
    rerun_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One accepted piece of work, up to its one end."""

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
    #: As submitted; what tasks do to them is not shown (FLOW-351).
    params: Mapping[str, Any] = field(default_factory=dict)
    params_truncated: bool = False
    tasks: Mapping[str, str] = field(default_factory=dict)
    task_records: Mapping[str, Any] = field(default_factory=dict)
    task_records_truncated: bool = False
    #: Each task of the flow, and those it waits for. Empty until the flow has been built, and when it is too large.
    #: Kept as it was read: its form is looked at by whoever shows it (`shown_snapshot`).
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Grows by one at each claim. The newest attempt owns the run; older ones are fenced.
    attempt: int = 0
    #: Fresh for each attempt (FLOW-311), so that a write can be told from a look-alike.
    attempt_id: str | None = None
    worker_id: str | None = None
    instance_id: str | None = None
    #: What became of the attempts before this one, the oldest first (`with_this_one`). They are shown, and nothing is
    #: decided by them: so they are kept as they were read, members of a newer version included (FLOW-551).
    earlier_attempts: tuple[Mapping[str, Any], ...] = ()
    start_time: float | None = None
    end_time: float | None = None
    error: str | None = None
    #: Why it ended among the dead letters, a `DeadReason`.
    reason: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    cancel_requested_at: float | None = None
    cancel_reason: str | None = None
    #: The key of whoever asked. None: nobody did, or without authentication.
    cancel_requested_by: str | None = None
    #: KEEPER, GATEWAY or OPERATOR; None: a worker ended it, or nobody has yet.
    ended_by: str | None = None
    #: The run this one repeats.
    rerun_of: str | None = None
    #: What a run of a program has besides; None: it is of another kind.
    program: Program | None = None
    #: Fields a newer version wrote and this one does not know: carried along, never dropped (FLOW-551).
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_flow(self) -> bool:
        """Not what is left when the others are ruled out: a later version beside this one may have more kinds."""
        return self.kind == FLOW

    @property
    def is_pack(self) -> bool:
        return self.kind == PACK

    @property
    def is_exec(self) -> bool:
        """A program's run. What flows are done to is not done to it: the grid has its own claim, end and cancel."""
        return self.kind == EXEC

    def is_owned_by(self, attempt_id: str) -> bool:
        return self.attempt_id == attempt_id


def accept(ask: Submission, caller: Caller, run_id: str, now: float) -> Run:
    """The first record of a run (FLOW-12, FLOW-346)."""
    return Run(
        run_id=run_id,
        flow_name=ask.flow_name,
        tag=ask.tag,
        tags=ask.tags,
        params=ask.params,
        submitted_at=now,
        updated_at=now,
        heartbeat_at=now,
        workflow_yaml_sha256=ask.workflow_yaml_sha256,
        workflow_yaml_bytes=ask.workflow_yaml_bytes,
        tenant_id=caller.tenant_id,
        api_key_id=caller.api_key_id,
        rerun_of=ask.rerun_of,
    )


def claim(run: Run, owner: Owner, attempt_id: str, now: float) -> Run:
    """A worker takes the run for one more attempt; every older attempt is fenced from here on (FLOW-347).

    One that was under way until now is lost: its last sign of life is all that is known of its end.
    """
    return changed(
        run,
        status=_target(run, "claim"),
        attempt=run.attempt + 1,
        attempt_id=attempt_id,
        earlier_attempts=with_this_one(run, LOST, run.heartbeat_at),
        worker_id=owner.worker_id,
        instance_id=owner.instance_id,
        start_time=now,
        heartbeat_at=now,
        updated_at=now,
        tasks={},
        task_records={},
        task_records_truncated=False,
        graph={},
        error=None,
    )


def hand_back(run: Run, now: float) -> Run:
    """A worker that must go gives the run away: nobody owns it, and the next delivery may claim it at once."""
    earlier = with_this_one(run, HANDED_BACK, now)
    return changed(run, attempt_id=None, worker_id=None, instance_id=None, earlier_attempts=earlier, updated_at=now)


def with_this_one(run: Run, why: str, ended_at: float) -> tuple[Mapping[str, Any], ...]:
    """The attempts that are over, once the one under way is. Nobody's run has none under way."""
    if run.attempt_id is None:
        return run.earlier_attempts
    past = {
        "attempt": run.attempt,
        "worker_id": run.worker_id,
        "started_at": run.start_time,
        "ended_at": ended_at,
        "why": why,
    }
    return (*run.earlier_attempts, past)[-EARLIER_ATTEMPTS_MAX:]


def beat(run: Run, progress: Progress, now: float) -> Run:
    """A sign of life with whatever progress there is; the meaning of the status stays (FLOW-349)."""
    return changed(
        run,
        heartbeat_at=now,
        updated_at=now,
        tasks=progress.tasks or run.tasks,
        task_records=progress.task_records or run.task_records,
        task_records_truncated=progress.truncated or (run.task_records_truncated and not progress.task_records),
        graph=progress.graph or run.graph,
    )


def ask_cancel(run: Run, reason: str | None, now: float, by: str | None = None) -> Run:
    """Somebody wants it stopped (FLOW-175), by the key they have. The first request is the one that counts
    (FLOW-177)."""
    status = _target(run, "ask_cancel")
    return changed(
        run, status=status, cancel_requested_at=now, cancel_reason=reason, cancel_requested_by=by, updated_at=now
    )


def mark_cancel_overdue(run: Run, seconds: float, now: float) -> Run:
    """The work did not stop within the grace period: say so, and change nothing else (FLOW-186)."""
    text = CATALOGUE[21]
    return changed(run, error=f"{text.err_id}: {text.en} ({seconds:g} s)", updated_at=now)


def conclude(run: Run, outcome: Outcome, now: float, ended_by: str | None = None) -> Run:
    """The one end of a run (FLOW-379 to FLOW-384). A cancel request outranks whatever the work did (FLOW-20).

    `ended_by`: KEEPER, unless a worker does it.
    """
    error, reason = run.error, run.reason
    if run.status is RunState.CANCELLING:
        status, error = _target(run, "cancel"), outcome.error or run.error
    elif isinstance(outcome, Completed):
        status = _target(run, "complete")
    else:
        status, error = _target(run, "fail"), outcome.error or "the engine stopped the run"
        reason = outcome.reason or "execution_error"  # FLOW-384: stopped, though nobody asked for it
    progress = outcome.progress
    return changed(
        run,
        status=status,
        error=error and error[:ERROR_LENGTH_MAX],
        reason=reason,
        end_time=now,
        heartbeat_at=now,
        updated_at=now,
        tasks=_settle_tasks(progress.tasks or run.tasks, status),
        task_records=_settle_records(progress.task_records or run.task_records, status),
        task_records_truncated=progress.truncated or (run.task_records_truncated and not progress.task_records),
        graph=progress.graph or run.graph,
        ended_by=ended_by,
    )


def _target(run: Run, move: str) -> RunState:
    sources, target = FLOW_MOVES[move]
    if run.status not in sources:
        raise IllegalMove(move, run.status)
    return target


class RunChanges(TypedDict, total=False):
    """The members of a run that a move may change. A test compares them with the fields of `Run`."""

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
    ended_by: str | None
    rerun_of: str | None
    program: Program | None
    extra: Mapping[str, Any]


def changed(run: Run, **changes: Unpack[RunChanges]) -> Run:
    """`dataclasses.replace` at a tenth of its cost: it is called five times in the life of every run."""
    copy = object.__new__(Run)
    copy.__dict__.update(run.__dict__)
    copy.__dict__.update(changes)
    return copy


#: FLOW-23: what an unfinished task becomes when its run ends. What is not listed stays as it is.
_LEFTOVERS: dict[tuple[RunState, str], str] = {
    (RunState.FAILED, TaskState.RUNNING): TaskState.FAILED,
    (RunState.CANCELLED, TaskState.RUNNING): TaskState.CANCELLED,
    (RunState.CANCELLED, TaskState.PENDING): TaskState.CANCELLED,
    # A completed run has no running task; if a report was late, the run's own word counts.
    (RunState.COMPLETED, TaskState.RUNNING): TaskState.SUCCEEDED,
}


def _settle_tasks(tasks: Mapping[str, str], ended: RunState) -> dict[str, str]:
    return {name: str(_LEFTOVERS.get((ended, state), state)) for name, state in tasks.items()}


def _settle_records(records: Mapping[str, Any], ended: RunState) -> dict[str, Any]:
    return {name: _settle_record(record, ended) for name, record in records.items()}


def _settle_record(record: Any, ended: RunState) -> Any:
    if not isinstance(record, dict):
        return record
    settled = _LEFTOVERS.get((ended, record.get("state", "")))
    return record if settled is None else {**record, "state": str(settled)}
