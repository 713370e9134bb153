"""One process's part in the life of a job, step by step, for tests of the actions on programs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import Passed, claim_job, free_slot, take_slot
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, Submitted, submit_job
from pyoco_server.actions.programs.sweep import mend
from pyoco_server.core.programs.job import InputFile, JobAsk, to_message
from pyoco_server.core.programs.moves import addressed, client_of, program_of
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.port import Slot
from support.faulty_ports import Faulty, Trouble, with_trouble
from support.grid.story import assert_exact
from support.waiting import eventually

__all__ = [
    "BROKEN",
    "DONE",
    "FAILED",
    "QUICK",
    "STOPPED",
    "InHand",
    "again",
    "an_ask",
    "begun",
    "claimed",
    "exact",
    "in_hand",
    "job_submitted",
    "recovered",
    "run_of",
    "slot_of",
    "taken",
    "together",
    "troubled",
]

DONE = Report(status=RunState.COMPLETED, exit_code=0, stdout=b"done\n", run_seconds=0.1)
FAILED = Report(status=RunState.FAILED, exit_code=3, error_code=ErrorCode.EXIT_NONZERO, error="exit code 3")
BROKEN = Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error="disk full")
STOPPED = Report(status=RunState.CANCELLED, exit_code=-15, error_code=ErrorCode.CANCELLED)

#: Settings with which what is left behind is found within a second. The ack timer must be above the lease.
QUICK: dict[str, Any] = {
    "exec_run_heartbeat_sec": 0.1,
    "exec_lease_fresh_sec": 0.4,
    "exec_ack_timeout_sec": 0.4,
    "exec_worker_down_delay_sec": 0.1,
    "exec_stale_sec": 0.3,
}


def an_ask(backend: Backend, files: Mapping[str, bytes] | None = None, **more: Any) -> JobAsk:
    group = programs_of(backend).config.exec_group
    listed = tuple(
        InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted((files or {}).items())
    )
    values: dict[str, Any] = {
        "job_id": str(uuid.uuid4()),
        "group": group,
        "client_id": "clientA",
        "exec_name": "calcA",
        "files": listed,
    }
    return JobAsk(**(values | more))


async def job_submitted(backend: Backend, files: Mapping[str, bytes] | None = None, **more: Any) -> Submitted:
    return await submit_job(backend, Caller(), an_ask(backend, files, **more), Inline(files or {}))


async def run_of(backend: Backend, run_id: str) -> Run:
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored), found
    return found.run


def _lane(run: Run) -> ClientQueue:
    program = program_of(run)
    return ClientQueue(program.group, program.exec_name, client_of(run))


async def slot_of(backend: Backend, run: Run, holder: str = "me") -> Slot:
    program = program_of(run)
    slot = await take_slot(backend, program.group, client_of(run), holder)
    assert slot is not None
    return slot


async def taken(backend: Backend, run: Run, seconds: float = 5.0) -> Delivery:
    """The next delivery of its lane, as soon as there is one."""
    found: list[Delivery] = []

    async def is_there() -> bool:
        found.extend(await programs_of(backend).queue.take(_lane(run)))
        return bool(found)

    await eventually(is_there, seconds)
    return found[0]


async def claimed(backend: Backend, run: Run, holder: str = "me", worker_id: str = "w1") -> ProgramAttempt:
    slot = await slot_of(backend, run, holder)
    attempt = await claim_job(backend, await taken(backend, run), slot, worker_id=worker_id, holder=holder)
    assert isinstance(attempt, ProgramAttempt), attempt
    return attempt


async def begun(backend: Backend, holder: str = "me") -> tuple[Run, ProgramAttempt]:
    run = (await job_submitted(backend)).run
    return run, await claimed(backend, run, holder)


async def exact(backend: Backend, attempt: ProgramAttempt, **more: Any) -> Run:
    """Its slot is given back, and nothing else is missing."""
    if attempt.slot is not None:
        await free_slot(backend, attempt.slot)
    return (await assert_exact(backend, [attempt.run.run_id], **more))[0]


async def recovered(backend: Backend, run_id: str, report: Report = DONE, seconds: float = 20.0) -> Run:
    """Do what doors, workers and sweepers do, until the run has ended and its message is deleted."""

    async def is_over() -> bool:
        try:
            await mend(backend, run_id)
            found = await backend.runs.find(run_id)
            if isinstance(found, Stored):
                await _serve(backend, found.run, report)
                run = await run_of(backend, run_id)
                return run.is_terminal and not await programs_of(backend).queue.has(addressed(run))
        except Unavailable:
            return False
        return False

    await eventually(is_over, seconds)
    return await run_of(backend, run_id)


async def _serve(backend: Backend, run: Run, report: Report) -> None:
    """One step of a dispatcher."""
    program = program_of(run)
    slot = await take_slot(backend, program.group, client_of(run), "rescuer")
    if slot is None:
        return
    try:
        for delivery in await programs_of(backend).queue.take(_lane(run)):
            attempt = await claim_job(backend, delivery, slot, worker_id="w9", holder="rescuer")
            if isinstance(attempt, Passed):
                continue
            slot = attempt.slot or slot
            await finish_job(backend, attempt, report, ())
    finally:
        await free_slot(backend, slot)


async def together(acts: list[Callable[[], Awaitable[None]]], at_once: int = 8) -> None:
    """All of them, so many at once: most of their time is waiting."""
    room = asyncio.Semaphore(at_once)

    async def one(act: Callable[[], Awaitable[None]]) -> None:
        async with room:
            await act()

    await asyncio.gather(*map(one, acts))


@dataclass
class InHand:
    """A delivery that hears what it is answered, and forwards nothing."""

    data: bytes
    subject: str
    count: int = 1
    tag: str = "calcA"
    answers: list[tuple[Reply, float]] = field(default_factory=list)

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        self.answers.append((reply, delay_seconds))

    async def hold(self) -> None:
        """It is in hand anyway."""


def in_hand(run: Run, *, count: int = 2, **members: Any) -> InHand:
    """The message of a run, delivered for so many a time: a first one may be claimed unread."""
    message = dict(program_of(run).job or to_message(addressed(run))) | members
    return InHand(json.dumps(message).encode(), ".".join(("pyoco.exec", *addressed(run).subject_tokens)), count)


async def again(backend: Backend, run: Run, holder: str = "me", **more: Any) -> tuple[ProgramAttempt | Passed, InHand]:
    """Claim a redelivered job."""
    now = await run_of(backend, run.run_id)
    delivery = in_hand(now if program_of(now).job else run, **more)
    slot = await slot_of(backend, run, holder)
    answer = await claim_job(backend, delivery, slot, worker_id="w2", holder=holder)
    if isinstance(answer, Passed):
        await free_slot(backend, slot)
    return answer, delivery


def troubled(backend: Backend, trouble: Trouble) -> Backend:
    """The same process, with every store of it open to trouble."""
    programs = programs_of(backend)
    ports: dict[str, Any] = {
        name: Faulty(f"programs.{name}", getattr(programs, name), trouble) for name in ("queue", "slots", "events")
    }
    return replace(with_trouble(backend, trouble, "runs", "queue"), programs=replace(programs, **ports))
