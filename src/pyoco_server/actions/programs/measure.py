"""Measure the current figures of programs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.percentile import p95
from pyoco_server.core.programs.record import TAG
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter
from pyoco_server.ports.index.port import OTHER, Index, ProgramTotals
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.programs import Programs

__all__ = ["SAMPLE", "ProgramFigures", "RunTimes", "measure_programs"]

#: GRID-171: the most recently ended jobs of a program that the percentile covers.
SAMPLE = 1_000
#: Limit of percentiles computed in one measurement. Other programs keep their last one.
_PERCENTILES_MAX = 200
_DEAD_LETTERS_MAX = 1_000

#: By group and program, or group and client.
Pairs = dict[tuple[str, str], int]
#: By group, program, and outcome or cause.
Triples = dict[tuple[str, str, str], int]


@dataclass(frozen=True, kw_only=True)
class ProgramFigures:
    """The figures of section 23.1: of all groups, as measured by a gateway, or those counted by one process.

    A figure that the process does not have is empty, or None.
    """

    queued: Pairs = field(default_factory=dict)
    inflight: Pairs = field(default_factory=dict)
    client_inflight: Pairs = field(default_factory=dict)
    client_cap: Pairs = field(default_factory=dict)
    ended: Triples = field(default_factory=dict)
    retries: Triples = field(default_factory=dict)
    dead_letters_written: Triples = field(default_factory=dict)
    #: Dead letters in their stream now.
    dead_letters: int | None = None
    #: By program: counts between RUN_SECONDS_BOUNDS, and their sum.
    seconds: dict[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    p95: dict[str, float] = field(default_factory=dict)
    #: By group.
    stale: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    #: By the code of the Error frame.
    errors: dict[str, int] = field(default_factory=dict)
    #: By role.
    connections: dict[str, int] = field(default_factory=dict)
    #: By worker.
    credits: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    #: Run records that cannot be read.
    corrupt: int | None = None


class RunTimes:
    """The percentile of each program, recomputed only when more of its jobs have ended."""

    def __init__(self) -> None:
        #: The number of ended jobs at the last computation, and its result.
        self._known: dict[str, tuple[int, float | None]] = {}

    async def measure(self, index: Index, totals: ProgramTotals) -> dict[str, float]:
        """Return the percentiles. Reads the index once for each program with newly ended jobs, 200 at most.

        O(1,000) each. Raises Unavailable.
        """
        counts = {name: sum(counts) for name, (counts, _) in totals.seconds.items() if name != OTHER}
        changed = [name for name, count in counts.items() if self._known.get(name, (0, None))[0] != count]
        for name in changed[:_PERCENTILES_MAX]:
            self._known[name] = counts[name], p95(await index.program_seconds(name, SAMPLE))
        # Drop programs that the index no longer contains: it may have been rebuilt.
        self._known = {name: known for name, known in self._known.items() if name in counts}
        return {name: seconds for name, (_, seconds) in sorted(self._known.items()) if seconds is not None}


async def measure_programs(
    backend: GatewayBackend, run_times: RunTimes, duplicates: dict[str, int] | None = None
) -> ProgramFigures:
    """Measure with two round trips, a few index reads, and memory.

    O(groups * programs + clients + workers), never O(jobs).

    `duplicates` are those that this gateway has counted, since they are not stored. Raises Unavailable.
    """
    programs = programs_of(backend)
    dead_letters, stale, counts, totals, workers = await asyncio.gather(
        backend.queue.buried(TAG),
        programs.events.counts(EventName.STALE_RESULT),
        backend.index.programs(),
        backend.index.program_totals(),
        backend.registry.all(),
    )
    groups = {each.group for each in counts} | {group for group, _, _ in totals.ended}
    groups |= {each.group for each in programs.doors.all()} | {programs.config.exec_group}
    return ProgramFigures(
        queued={(each.group, each.exec_name): each.queued for each in counts},
        inflight={(each.group, each.exec_name): each.inflight for each in counts},
        client_inflight=_held(programs, groups),
        client_cap={(group, client): cap.cap for group in groups for client, cap in programs.slots.caps(group).items()},
        ended=totals.ended,
        retries=totals.retries,
        dead_letters_written=totals.dead_letters | await _invalid_messages(backend),
        dead_letters=dead_letters,
        seconds=totals.seconds,
        p95=await run_times.measure(backend.index, totals),
        stale=stale,
        duplicates=duplicates or {},
        connections={"all": sum(each.connections for each in programs.doors.all())},
        credits={each.worker_id: each.credits for each in _alive(backend, workers) if each.credits is not None},
        cpu={each.worker_id: each.cpu for each in _alive(backend, workers) if each.cpu is not None},
        corrupt=totals.corrupt,
    )


async def _invalid_messages(backend: GatewayBackend) -> Triples:
    """Count the dead letters of invalid messages, which have no record; 1,000 at most. Subjects name the program."""
    job_filter = DeadLetterFilter(reason=DeadReason.INVALID_JOB, tag=TAG)
    found: Counter[tuple[str, str, str]] = Counter()
    for each in (await backend.dead_letter_index.page(job_filter, _DEAD_LETTERS_MAX)).items:
        tokens = (each.dead_letter.subject or "").split(".")
        if each.dead_letter.is_exec and each.dead_letter.group is None:
            group, exec_name = (tokens[-4], tokens[-3]) if len(tokens) > 4 else (OTHER, OTHER)
            found[group, exec_name, DeadReason.INVALID_JOB.value] += 1
    return dict(found)


def _held(programs: Programs, groups: Iterable[str]) -> Pairs:
    """Return the slots in use by client. A client with a cap and no slots in use counts as 0."""
    found = {(group, client): 0 for group in groups for client in programs.slots.caps(group)}
    for group in groups:
        for client, held in programs.slots.all_held(group).items():
            found[group, client] = len(held)
    return found


def _alive(backend: GatewayBackend, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    return [each for each in workers if each.is_alive(now, silence)]
