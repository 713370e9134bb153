"""The state of a group: waiting and running jobs, caps, doors and workers (GRID-172)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyoco_server.actions.programs.admit import admit_client, is_operator
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import client_id_of, client_key, shown_clients
from pyoco_server.core.programs.percentile import p95
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.door_records.port import DoorRecord
from pyoco_server.ports.index.port import EVERYBODY, ProgramCounts, RunFilter, Summary
from pyoco_server.ports.program_queue.port import Replica
from pyoco_server.ports.programs import Programs

__all__ = ["INFLIGHT_MAX", "GridState", "GroupState", "show_state"]

#: Limit of jobs listed individually, for each state; the others are only counted.
INFLIGHT_MAX = 1_000
#: GRID-171: the most recently ended jobs that the percentiles cover.
_SAMPLE = 1_000


@dataclass(frozen=True, kw_only=True)
class GroupState:
    group: str
    #: By program.
    queues: list[ProgramCounts]
    #: The newest, at most INFLIGHT_MAX of each state.
    inflight: list[Summary]
    dead_letters: int
    last_dead_letter: int | None
    #: By client id. In a view over several tenants that share a client id: by `client_key`.
    caps: dict[str, int]
    held: dict[str, int]
    doors: list[DoorRecord]
    #: By program: seconds.
    p95: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class GridState:
    at: float
    groups: list[GroupState]
    #: Workers that run programs, in any group.
    workers: list[WorkerRecord]
    replicas: list[Replica]


async def show_state(backend: GatewayBackend, caller: Caller, group: str | None = None) -> GridState:
    """Return the state of one group. None: of every group with jobs or doors, and of this gateway's own.

    Operators see everything. Other callers see counts, doors and workers, the jobs of their own tenant, and the caps of
    clients that they may act as. Costs a few index reads for each group, and one round trip for each stream, for its
    replicas. O(groups * (workers + jobs that run or ended last, 1,000 of each)), however many wait: a few milliseconds
    per thousand. Raises Unavailable.
    """
    programs = programs_of(backend)
    counts, replicas, workers = await asyncio.gather(
        backend.index.programs(), programs.queue.replicas(), backend.registry.all()
    )
    if group is None:
        known = {each.group for each in counts} | {each.group for each in programs.doors.all()}
        wanted = sorted({programs.config.exec_group, *known})
    else:
        wanted = [group]
    return GridState(
        at=backend.clock(),
        groups=[await _group(backend, programs, caller, each, counts) for each in wanted],
        workers=[worker for worker in workers if worker.patterns is not None],
        replicas=replicas,
    )


async def _group(
    backend: GatewayBackend, programs: Programs, caller: Caller, group: str, counts: Iterable[ProgramCounts]
) -> GroupState:
    sees_all = is_operator(programs, caller)
    tenant = EVERYBODY if sees_all else caller.tenant_id or EVERYBODY
    # Only programs have a group. With this filter alone, one index answers, for one tenant or for all.
    jobs = RunFilter(tenant_id=tenant, group=group)
    inflight: list[Summary] = []
    for state in (RunState.RUNNING, RunState.CANCELLING):
        inflight += (await backend.index.page(replace(jobs, status=state.value), INFLIGHT_MAX)).items
    ended = await backend.index.group_seconds(tenant, group, _SAMPLE)
    dead_letters, last_dead_letter = await backend.dead_letter_index.of_group(tenant, group)
    caps = {client: cap.cap for client, cap in programs.slots.caps(group).items()}
    held = {client: len(slots) for client, slots in programs.slots.all_held(group).items()}
    if sees_all:
        names = shown_clients({*caps, *held})
        caps, held = ({names[client]: number for client, number in some.items()} for some in (caps, held))
    else:
        caps, held = (_only_own(programs, caller, group, some) for some in (caps, held))
    return GroupState(
        group=group,
        queues=[each for each in counts if each.group == group],
        inflight=inflight,
        dead_letters=dead_letters,
        last_dead_letter=last_dead_letter,
        caps=caps,
        held=held,
        doors=programs.doors.all(group),
        p95={name: value for name in sorted(ended) if (value := p95(ended[name])) is not None},
    )


def _only_own(programs: Programs, caller: Caller, group: str, numbers: dict[str, int]) -> dict[str, int]:
    own = {}
    for client, number in numbers.items():
        client_id = client_id_of(client)
        if client != client_key(client_id, caller.tenant_id):
            continue
        try:
            admit_client(programs, caller, client_id, None, group)
        except GridRefused:
            continue
        own[client_id] = number
    return own
