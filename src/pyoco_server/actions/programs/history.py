"""The events in the history of a job (section 23.3)."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.programs.budget import is_lost
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.program_events.port import REPEAT_SECONDS, Event, EventName

__all__ = ["end_event", "event_of", "put_back_event", "requeue_event"]


def event_of(run: Run, name: EventName, now: float, *, attempt: int | None = None, detail: str | None = None) -> Event:
    program = program_of(run)
    return Event(
        ts=now,
        event=name,
        group=program.group,
        run_id=run.run_id,
        job_id=program.job_id,
        exec_name=program.exec_name,
        client_id=program.client_id,
        attempt=run.attempt if attempt is None else attempt,
        worker_id=run.worker_id,
        holder=program.holder,
        detail=detail,
    )


def end_event(run: Run) -> Event:
    """Return the event that ends a job, derived from its record alone: every repetition is equal (GRID-174).

    `dlq` if it has a dead letter, `cancel` if it was cancelled, else `ack`. Its detail is the status and the error
    code; of `dlq`, the reason of the letter.
    """
    program = program_of(run)
    at = run.updated_at if run.end_time is None else run.end_time
    if run.status is RunState.CANCELLED:
        return event_of(run, EventName.CANCEL, at, detail=run.status.value)
    if program.dlq_due:
        return event_of(run, EventName.DLQ, at, detail=run.reason)
    detail = run.status.value if program.error_code is None else f"{run.status.value} {program.error_code}"
    return event_of(run, EventName.ACK, at, detail=detail)


def requeue_event(run: Run, why: str, now: float) -> Event:
    """Return the event of an attempt that ended without a result; its detail is the cause."""
    name = EventName.WORKER_DOWN_REQUEUE if is_lost(why) else EventName.TIMEOUT_REQUEUE
    return event_of(run, name, now, detail=why)


def put_back_event(run: Run, now: float) -> Event | None:
    """Return the event of the attempt after which this run waits again, from its record.

    The process that put it back may have been suspended before it sent the event, and may resume later than the next
    attempt begins or ends. None: there is none, or it is so old that a repeat would count twice.
    """
    last = run.earlier_attempts[-1] if run.earlier_attempts else {}
    why, ended_at = last.get("why"), last.get("ended_at")
    if run.status is not RunState.PENDING or last.get("attempt") != run.attempt:
        return None
    if not isinstance(why, str) or not isinstance(ended_at, int | float) or now - ended_at >= REPEAT_SECONDS:
        return None
    return replace(requeue_event(run, why, ended_at), worker_id=last.get("worker_id"))
