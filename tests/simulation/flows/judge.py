"""What must hold for flows after every write and every acknowledgement, and what must have come true at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.retries.course import policy_of
from pyoco_server.core.run import KEEPER, Run
from pyoco_server.core.snapshot import read_snapshot
from pyoco_server.core.states import FLOW_MOVES, RunState
from pyoco_server.errors import CATALOGUE
from pyoco_server.ports.nats.memory.messages import Message
from pyoco_server.ports.nats.memory.stream import Stream
from simulation.kind import Problems
from simulation.loop import SimLoop
from simulation.network import WatchedNats

__all__ = ["FlowJudge"]

#: Less than the time after which a worker counts as gone (20 s), and more than between two heartbeats (1 s).
_ALIVE_SECONDS = 15.0
#: Three heartbeats. A claim waits for 5 s more, because clocks may differ by that (FLOW-209).
_OVERLAP_SECONDS = 3.0
_UNWRITTEN_LETTER = CATALOGUE[11].en
_RUNS, _WORK, _LETTERS = "KV_pyoco_runs", "PYOCO_WORK", "PYOCO_DLQ"


@dataclass
class _Known:
    """What the judge has seen of one run."""

    run: Run
    revision: int
    is_withdrawn: bool = False
    #: When its worker last showed a sign of life, in virtual seconds.
    beaten_at: float = -1000.0
    attempts: set[str] = field(default_factory=set)
    #: The attempt whose host was killed.
    killed: str | None = None


class FlowJudge:
    """Sees every revision of a run, every answer to the queue, and what clients were told."""

    def __init__(self, loop: SimLoop, nats: WatchedNats, problems: Problems) -> None:
        self._loop, self._nats, self.blame = loop, nats, problems.blame
        self.known: dict[str, _Known] = {}
        self.accepted: dict[str, dict[str, Any]] = {}
        self._by_key: dict[str, str] = {}
        #: Bodies of all dead letters.
        self._letters: list[bytes] = []
        #: The newest job of each run.
        self._jobs: dict[str, int] = {}
        nats.on_stream.append(self._on_stream)
        nats.on_message.append(self._on_message)

    # What clients were promised.

    def accept(self, run_id: str, params: dict[str, Any], key: str | None) -> None:
        """A client was told that this run is accepted."""
        self.accepted.setdefault(run_id, params)
        if run_id not in self.known:
            self.blame("a run was accepted that is not stored", run_id)
        if key is not None and self._by_key.setdefault(key, run_id) != run_id:
            self.blame(f"idempotency key {key} names two runs", run_id)

    @property
    def keys_promised(self) -> set[str]:
        return set(self._by_key)

    # What is written.

    def _on_stream(self, stream: Stream) -> None:
        if stream.name == _RUNS:
            stream.on_stored.append(self._on_revision)
        elif stream.name == _WORK:
            stream.on_stored.append(self._on_job)
        elif stream.name == _LETTERS:
            stream.on_stored.append(lambda message: self._letters.append(message.data))

    def _on_job(self, message: Message) -> None:
        self._jobs[decode_job(message.data).run_id] = message.seq

    def _on_revision(self, message: Message) -> None:
        run_id = message.subject.rpartition(".")[2]
        before = self.known.get(run_id)
        if b"KV-Operation" in message.head:
            self._on_withdrawal(run_id, before)
            return
        run = read_snapshot(message.data)
        if not run.is_flow:
            return
        self._loop.record(
            "write", run=run_id, status=run.status.value, attempt=run.attempt, tries=len(run.tries), rev=message.seq
        )
        if before is None:
            if run.status is not RunState.PENDING or run.attempt:
                self.blame(f"a run began as {run.status}", run_id)
            self.known[run_id] = _Known(run, message.seq)
            return
        for problem in _problems(before, run):
            self.blame(problem, run_id)
        has_owner = before.run.attempt_id is not None
        if run.ended_by == KEEPER and has_owner and self._loop.elapsed() - before.beaten_at < _ALIVE_SECONDS:
            self.blame("a keeper ended a run whose worker showed signs of life", run_id)
        age = time.time() - before.run.heartbeat_at
        if run.attempt > before.run.attempt and before.run.attempt_id is not None and age < _OVERLAP_SECONDS:
            self.blame(f"a run was taken over {age:.1f} s after a heartbeat", run_id)
        if run.attempt_id is not None and run.heartbeat_at > before.run.heartbeat_at:
            before.beaten_at = self._loop.elapsed()
        if run.attempt_id is not None:
            before.attempts.add(run.attempt_id)
        before.run, before.revision = run, message.seq

    def _on_withdrawal(self, run_id: str, before: _Known | None) -> None:
        if before is None:
            return  # a run of another kind
        if before.run.status is not RunState.PENDING or before.run.attempt:
            self.blame("a run was withdrawn that somebody had touched", run_id)
        elif run_id in self.accepted:
            self.blame("a run was withdrawn after it had been accepted", run_id)
        before.is_withdrawn = True

    # What is acknowledged.

    def _on_message(self, process: str, subject: str, data: bytes) -> None:
        if not subject.startswith(f"$JS.ACK.{_WORK}.") or not (data == b"+ACK" or data.startswith(b"+TERM")):
            return
        message = self._nats.streams[_WORK].messages.get(int(subject.split(".")[5]))
        if message is None:
            return
        run_id = decode_job(message.data).run_id
        known = self.known.get(run_id)
        self._loop.record("ack", by=process, run=run_id)
        if known is None or known.is_withdrawn or known.run.waits_for_time:  # an alarm queues another job
            return
        is_of_an_earlier_try = bool(known.run.tries) and message.seq < self._jobs[run_id]
        if not known.run.is_terminal and not is_of_an_earlier_try:
            self.blame(f"{process} acknowledged the job of a run that is {known.run.status}", run_id)

    # What is executed.

    def began(self, process: str, run_id: str) -> None:
        known = self.known.get(run_id)
        self._loop.record("execute", by=process, run=run_id)
        if known is None or known.is_withdrawn:
            self.blame(f"{process} executes a run that is not stored", run_id)

    def host_died(self, run_id: str) -> None:
        """Called in the worker when it learns of that."""
        self._loop.record("host killed", run=run_id)
        known = self.known.get(run_id)
        if known is not None:
            known.killed = known.run.attempt_id

    # What must have come true.

    @property
    def open_runs(self) -> list[str]:
        """Runs that have not ended, and are not withdrawn."""
        return [run_id for run_id, each in self.known.items() if not each.run.is_terminal and not each.is_withdrawn]

    @property
    def is_settled(self) -> bool:
        work = self._nats.streams.get(_WORK)
        return not self.open_runs and (work is None or not work.messages)

    def conclude(self) -> None:
        """Faults are over, and the deployment had time to recover."""
        for run_id in self.open_runs:
            run = self.known[run_id].run
            self.blame(f"a run is stuck as {run.status}, attempt {run.attempt}", run_id)
        work = self._nats.streams.get(_WORK)
        for message in work.messages.since(1) if work is not None else ():
            self.blame("a job is left in the queue", decode_job(message.data).run_id)
        for run_id, params in self.accepted.items():
            self._check_end(run_id, params)
        self._check_keys()
        self._check_letters()
        self._check_hosts()

    def _check_letters(self) -> None:
        """Each failure that a worker has recorded has its letter, also when the worker died right after that. A letter
        that the store refused is logged instead (FLOW-336)."""
        unwritten = {
            entry.facts.get("run_id")
            for entry in self._loop.history
            if entry.event == "log" and entry.facts.get("message") == _UNWRITTEN_LETTER
        }
        buried = b" ".join(self._letters)
        for run_id, each in self.known.items():
            is_due = each.run.status is RunState.FAILED and each.run.ended_by is None and run_id not in unwritten
            if is_due and run_id.encode() not in buried:
                self.blame("a failed run has no dead letter", run_id)

    def _check_hosts(self) -> None:
        """A run whose host was killed has failed for that reason, unless it was cancelled or tried again."""
        for run_id, each in self.known.items():
            is_last = each.killed is not None and each.killed == each.run.attempt_id
            was_ended = each.run.ended_by is None and each.run.status in {RunState.COMPLETED, RunState.FAILED}
            if is_last and was_ended and each.run.reason != DeadReason.HOST_KILLED:
                self.blame(f"a run whose host was killed is {each.run.status}, {each.run.reason}", run_id)

    def _check_end(self, run_id: str, params: dict[str, Any]) -> None:
        known = self.known.get(run_id)
        if known is None or known.is_withdrawn:
            self.blame("an accepted run is lost", run_id)
        elif known.run.reason == DeadReason.ABANDONED:
            self.blame("an accepted run was ended because it had no job", run_id)
        elif known.run.status is RunState.COMPLETED and params.get("end", "complete") in ("fail", "crash"):
            self.blame("a run that fails is shown as completed", run_id)

    def _check_keys(self) -> None:
        """Of the runs that one idempotency key led to, at most one was ever started."""
        started: dict[str, str] = {}
        for run_id, each in self.known.items():
            key = each.run.params.get("key")
            if key is None or each.run.rerun_of is not None or not each.run.attempt:
                continue
            if started.setdefault(str(key), run_id) != run_id:
                self.blame(f"idempotency key {key} started two runs", run_id)


def _problems(before: _Known, run: Run) -> list[str]:
    """What is wrong with this revision, seen what the last one was."""
    old = before.run
    found = []
    if before.is_withdrawn:
        found.append("a withdrawn run was written")
    if old.is_terminal:
        found.append(f"a run that is {old.status} was written again as {run.status}")
    elif run.status is not old.status and not _is_move(old.status, run.status):
        found.append(f"a {old.status} run became {run.status}")
    if run.attempt not in {old.attempt, old.attempt + 1}:
        found.append(f"attempt {old.attempt} was followed by {run.attempt}")
    if run.attempt == old.attempt and run.attempt_id not in {old.attempt_id, None}:
        found.append("the owner of an attempt changed")
    if run.status is RunState.PENDING and (run.attempt_id is not None or run.worker_id is not None):
        found.append("a run was put back and still has an owner")
    if run.status is RunState.PENDING and run.attempt and len(run.earlier_attempts) < min(run.attempt, 20):
        found.append("an attempt was put back and is not among the earlier ones")
    if run.attempt > old.attempt and run.attempt_id in before.attempts:
        found.append("an attempt has the id of an earlier one")
    if run.updated_at < old.updated_at - 5.0:
        found.append("the record went back in time")
    return found + _problems_of_tries(old, run)


def _problems_of_tries(old: Run, run: Run) -> list[str]:
    """RETRY-14, RETRY-15, RETRY-17: failed tries are counted once each, and never more than the policy allows."""
    found = []
    if run.retry != old.retry:
        found.append("the policy of a run changed")
    if run.tries[: len(old.tries)] != old.tries or len(run.tries) > len(old.tries) + 1:
        found.append(f"{len(old.tries)} failed tries were followed by {len(run.tries)} others")
    if [each["try"] for each in run.tries] != list(range(1, len(run.tries) + 1)):
        found.append("failed tries are not numbered in order")
    policy = policy_of(run)
    if len(run.tries) > (0 if policy is None else policy.tries):
        found.append(f"{len(run.tries)} tries failed, which is more than allowed")
    lost = sum(len(each["attempts"]) - 1 for each in run.tries)
    if not any(each["kind"] == "lost" for each in run.tries) and run.attempts_lost < lost:
        found.append("attempts were lost and are not counted")
    is_last = policy is not None and len(run.tries) == policy.tries
    was_retried = run.reason in (DeadReason.EXECUTION_ERROR, DeadReason.HOST_KILLED) and policy is not None
    if run.status is RunState.FAILED and was_retried and not is_last:
        found.append(f"a run failed after {len(run.tries)} tries, and more were allowed")
    if run.attempt > old.attempt and old.waits_for == WaitsFor.RETRY:
        found.append("a run was claimed that waited for its next try")
    return found


def _is_move(old: RunState, new: RunState) -> bool:
    moves: Callable[[], Any] = FLOW_MOVES.values
    return any(old in sources and new is target for sources, target in moves())
