"""Whether jobs went "exactly": one terminal record each, no slot and no message left, one letter where one is due, and
a legal story in their events (section 27). For tests of actions, loops and doors, and for the long proofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.runs.port import Stored
from waiting import eventually

__all__ = ["assert_exact", "assert_legal_stories", "story_problems"]

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

    `letters`: all dead letters there are, as JSON objects; those of the same run and reason count as one (GRID-86).
    """
    programs, run_ids = programs_of(backend), list(run_ids)
    runs = await _ended(backend, run_ids)

    async def problems() -> list[str]:
        found = [f"message of {run.run_id} is left" for run in runs if await programs.queue.has(addressed(run))]
        for group, client_id in sorted({(program_of(run).group, program_of(run).client_id) for run in runs}):
            found += [f"slot is left: {slot}" for slot in programs.slots.held(group, client_id)]
        return found

    left: list[str] = []

    async def is_clean() -> bool:
        left[:] = await problems()
        return not left

    try:
        await eventually(is_clean, seconds)
    except AssertionError as error:
        raise AssertionError("; ".join(left)) from error
    runs = await _ended(backend, run_ids)  # their letters may have been noted since
    for run in runs:
        _check_record(run)
    if letters is not None:
        _check_letters(runs, letters)
    await assert_legal_stories(backend, runs)
    return runs


async def _ended(backend: Backend, run_ids: Iterable[str]) -> list[Run]:
    runs = []
    for run_id in run_ids:
        found = await backend.runs.find(run_id)
        assert isinstance(found, Stored), f"run {run_id} has no record"
        assert found.run.status in TERMINAL, f"run {run_id} is {found.run.status}"
        runs.append(found.run)
    return runs


def _check_record(run: Run) -> None:
    program = program_of(run)
    assert program.job is None, f"run {run.run_id} has ended and still holds its job"
    assert program.dlq_due == program.dlq_done, f"run {run.run_id}: a letter is due and not done"
    assert program.slot is None
    assert program.holder is None
    assert run.end_time is not None


def _check_letters(runs: Sequence[Run], letters: Iterable[Mapping[str, Any]]) -> None:
    found = {(letter.get("run_id"), letter.get("reason")) for letter in letters}
    for run in runs:
        reasons = {reason for run_id, reason in found if run_id == run.run_id}
        assert reasons == ({run.reason} if program_of(run).dlq_due else set()), f"run {run.run_id}: letters {reasons}"


async def assert_legal_stories(backend: Backend, runs: Sequence[Run], *, events: list[Event] | None = None) -> None:
    """GRID-174. `events`: all there are, the oldest first; else the newest 10,000 of each group are read."""
    if events is None:
        groups = {program_of(run).group for run in runs}
        tellers = programs_of(backend).events
        newest = [
            await tellers.recent(job_id=None, event=None, group=group, limit=_EVENTS_MAX) for group in sorted(groups)
        ]
        events = [event for found in newest for event in reversed(found)]
    told: dict[str, list[Event]] = {}
    for event in events:
        if event.run_id is not None:
            told.setdefault(event.run_id, []).append(event)
    wrong = [
        f"{run.run_id}: {problem} in {[(event.event.value, event.attempt) for event in told.get(run.run_id, [])]}"
        for run in runs
        for problem in story_problems(told.get(run.run_id, []))
    ]
    assert not wrong, "\n".join(wrong)


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
