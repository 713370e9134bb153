"""Defects of the handling of programs, put into the product for the time of a simulation.

Each is a context manager. The simulator has to find every one of them (`test_defects.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Literal
from unittest.mock import patch

from pyoco_server.actions.programs import beat, finish, set_cap, submit
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.finish import Output, Settlement, finish_job
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.sweep import mend
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why
from pyoco_server.core.programs.report import Report
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs import in_flight, sweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.jetstream import JetStreamSlots
from pyoco_server.ports.slots.port import Cap, Slot

__all__ = ["DEFECTS"]

_SECOND_TASK_SECONDS = 0.2


@contextmanager
def slot_is_freed_without_its_revision() -> Iterator[None]:
    """A process that lost a slot frees it all the same, under its new holder."""
    real = JetStreamSlots.free

    async def free(self: JetStreamSlots, slot: Slot) -> bool:
        entry = await self._bucket.get(f"{slot.group}.{slot.client}.{slot.number}")
        return entry is not None and await real(self, replace(slot, revision=entry.revision))

    with patch.object(JetStreamSlots, "free", free):
        yield


@contextmanager
def slot_is_freed_twice() -> Iterator[None]:
    """Two tasks of a process give the same slot back. The second one names whatever revision it finds there."""
    real = JetStreamSlots.free

    async def free(self: JetStreamSlots, slot: Slot) -> bool:
        freed = await real(self, slot)
        await asyncio.sleep(_SECOND_TASK_SECONDS)
        entry = await self._bucket.get(f"{slot.group}.{slot.client}.{slot.number}")
        if entry is not None:
            await real(self, replace(slot, revision=entry.revision))
        return freed

    with patch.object(JetStreamSlots, "free", free):
        yield


@contextmanager
def slot_is_freed_before_the_end_is_written() -> Iterator[None]:
    """The slot of an attempt is given back when its program ends, before its result is recorded."""

    async def early(
        backend: Backend,
        attempt: ProgramAttempt,
        report: Report,
        outputs: Sequence[Output],
        on_closed: Callable[[], None],
    ) -> Settlement:
        on_closed()
        return await finish_job(backend, attempt, report, outputs)

    with patch.object(in_flight, "finish_job", early):
        yield


@contextmanager
def cap_is_checked_in_memory_only() -> Iterator[None]:
    """A slot that looks free to this process is overwritten, even if another has taken it since."""

    async def take(self: JetStreamSlots, slot: Slot) -> Slot | None:
        entry = await self._bucket.get(f"{slot.group}.{slot.client}.{slot.number}")
        return await self._write(slot, entry.revision if entry is not None else 0)

    with patch.object(JetStreamSlots, "take", take):
        yield


@contextmanager
def program_claim_ignores_the_lease() -> Iterator[None]:
    """A second delivery is claimed although the attempt before is alive."""
    with patch.object(moves, "is_fresh", lambda *_: False):
        yield


@contextmanager
def finish_does_not_check_the_token() -> Iterator[None]:
    """The result of an attempt is recorded although a newer one has begun."""

    async def reread(backend: Backend, attempt: ProgramAttempt) -> bool:
        found = await backend.runs.find(attempt.run.run_id)
        if not isinstance(found, Stored) or found.run.is_terminal:
            return False
        attempt.run, attempt.revision = found.run, found.revision
        return True

    with patch.object(finish, "_reread", reread):
        yield


@contextmanager
def heartbeat_does_not_check_the_token() -> Iterator[None]:
    """An attempt that was taken over renews the lease of its successor, and continues."""

    async def refresh(backend: Backend, attempt: ProgramAttempt) -> bool:
        found = await backend.runs.find(attempt.run.run_id)
        if not isinstance(found, Stored) or found.run.status not in {RunState.RUNNING, RunState.CANCELLING}:
            return False
        attempt.run, attempt.revision = found.run, found.revision
        return True

    with patch.object(beat, "refresh", refresh):
        yield


@contextmanager
def program_heartbeat_overwrites_cancel() -> Iterator[None]:
    """A heartbeat that lost its write writes again, over the request to cancel that it lost to."""

    async def refresh(backend: Backend, attempt: ProgramAttempt) -> bool:
        found = await backend.runs.find(attempt.run.run_id)
        if not isinstance(found, Stored) or found.run.attempt_id != attempt.attempt_id or found.run.is_terminal:
            return False
        attempt.revision = found.revision
        return True

    with patch.object(beat, "refresh", refresh):
        yield


@contextmanager
def sweeper_puts_live_jobs_back() -> Iterator[None]:
    """A sweep writes PENDING over a job that is being run, whatever its lease says."""

    async def careless(backend: Backend, run_id: str) -> bool:
        found = await backend.runs.find(run_id)
        if isinstance(found, Stored) and found.run.is_exec and found.run.status is RunState.RUNNING:
            now = backend.clock()
            waiting = moves.put_back(found.run, Why.HOLDER_LOST, now, now)
            return isinstance(await backend.runs.replace(waiting, found.revision), Stored)
        return await mend(backend, run_id)

    with patch.object(sweeper, "mend", careless):
        yield


@contextmanager
def acknowledged_before_the_end_is_written() -> Iterator[None]:
    """The message leaves the queue when the program has ended, before its result is recorded."""

    async def early(
        backend: Backend,
        attempt: ProgramAttempt,
        report: Report,
        outputs: Sequence[Output],
        on_closed: Callable[[], None],
    ) -> Settlement:
        if attempt.delivery is not None:
            await attempt.delivery.answer(Reply.ACK)
        return await finish_job(backend, attempt, report, outputs, on_closed)

    with patch.object(in_flight, "finish_job", early):
        yield


@contextmanager
def stale_result_is_acknowledged() -> Iterator[None]:
    """An attempt whose result came too late acknowledges the message, which another process needs by then."""

    async def acknowledging(
        backend: Backend,
        attempt: ProgramAttempt,
        report: Report,
        outputs: Sequence[Output],
        on_closed: Callable[[], None],
    ) -> Settlement:
        settlement = await finish_job(backend, attempt, report, outputs, on_closed)
        if settlement is Settlement.STALE and attempt.delivery is not None:
            await attempt.delivery.answer(Reply.ACK)
        return settlement

    with patch.object(in_flight, "finish_job", acknowledging):
        yield


@contextmanager
def job_id_conflict_is_accepted() -> Iterator[None]:
    """Another job under the id of an earlier one is answered as if it were the same."""

    def check(run: Run, *_: object) -> None:
        del run

    with patch.object(submit, "_check_same", check):
        yield


@contextmanager
def cap_is_answered_from_memory() -> Iterator[None]:
    """This project had it: a cap that a process believed to be in force was not written again, and confirmed to the
    client, although another process had changed it since."""
    real = set_cap.set_cap

    async def remembering(
        backend: Backend, group: str, client_id: str, desired: int, source: Literal["hello", "http"]
    ) -> Cap:
        known = programs_of(backend).slots.cap(group, client_id)
        return (
            known
            if known is not None and known.cap == desired
            else await real(backend, group, client_id, desired, source)
        )

    with patch.object(set_cap, "set_cap", remembering):
        yield


@contextmanager
def lease_is_not_renewed_while_files_are_stored() -> Iterator[None]:
    """This project had it: whoever stored the outputs of a program held the lock that heartbeats need. When that took
    longer than the lease, the attempt was lost and the program run again."""

    async def locked(
        backend: Backend,
        attempt: ProgramAttempt,
        report: Report,
        outputs: Sequence[Output],
        on_closed: Callable[[], None],
    ) -> Settlement:
        async with attempt.lock:
            if not attempt.closed and not moves.is_no_result(attempt.run, report):
                artifacts = await finish._store(backend, attempt.run, report, outputs)
                outputs = [Output(each.name, each.size, each.sha256, object=each.object) for each in artifacts]
        return await finish_job(backend, attempt, report, outputs, on_closed)

    with patch.object(in_flight, "finish_job", locked):
        yield


#: By name: how to put it back.
DEFECTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        slot_is_freed_without_its_revision,
        slot_is_freed_twice,
        slot_is_freed_before_the_end_is_written,
        cap_is_checked_in_memory_only,
        program_claim_ignores_the_lease,
        finish_does_not_check_the_token,
        heartbeat_does_not_check_the_token,
        program_heartbeat_overwrites_cancel,
        sweeper_puts_live_jobs_back,
        acknowledged_before_the_end_is_written,
        stale_result_is_acknowledged,
        job_id_conflict_is_accepted,
        cap_is_answered_from_memory,
        lease_is_not_renewed_while_files_are_stored,
    )
}
