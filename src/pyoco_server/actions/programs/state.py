"""The state of a group for an operator's command, which has no index and reads NATS directly (GRID-172)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.show_state import GridState, GroupState
from pyoco_server.core.programs.line import program_line
from pyoco_server.core.programs.names import shown_clients
from pyoco_server.core.run import Run
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.ports.backend import Backend, OperatorBackend
from pyoco_server.ports.dead_letters.port import StoredDeadLetter
from pyoco_server.ports.index.port import ProgramCounts, Summary
from pyoco_server.ports.program_queue.port import ProgramQueue
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.runs.port import Stored

__all__ = ["exec_dead_letters", "exec_state"]

_PAGE = 100_000
#: Time limit for reading all letters, however many there are: a feed without messages does not report that it is stuck.
_DEAD_LETTERS_SECONDS = 60.0


async def exec_state(backend: OperatorBackend, group: str | None = None) -> GridState:
    """Return the state of one group, without percentiles.

    None: of every group with jobs, lanes or doors, and the configured one.

    O(messages + letters): for occasional use. A gateway uses its index instead. Raises Unavailable.
    """
    programs = programs_of(backend)
    queued, dead_letters, replicas, workers = await asyncio.gather(
        _queued(programs.queue), exec_dead_letters(backend), programs.queue.replicas(), backend.registry.all()
    )
    groups = {group} if group is not None else {programs.config.exec_group, *(of for of, _ in queued)}
    if group is None:
        groups |= {each.group for each in programs.doors.all()}
        groups |= {each.dead_letter.group for each in dead_letters if each.dead_letter.group is not None}
    return GridState(
        at=backend.clock(),
        groups=[await _group(backend, programs, each, queued, dead_letters) for each in sorted(groups)],
        workers=[worker for worker in workers if worker.patterns is not None],
        replicas=replicas,
    )


async def _queued(queue: ProgramQueue) -> Counter[tuple[str, str]]:
    """Count messages by group and program, including delivered ones."""
    found: Counter[tuple[str, str]] = Counter()
    offset = 0
    while True:
        page = await queue.listed(offset)
        found.update((lane.group, lane.exec_name) for lane, _ in page)
        offset += len(page)
        if len(page) < _PAGE:
            return found


async def exec_dead_letters(backend: OperatorBackend) -> list[StoredDeadLetter]:
    """Return every dead letter of a program, oldest first. O(letters). Raises Unavailable."""
    found: dict[int, StoredDeadLetter] = {}
    try:
        async with asyncio.timeout(_DEAD_LETTERS_SECONDS), aclosing(backend.dead_letters.changes()) as changes:
            async for change in changes:
                found |= {each.letter_id: each for each in change.items if each.dead_letter.is_exec}
                found = {key: each for key, each in found.items() if key not in change.gone and key >= change.first_id}
                if change.caught_up:
                    break
    except TimeoutError:
        raise Unavailable("the dead letters cannot be read") from None
    return [found[letter_id] for letter_id in sorted(found)]


async def _group(
    backend: Backend,
    programs: Programs,
    group: str,
    queued: Counter[tuple[str, str]],
    dead_letters: list[StoredDeadLetter],
) -> GroupState:
    held = programs.slots.all_held(group)
    inflight = await _inflight(backend, [slot.run_id for slots in held.values() for slot in slots if slot.run_id])
    running = Counter(run.program.exec_name for run in inflight if run.program is not None)
    names = sorted({exec_name for of, exec_name in queued if of == group} | set(running))
    oldest = await asyncio.gather(*(programs.queue.oldest(group, name) for name in names))
    counts = []
    for name, at in zip(names, oldest, strict=True):
        waits = max(0, queued[group, name] - running[name])
        counts.append(ProgramCounts(group, name, waits, at if waits else None, running[name]))
    caps = programs.slots.caps(group)
    shown = shown_clients({*caps, *held})
    group_dead_letters = [each.letter_id for each in dead_letters if each.dead_letter.group == group]
    return GroupState(
        group=group,
        queues=counts,
        inflight=[_line(run) for run in inflight],
        dead_letters=len(group_dead_letters),
        last_dead_letter=group_dead_letters[-1] if group_dead_letters else None,
        caps={shown[client]: cap.cap for client, cap in caps.items()},
        held={shown[client]: len(slots) for client, slots in held.items()},
        doors=programs.doors.all(group),
        p95={},
    )


async def _inflight(backend: Backend, run_ids: list[str]) -> list[Run]:
    """Return the runs that slots are held for, unless they have ended since. One read each."""
    found = await asyncio.gather(*(_find(backend, run_id) for run_id in sorted(set(run_ids))))
    return [run for run in found if run is not None and not run.is_terminal]


async def _find(backend: Backend, run_id: str) -> Run | None:
    try:
        found = await backend.runs.find(run_id)
    except Corrupt:
        return None
    return found.run if isinstance(found, Stored) else None


def _line(run: Run) -> Summary:
    return Summary(
        run_id=run.run_id,
        kind=run.kind,
        status=run.status.value,
        flow_name=run.flow_name,
        tag=run.tag,
        tags=run.tags,
        submitted_at=run.submitted_at,
        updated_at=run.updated_at,
        heartbeat_at=run.heartbeat_at,
        start_time=run.start_time,
        end_time=run.end_time,
        worker_id=run.worker_id,
        error=run.error,
        program=program_line(run),
    )
