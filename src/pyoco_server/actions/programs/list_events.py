"""List the events of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyoco_server.actions.programs.admit import is_operator
from pyoco_server.actions.read import read_run
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.run import Caller
from pyoco_server.errors import RunNotFound
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event

__all__ = ["EventsWanted", "list_events"]


@dataclass(frozen=True, kw_only=True)
class EventsWanted:
    limit: int
    #: In lower case.
    job_id: str | None = None
    event: str | None = None
    group: str | None = None


async def list_events(backend: Backend, caller: Caller, wanted: EventsWanted) -> list[Event]:
    """Return the newest events first.

    Operators see all; other callers must name a job, and see its events if it is theirs.

    Costs one read of the newest events, and for callers other than operators one read for each group that has the job.

    Raises GridRefused(FORBIDDEN) if a caller other than an operator names no job; Unavailable.
    """
    programs = backend.programs
    assert programs is not None
    sees_all = is_operator(programs, caller)
    if not sees_all and wanted.job_id is None:
        raise GridRefused(Code.FORBIDDEN, "the events of all jobs need an operator's key: name one with job_id")
    found = await programs.events.recent(**vars(wanted))
    if sees_all or wanted.job_id is None:
        return found
    own_groups = await _groups_of(backend, caller, wanted.job_id, {event.group for event in found})
    return [event for event in found if event.group in own_groups]


async def _groups_of(backend: Backend, caller: Caller, job_id: str, groups: Iterable[str]) -> set[str]:
    """Return those of the groups in which the job is the caller's. There are few: groups are set by the deployment."""
    own_groups = set()
    for group in groups:
        try:
            await read_run(backend, caller, run_id_of(job_id, group))
        except RunNotFound:
            continue
        own_groups.add(group)
    return own_groups
