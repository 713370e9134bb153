"""What must hold for programs after every write and every removal from the queue, and at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import read_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.memory.messages import Message
from pyoco_server.ports.nats.memory.stream import Stream
from simulation.deployment import Deployment
from simulation.kind import Problems
from simulation.programs.executor import KILLED, Behaviour
from simulation.programs.moves import Change, problems_of
from simulation.programs.slots import SlotJudge
from simulation.programs.stories import Stories

__all__ = ["ProgramJudge"]

_RUNS, _QUEUE, _LETTERS, _ARTIFACTS = "KV_pyoco_runs", "PYOCO_EXEC", "PYOCO_DLQ", "OBJ_pyoco_artifacts"
_LETTER_SUBJECT = "pyoco.dlq.exec"


@dataclass
class _Known:
    """What the judge has seen of one run."""

    run: Run
    is_withdrawn: bool = False
    #: Process by the token of each attempt it claimed.
    claimed_by: dict[str, str] = field(default_factory=dict)
    #: How often the process of the newest claim had been started.
    starts: int = 0
    #: Longest time that the lease of a token was seen unrenewed, by a clock without error.
    lease_age: dict[str, float] = field(default_factory=dict)


class ProgramJudge:
    """Sees every revision of a run, every message of the queue, every slot and event, and what clients were told."""

    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        assert deployment.grid is not None
        self.deployment, self._loop, self._nats = deployment, deployment.loop, deployment.nats
        self.grid = deployment.grid
        self.blame = problems.blame
        self.known: dict[str, _Known] = {}
        self.letter_ids: list[int] = []
        self._buried: set[str] = set()
        #: Run and fingerprint by job id; run by idempotency key.
        self._promised: dict[str, tuple[str, str]] = {}
        self._by_key: dict[str, str] = {}
        self.slots = SlotJudge(self)
        self._stories = Stories()
        #: Runs and attempts of programs that were killed.
        self._killed: set[tuple[str, int]] = set()
        #: Who sent the message that is taking effect.
        self.writer = ""
        self._skews: dict[str, float] = {}
        self._nats.on_message.append(self._on_message)
        self._nats.on_stream.append(self._on_stream)

    # Where and when.

    def _on_message(self, process: str, subject: str, data: bytes) -> None:
        del data
        self.writer = process
        if subject.startswith("$KV."):
            service = self.deployment.services.get(process)
            if service is not None:
                self._skews[process] = max(self._skews.get(process, 0.0), service.process.skew_seconds)

    def latest_clock(self, process: str) -> float:
        """The latest time that this process may believe it is. Its clock may have changed since it decided to write."""
        return time.time() + self._skews.get(process, 0.0)

    def could_look_old(self, run_id: str, token: str, process: str) -> bool:
        """Whether the lease of this attempt may have looked old to the process at some time."""
        known = self.known[run_id]
        age = known.lease_age.get(token, 0.0)
        if known.run.attempt_id == token:
            age = max(age, time.time() - known.run.heartbeat_at)
        return age + self._skews.get(process, 0.0) >= self.grid.exec_lease_fresh_sec

    # What clients were told.

    def accept(self, run: Run, fingerprint: str, key: str | None) -> None:
        """A client was told that this run is accepted."""
        known = self.known.get(run.run_id)
        if known is None or known.is_withdrawn:
            self.blame("a job was accepted that is not stored", run.run_id)
        job_id = program_of(run).job_id
        run_id, promised = self._promised.setdefault(job_id, (run.run_id, fingerprint))
        if run_id != run.run_id:
            self.blame(f"job id {job_id} names two runs", run_id)
        if promised != fingerprint or program_of(run).fingerprint != fingerprint:
            self.blame("another job was accepted under the id of this one", run_id)
        if key is not None and self._by_key.setdefault(key, run_id) != run_id:
            self.blame(f"idempotency key {key} names two jobs", run_id)

    # What is written.

    def _on_stream(self, stream: Stream) -> None:
        if stream.name == _RUNS:
            stream.on_stored.append(self._on_revision)
        elif stream.name == _QUEUE:
            stream.on_stored.append(self._on_queued)
            stream.on_removed.append(self._on_unqueued)
        elif stream.name == _LETTERS:
            stream.on_stored.append(self._on_letter)
        elif stream.name == self.grid.exec_events_stream:
            stream.on_stored.append(lambda message: self._stories.add(message.data))
        self.slots.on_stream(stream)

    def _on_revision(self, message: Message) -> None:
        run_id = message.subject.rpartition(".")[2]
        known = self.known.get(run_id)
        if b"KV-Operation" in message.head:
            self._on_withdrawal(run_id, known)
            return
        run = read_snapshot(message.data)
        if not run.is_exec:
            return
        program = program_of(run)
        facts = {
            "run": run_id,
            "status": run.status.value,
            "attempt": run.attempt,
            "lost": program.lost,
            "tries": len(run.tries),
        }
        self._loop.record("program", by=self.writer, **facts, code=program.error_code, holder=program.holder)
        if known is None or known.is_withdrawn:
            if run.status is not RunState.PENDING or run.attempt or run.attempt_id is not None:
                self.blame(f"a job began as {run.status}, attempt {run.attempt}", run_id)
            self.known[run_id] = _Known(run)
            return
        self._check_move(known, run)
        known.run = run

    def _check_move(self, known: _Known, run: Run) -> None:
        old, writer = known.run, self.writer
        if old.attempt_id is not None:
            age = time.time() - old.heartbeat_at
            known.lease_age[old.attempt_id] = max(known.lease_age.get(old.attempt_id, 0.0), age)
        looks_old = old.attempt_id is not None and self.could_look_old(run.run_id, old.attempt_id, writer)
        change = Change(old, run, writer, known.claimed_by, looks_old, self.latest_clock(writer))
        for problem in problems_of(change, self.grid):
            self.blame(f"{problem} (written by {writer})", run.run_id)
        if run.attempt > old.attempt and run.attempt_id is not None:
            if change.is_claim and old.status is RunState.RUNNING:
                self._check_loss(known)
            known.claimed_by[run.attempt_id] = writer
            known.starts = self._starts_of(writer)
        if run.is_terminal and not old.is_terminal:
            self._check_end(run)

    def _starts_of(self, process: str) -> int:
        service = self.deployment.services.get(process)
        return 0 if service is None else service.starts

    def _check_loss(self, known: _Known) -> None:
        """GRID-56: an attempt is lost by a fault alone, however long its program runs and its files take."""
        holder = known.claimed_by.get(known.run.attempt_id or "", "")
        if self.deployment.trouble.is_free(holder) and self._starts_of(holder) == known.starts:
            self.blame(f"{holder} lost an attempt without any fault", known.run.run_id)

    def _check_end(self, run: Run) -> None:
        """COMPLETED, and an exit code, come from the program alone; artifacts are stored before."""
        program = program_of(run)
        expected = Behaviour.of(run.params["args"]).report(run.attempt)
        if (run.run_id, run.attempt) in self._killed:
            expected = KILLED
        if run.status is RunState.COMPLETED and expected.status is not RunState.COMPLETED:
            self.blame("a program that fails is shown as completed", run.run_id)
        if run.status is not RunState.CANCELLED and program.exit_code not in {None, expected.exit_code}:
            self.blame(f"exit code {program.exit_code} instead of {expected.exit_code}", run.run_id)
        stored = self._nats.streams.get(_ARTIFACTS)
        for artifact in program.artifacts:
            if stored is None or not any(artifact.object.encode() in each.data for each in _metas(stored)):
                self.blame(f"artifact {artifact.object} is named before it is stored", run.run_id)

    def _on_withdrawal(self, run_id: str, known: _Known | None) -> None:
        if known is None:
            return  # a run of another kind
        self._loop.record("program withdrawn", by=self.writer, run=run_id)
        if known.run.status is not RunState.PENDING or known.run.attempt:
            self.blame("a job was withdrawn that had been claimed or had ended", run_id)
        known.is_withdrawn = True

    def _on_letter(self, message: Message) -> None:
        if message.subject != _LETTER_SUBJECT:
            return
        self.letter_ids.append(message.seq)
        for run_id, known in self.known.items():
            if run_id.encode() in message.data and known.run.status is RunState.FAILED:
                self._buried.add(run_id)

    # The queue.

    def _on_queued(self, message: Message) -> None:
        run_id = message.subject.rpartition(".")[2]
        self._loop.record("queued", by=self.writer, run=run_id)
        if run_id not in self.known:
            self.blame("a job was queued that is not recorded", run_id)
        if len([each for each in self._nats.streams[_QUEUE].messages.since(1) if each.subject == message.subject]) > 1:
            self.blame("a job has two messages", run_id)

    def _on_unqueued(self, message: Message) -> None:
        run_id = message.subject.rpartition(".")[2]
        self._loop.record("unqueued", by=self.writer, run=run_id)
        known = self.known.get(run_id)
        if known is not None and known.run.tries and not known.is_withdrawn:
            return  # perhaps the message of an earlier try: the next one is queued by an alarm, or by the sweeper
        if known is None or known.is_withdrawn or not known.run.is_terminal:
            state = "not recorded" if known is None or known.is_withdrawn else known.run.status
            self.blame(f"{self.writer} removed the message of a job that is {state}", run_id)

    # What is executed.

    def began(self, worker_id: str, run_id: str, attempt: int) -> None:
        self._loop.record("program begins", by=worker_id, run=run_id, attempt=attempt)
        known = self.known.get(run_id)
        if known is None or known.is_withdrawn:
            self.blame(f"{worker_id} starts a program that is not recorded", run_id)
        else:
            self.slots.began(worker_id, known.run, attempt)

    def host_died(self, run_id: str, attempt: int) -> None:
        """Called in the worker when it learns of that."""
        self._loop.record("program killed", run=run_id, attempt=attempt)
        self._killed.add((run_id, attempt))

    # What must have come true.

    @property
    def open_runs(self) -> list[str]:
        return [run_id for run_id, each in self.known.items() if not each.run.is_terminal and not each.is_withdrawn]

    @property
    def is_settled(self) -> bool:
        queue = self._nats.streams.get(_QUEUE)
        is_empty = queue is None or not queue.messages
        return is_empty and not self.open_runs and not self.slots.held and not self._unburied

    @property
    def _unburied(self) -> list[str]:
        """Runs whose dead letter is due and not noted."""
        programs = ((run_id, program_of(each.run)) for run_id, each in self.known.items() if each.run.is_terminal)
        return [run_id for run_id, program in programs if program.dlq_due and not program.dlq_done]

    def conclude(self) -> None:
        """Faults are over, and the deployment had time to recover."""
        for run_id in self.open_runs:
            run = self.known[run_id].run
            self.blame(f"a job is stuck as {run.status}, attempt {run.attempt}", run_id)
        queue = self._nats.streams.get(_QUEUE)
        for message in queue.messages.since(1) if queue is not None else ():
            self.blame("a message is left in the queue", message.subject.rpartition(".")[2])
        for run_id in self._unburied:
            self.blame("a dead letter is missing", run_id)
        for key in self.slots.held:
            self.blame(f"slot {key} is left")
        for run_id, _ in self._promised.values():
            if run_id not in self.known or self.known[run_id].is_withdrawn:
                self.blame("an accepted job is lost", run_id)
        for run_id, each in self.known.items():
            if not each.is_withdrawn:
                self._conclude_run(run_id, each.run)

    def _conclude_run(self, run_id: str, run: Run) -> None:
        program = program_of(run)
        if program.dlq_done != (run_id in self._buried):
            self.blame(f"dead letter noted: {program.dlq_done}, written: {run_id in self._buried}", run_id)
        if run.is_terminal:
            for problem in self._stories.problems(run_id):
                self.blame(f"events: {problem}", run_id)


def _metas(stream: Stream) -> list[Message]:
    return [each for each in stream.messages.since(1) if ".M." in each.subject]
