"""The legal changes of the record of a program, and which process may write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.programs.moves import is_cancel_asked, program_of
from pyoco_server.core.programs.record import Program
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.retries.course import policy_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import PROGRAM_MOVES, RunState
from simulation.programs.executor import MISSING

__all__ = ["Change", "problems_of"]

S = RunState
_UNDER_WAY = frozenset({S.RUNNING, S.CANCELLING})
#: Ends that no program reports.
_BUDGET_ENDS = frozenset({ErrorCode.MAX_ATTEMPTS, ErrorCode.MAX_LOST})


@dataclass(frozen=True)
class Change:
    """One write of a record."""

    old: Run
    new: Run
    writer: str
    #: Process by token.
    claimed_by: Mapping[str, str]
    #: Whether the lease of the attempt before may have looked old to the writer.
    looks_old: bool
    #: The latest time that the writer may believe it is.
    clock: float

    @property
    def is_claim(self) -> bool:
        return self.new.attempt > self.old.attempt

    @property
    def is_by_holder(self) -> bool:
        """Whether the writer made the attempt that the record is about."""
        return self.claimed_by.get(self.old.attempt_id or "") == self.writer


def problems_of(change: Change, grid: GridConfig) -> list[str]:
    old, new = change.old, change.new
    if old.is_terminal:
        return _after_end(old, new)
    found = []
    if not any(old.status in sources and new.status is target for sources, target in PROGRAM_MOVES.values()) and (
        old.status is not new.status
    ):
        found.append(f"a {old.status} job became {new.status}")
    found += _identity(program_of(old), program_of(new), old, new)
    found += _claim(change, grid) if change.is_claim else _same_attempt(change)
    found += _tries(old, new)
    if new.is_terminal:
        found += _end(change, grid)
    program = program_of(new)
    if program.lost > grid.exec_max_lost:
        found.append(f"{program.lost} attempts were lost")
    if new.attempt - program.lost > program.max_attempts:
        found.append(f"attempt {new.attempt} with {program.lost} lost is above the limit")
    return found


def _after_end(old: Run, new: Run) -> list[str]:
    """GRID-47: only the note of the dead letter may follow."""
    before, after = program_of(old), program_of(new)
    noted = replace(old, updated_at=new.updated_at, program=replace(before, dlq_done=True, job=None))
    if new == noted and before.dlq_due and not before.dlq_done and after.job is None:
        return []
    return [f"a job that is {old.status} was written again as {new.status}"]


def _identity(before: Program, after: Program, old: Run, new: Run) -> list[str]:
    names = ("job_id", "group", "exec_name", "client_id", "fingerprint", "max_attempts", "retry_of")
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    changed += ["params"] if old.params != new.params else []
    return [f"{', '.join(changed)} changed"] if changed else []


def _claim(change: Change, grid: GridConfig) -> list[str]:
    del grid
    old, new = change.old, change.new
    before, after = program_of(old), program_of(new)
    found = []
    if new.attempt != old.attempt + 1:
        found.append(f"attempt {old.attempt} was followed by {new.attempt}")
    if new.status is not S.RUNNING or new.attempt_id is None:
        found.append(f"attempt {new.attempt} began as {new.status}")
    if new.attempt_id in change.claimed_by or new.attempt_id == old.attempt_id:
        found.append("an attempt has the token of an earlier one")
    if is_cancel_asked(old):
        found.append("a cancelled job was claimed")
    if old.status is S.RUNNING and not change.looks_old:
        found.append("an attempt with a fresh lease was taken over")
    if after.lost != before.lost + (old.status is S.RUNNING):
        found.append(f"{after.lost} lost attempts after {before.lost}, claimed over {old.status}")
    if old.status is S.PENDING and before.not_before is not None and before.not_before > change.clock:
        found.append("a job was claimed before its time")
    if after.slot is None or after.holder is None:
        found.append("a job was claimed without a slot or a holder")
    return found


def _same_attempt(change: Change) -> list[str]:
    """Everything but a claim: only the holder of the newest token writes what an attempt does."""
    old, new = change.old, change.new
    found = []
    is_release = old.status is S.RUNNING and new.status is S.PENDING and new.attempt == old.attempt - 1
    if is_release:
        if new.attempt_id is not None:
            found.append("a claim was taken back and kept its token")
    elif new.attempt != old.attempt:
        found.append(f"attempt {old.attempt} was followed by {new.attempt}")
    elif new.attempt_id != old.attempt_id and not _is_failed_try(old, new):
        found.append("the token of an attempt changed")
    if new.is_terminal or (old.status is S.RUNNING and new.status is S.CANCELLING):
        return found
    is_release_by_the_clock = old.waits_for_time and new.waits_for is None
    if old.status is S.PENDING:
        if not is_release_by_the_clock and not _is_failed_try(old, new):
            found.append("a waiting job was written without being claimed")
    elif not change.is_by_holder:
        found.append("an attempt was written by a process that does not hold its token")
    if new.status in _UNDER_WAY and program_of(new).holder != program_of(old).holder:
        found.append("the holder of an attempt changed")
    if new.status is S.CANCELLING and old.cancel_requested_at != new.cancel_requested_at:
        found.append("the cancel request changed")
    return found


def _is_failed_try(old: Run, new: Run) -> bool:
    """RETRY-18: the attempt has reported, and the run waits for its next try."""
    return new.waits_for_time and new.attempt_id is None and len(new.tries) == len(old.tries) + 1


def _tries(old: Run, new: Run) -> list[str]:
    """RETRY-14, RETRY-15: failed tries are counted once each, and never more than the policy allows."""
    found = []
    if new.retry != old.retry:
        found.append("the policy of a job changed")
    if new.tries[: len(old.tries)] != old.tries or len(new.tries) > len(old.tries) + 1:
        found.append(f"{len(old.tries)} failed tries were followed by {len(new.tries)} others")
    policy = policy_of(new)
    if len(new.tries) > (0 if policy is None else policy.tries):
        found.append(f"{len(new.tries)} tries failed, which is more than allowed")
    if new.attempt > old.attempt and old.waits_for_time and old.waits_for == WaitsFor.RETRY:
        program = program_of(old)
        if program.not_before is None:
            found.append("a job waits for its next try without a time")
    return found


def _end(change: Change, grid: GridConfig) -> list[str]:
    old, new = change.old, change.new
    program = program_of(new)
    if new.status is S.CANCELLED:
        # GRID-162: when the holder is lost, the next claim writes it. A waiting job is cancelled by a gateway.
        is_allowed = old.status is S.PENDING or change.is_by_holder or change.looks_old
        found = [] if is_allowed else ["an attempt with a fresh lease was cancelled by another process"]
        return found if new.cancel_requested_at is not None else [*found, "a job was cancelled that nobody cancelled"]
    if program.error_code in _BUDGET_ENDS:
        spent = (
            new.attempt - program.lost >= program.max_attempts
            if program.error_code == ErrorCode.MAX_ATTEMPTS
            else program.lost >= grid.exec_max_lost
        )
        is_allowed = old.status is S.PENDING or change.is_by_holder or change.looks_old
        found = [] if spent else [f"a job ended with {program.error_code} before its budget was spent"]
        return found if is_allowed else [*found, "an attempt with a fresh lease was ended by another process"]
    if program.error_code == ErrorCode.EXEC_NOT_FOUND and old.status is S.PENDING:  # FIND-14: no worker has it
        return [] if program.exec_name == MISSING else ["a job ended without its program, which every worker has"]
    if not change.is_by_holder:
        return ["a result was written by a process that does not hold the token"]
    return []
