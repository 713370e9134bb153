"""Whether jobs went "exactly": one terminal record each, no slot and no message left, one letter where one is due, and
a legal story in their events (section 27). For tests of actions, loops and doors, and for the long proofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.runs.port import Stored
from support.waiting import eventually

__all__ = ["assert_exact", "story_problems"]

_ENDS = (EventName.ACK, EventName.DLQ, EventName.CANCEL)
_REQUEUES = (EventName.TIMEOUT_REQUEUE, EventName.WORKER_DOWN_REQUEUE)
_EVENTS_MAX = 10_000


async def assert_exact(
    backend: Backend,
    run_ids: Iterable[str],
    *,
    letters: Iterable[Mapping[str, Any]] | None = None,
    seconds: float = 10.0,
) -> list[Run]:
    """Waits for what may be a moment behind, and then fails with what is wrong. Returns the runs.

    A copy of a record or of the events may be behind where a node of a cluster has just come back. What is wrong for
    good stays so, however often one looks.

    `letters`: all dead letters there are, as JSON objects; those of the same run and reason count as one (GRID-86).
    """
    run_ids, letters = list(run_ids), None if letters is None else list(letters)
    runs: list[Run] = []
    wrong: list[str] = []

    async def is_exact() -> bool:
        try:
            runs[:], wrong[:] = await _look(backend, run_ids, letters)
        except Unavailable as error:
            wrong[:] = [f"a store is away: {error}"]
        return not wrong

    try:
        await eventually(is_exact, seconds)
    except AssertionError as error:
        raise AssertionError("\n".join(wrong)) from error
    return runs


async def _look(
    backend: Backend, run_ids: Sequence[str], letters: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Run], list[str]]:
    """The runs, and what is wrong with them now; what costs more is asked only when the rest is right."""
    runs: list[Run] = []
    wrong: list[str] = []
    for run_id in run_ids:
        found = await backend.runs.find(run_id)
        if not isinstance(found, Stored):
            wrong.append(f"run {run_id} has no record")
        elif found.run.status not in TERMINAL:
            wrong.append(f"run {run_id} is {found.run.status}")
        else:
            runs.append(found.run)
            wrong += _record_problems(found.run)
    wrong = wrong or await _leftovers(backend, runs)
    if not wrong and letters is not None:
        wrong = _letter_problems(runs, letters)
    return runs, wrong or await _stories_problems(backend, runs)


async def _leftovers(backend: Backend, runs: Sequence[Run]) -> list[str]:
    programs = programs_of(backend)
    found = [f"message of {run.run_id} is left" for run in runs if await programs.queue.has(addressed(run))]
    for group, client_id in sorted({(program_of(run).group, program_of(run).client_id) for run in runs}):
        found += [f"slot is left: {slot}" for slot in programs.slots.held(group, client_id)]
    return found


def _record_problems(run: Run) -> list[str]:
    program = program_of(run)
    checks = {
        "has ended and still holds its job": program.job is None,
        "has a letter due and not done": program.dlq_due == program.dlq_done,
        "still holds a slot": program.slot is None,
        "still has a holder": program.holder is None,
        "has no end time": run.end_time is not None,
    }
    return [f"run {run.run_id} {problem}" for problem, is_right in checks.items() if not is_right]


def _letter_problems(runs: Sequence[Run], letters: Sequence[Mapping[str, Any]]) -> list[str]:
    told = {(letter.get("run_id"), letter.get("reason")) for letter in letters}
    found = []
    for run in runs:
        reasons = {reason for run_id, reason in told if run_id == run.run_id}
        if reasons != ({run.reason} if program_of(run).dlq_due else set()):
            found.append(f"run {run.run_id}: letters {reasons}")
    return found


async def _stories_problems(backend: Backend, runs: Sequence[Run]) -> list[str]:
    """GRID-174: the newest 10,000 events of each group are read."""
    told: dict[str, list[Event]] = {}
    for group in sorted({program_of(run).group for run in runs}):
        newest = await programs_of(backend).events.recent(job_id=None, event=None, group=group, limit=_EVENTS_MAX)
        for event in reversed(newest):
            if event.run_id is not None:
                told.setdefault(event.run_id, []).append(event)
    return [
        f"{run.run_id}: {problem} in {[(event.event.value, event.attempt) for event in told.get(run.run_id, [])]}"
        for run in runs
        for problem in story_problems(told.get(run.run_id, []))
    ]


def story_problems(events: Sequence[Event]) -> list[str]:
    """What is wrong with the events of one job, the oldest first; repeats of one id are one.

    An attempt that was put back may still end the job: with its own result, or by being cancelled or given up while it
    waits; and it may be taken over, and put back once more. A kill may leave out an `assign` or a requeue.
    """
    first: dict[tuple[int, EventName], Event] = {}
    for event in events:
        first.setdefault((event.attempt, event.event), event)
    story = list(first.values())
    if not story:
        return ["nothing was told"]
    problems = []
    if story[0].event is not EventName.ENQUEUE:
        problems.append(f"it begins with {story[0].event.value}")
    ends = [place for place, event in enumerate(story) if event.event in _ENDS]
    if len(ends) != 1:
        problems.append(f"it has {len(ends)} ends")
    elif any(event.event is not EventName.STALE_RESULT for event in story[ends[0] + 1 :]):
        problems.append("something follows its end")
    for attempt in sorted({event.attempt for event in story if event.attempt}):
        problems += _attempt_problems(attempt, [event.event for event in story if event.attempt == attempt])
    assigned = [event.attempt for event in story if event.event is EventName.ASSIGN]
    if assigned != sorted(assigned):
        problems.append("attempts are assigned out of turn")
    return problems


def _attempt_problems(attempt: int, names: list[EventName]) -> list[str]:
    problems = []
    closing = [place for place, name in enumerate(names) if name in _ENDS or name in _REQUEUES]
    if EventName.ASSIGN in names and closing and closing[0] < names.index(EventName.ASSIGN):
        problems.append(f"attempt {attempt} is over before it is assigned")
    requeues = [place for place in closing if names[place] in _REQUEUES]
    if len(requeues) > 1 and EventName.REATTACH not in names:
        problems.append(f"attempt {attempt} is put back twice")
    return problems
