"""Collect everything that needs an operator's attention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from pyoco_server.actions.list_queues import QUIET_MAX, crowds_by_tag, quiet_since, read_waiting
from pyoco_server.actions.measure import Crowd
from pyoco_server.actions.priced.look_for_trouble import DISPUTES_MAX, Trouble
from pyoco_server.core.attention import AttentionFacts, AttentionFinding, LostWorker, QueueFacts, findings
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules.progress import is_overdue
from pyoco_server.core.states import UNKNOWN, WorkerState
from pyoco_server.core.trend import NOT_KNOWN, Trend
from pyoco_server.core.worker_record import ALIVE, WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, RunFilter, RunInProgress
from pyoco_server.ports.resources.port import StoreGone
from pyoco_server.ports.store_state import StoreState

__all__ = ["attend"]

log = get_logger(__name__)

T = TypeVar("T")

#: Time limit of the checks; facts that are not read by then are reported as unknown.
_SECONDS_MAX = 1.0
#: Longer than `_SECONDS_MAX`, because a check of the priced stores that this request started has a second of its own.
_PRICED_SECONDS_MAX = 1.2
#: Queues whose growth is checked: the longest.
_QUEUES_MAX = 200
#: Maximum number of runs of disconnected workers that are looked up.
_RUNS_MAX = 1_000
#: Maximum numbers of stale runs, unreadable records and new dead letters that are counted.
_STALE_MAX = 100
_UNREADABLE_MAX = 100
_DEAD_LETTERS_MAX = 1_000
_DEAD_LETTER_SECONDS = 3_600.0


async def attend(
    backend: GatewayBackend,
    trend: Trend,
    caller: Caller,
    *,
    runs_listed: bool,
    dead_letters_listed: bool,
    outlook: Callable[[], Awaitable[Trouble]] | None = None,
    lost: Callable[[], Awaitable[Sequence[StoreGone]]] | None = None,
) -> list[AttentionFinding]:
    """Return the findings, most urgent first, at most 50.

    Makes no round trips except those of `outlook`, which checks the stores of priced runs, and of `lost`, which checks
    for deleted streams. Takes about a second at most. Never raises for an outage: it reports the outage as a finding.

    `runs_listed` and `dead_letters_listed`: whether the indexes are up to date. Facts from an index that is not, and
    facts that cannot be read, are left out; the others are reported. With authentication on, flows, run ids and dead
    letters are those of the caller's tenant; tags and workers are shared by all tenants (FLOW-273 to FLOW-276).

    O(workers' tags + tags + flows), and the limits above.
    """
    now, store, is_up = backend.clock(), backend.store_state(), backend.is_up()
    facts = AttentionFacts(
        now=now,
        is_up=is_up,
        store_full=store is not StoreState.TAKES,
        store_stuck=store is StoreState.STUCK,
        lists_true=runs_listed and dead_letters_listed,
        flows=tuple(trend.flows(now, caller.tenant_id)),
    )
    if not is_up:
        return findings(facts)
    snapshot = _Snapshot(backend, trend, caller, now, asyncio.get_running_loop().time() + _SECONDS_MAX)
    parts = [snapshot.dead_letters()] if dead_letters_listed else []
    parts += [snapshot.runs_and_workers()] if runs_listed else []
    parts += [_priced(outlook, caller)] if outlook is not None else []
    parts += [snapshot.gone(lost)] if lost is not None else []
    facts = replace(facts, **_schedules(backend, caller, now))
    for part in await asyncio.gather(*parts):
        facts = replace(facts, **part)
    return findings(replace(facts, lists_true=facts.lists_true and not snapshot.missed, is_up=backend.is_up()))


#: A subset of the fields of Facts.
_PartialFacts = dict[str, Any]


@dataclass
class _Snapshot:
    """One pass over all sources. The parts are read concurrently and independently, up to one common deadline."""

    backend: GatewayBackend
    trend: Trend
    caller: Caller
    now: float
    #: By the clock of the event loop.
    deadline: float
    #: At least one part could not be read.
    missed: bool = False

    async def _part(self, reading: Coroutine[Any, Any, T]) -> T | None:
        """Await `reading`. Returns None if it is unavailable or not finished before the deadline."""
        try:
            async with asyncio.timeout_at(self.deadline):
                return await reading
        except (Unavailable, TimeoutError) as error:
            log.info("cannot check everything that needs attention", error=error)
            self.missed = True
            return None

    async def gone(self, lost: Callable[[], Awaitable[Sequence[StoreGone]]]) -> _PartialFacts:
        """Return the deleted streams. A failure here does not mark the lists as unreliable."""
        try:
            async with asyncio.timeout_at(self.deadline):
                return {"gone": tuple((each.name, each.holds) for each in await lost())}
        except (Unavailable, TimeoutError):
            return {}

    async def dead_letters(self) -> _PartialFacts:
        return await self._part(self._dead_letters()) or {}

    async def runs_and_workers(self) -> _PartialFacts:
        workers = await self._part(self.backend.registry.all())
        if workers is None:
            return {}
        silence = self.backend.config.worker_disconnect_timeout_sec
        states = {each.worker_id: each.derived_state(self.now, silence) for each in workers}
        silent = [each for each in workers if states[each.worker_id] is WorkerState.DISCONNECTED]
        parts = await asyncio.gather(
            self._part(self._lost_and_stale(silent)),
            self._part(self._queues(crowds_by_tag(workers, self.now, silence))),
            self._part(self._unreadable()),
        )
        failures = (each.worker_id for each in workers if states[each.worker_id] in ALIVE and _has_wheel_failure(each))
        alive = sum(state in ALIVE for state in states.values())
        return (
            {"wheel_failures": tuple(sorted(failures)), "workers_alive": alive}
            | (parts[0] or {})
            | (parts[1] or {})
            | (parts[2] or {})
        )

    async def _dead_letters(self) -> _PartialFacts:
        tenant_id, index = self.caller.tenant_id or EVERYBODY, self.backend.dead_letter_index
        new = await index.recent(tenant_id, self.now - _DEAD_LETTER_SECONDS, _DEAD_LETTERS_MAX)
        total = await index.total(tenant_id)
        return {"dead_letters": total, "dead_letters_new": new, "dead_letters_new_capped": new >= _DEAD_LETTERS_MAX}

    async def _lost_and_stale(self, silent: Sequence[WorkerRecord]) -> _PartialFacts:
        lost = await _lost(self.backend, silent)
        stale = await self._stale({run.run_id for runs in lost.values() for run in runs})
        return {
            "lost": tuple(
                LostWorker(worker_id, len(runs), tuple(run.run_id for run in runs if _may_see(self.caller, run)))
                for worker_id, runs in lost.items()
            ),
            "stale": stale,
            "stale_capped": len(stale) >= _STALE_MAX,
        }

    async def _unreadable(self) -> _PartialFacts:
        """Return the unreadable records, newest first (SAFE-16)."""
        wanted = RunFilter(tenant_id=self.caller.tenant_id or EVERYBODY, status=UNKNOWN)
        page = await self.backend.index.page(wanted, _UNREADABLE_MAX)
        run_ids = tuple(line.run_id for line in page.items)
        return {"unreadable": run_ids, "unreadable_capped": page.next is not None}

    async def _stale(self, reported: set[str]) -> tuple[str, ...]:
        """Return RUNNING runs that have an owner in their record but no recent heartbeat (FLOW-30).

        Runs in `reported` are skipped, because they are reported with their disconnected worker; released runs wait in
        their queue.
        """
        tenant_id = self.caller.tenant_id or EVERYBODY
        quiet = await self.backend.index.quiet(tenant_id, quiet_since(self.backend), QUIET_MAX + len(reported))
        stale = (run.run_id for run in quiet if run.worker_id is not None and run.run_id not in reported)
        return tuple(islice(stale, _STALE_MAX))

    async def _queues(self, crowds: Mapping[str, Crowd]) -> _PartialFacts:
        lines, packs = await read_waiting(self.backend)
        queues = []
        for place, (tag, line) in enumerate(lines.items()):
            drain = self.trend.drain(self.now, tag) if place < _QUEUES_MAX else NOT_KNOWN
            crowd = crowds.get(tag)
            queues.append(
                QueueFacts(
                    tag=tag,
                    depth=line.pending,
                    put_back=line.put_back,
                    oldest_at=line.oldest_at,
                    workers_alive=crowd.alive if crowd is not None else 0,
                    depth_before=drain.depth_before,
                    depth_lately=drain.depth_lately,
                    depth_peak=drain.depth_peak,
                )
            )
        found: _PartialFacts = {"queues": tuple(queues)}
        return found if packs is None else found | {"packs": packs.count, "packs_oldest_at": packs.oldest_at}


def _schedules(backend: GatewayBackend, caller: Caller, now: float) -> _PartialFacts:
    """Return the overdue schedules of the caller's tenant, from memory (SCHED-20)."""
    if backend.scheduling is None:
        return {}
    seen = (each for each in backend.scheduling.schedules.known() if caller.tenant_id in {None, each.tenant_id})
    found = sorted((each.next_at or 0, each.name) for each in seen if is_overdue(each, now))
    return {"overdue": tuple(name for _, name in found), "overdue_oldest_at": float(found[0][0]) if found else 0.0}


async def _priced(outlook: Callable[[], Awaitable[Trouble]], caller: Caller) -> _PartialFacts:
    """Return the facts about priced runs. Never delays the other parts and never marks the lists as unreliable.

    Runs and differences are those of the caller's tenant; the stores and their queue are shared by all tenants.
    """
    try:
        async with asyncio.timeout(_PRICED_SECONDS_MAX):
            trouble = await outlook()
    except TimeoutError:
        return {}
    disputed = [run for run in trouble.disputed if caller.tenant_id in {None, run.tenant_id}]
    found: _PartialFacts = {
        "silent_stores": trouble.silent,
        "pack_dead_letters": trouble.dead_letters,
        "disputed": tuple(run.run_id for run in disputed),
        "disputed_capped": len(trouble.disputed) >= DISPUTES_MAX,
    }
    if disputed:
        found["disputed_oldest_at"] = min(run.updated_at for run in disputed) / SECOND_US
    if trouble.audit is not None:
        found["differences"] = trouble.audit.seen_by(caller.tenant_id)
        found["audited_at"] = trouble.audit.at_us / SECOND_US
    return found


async def _lost(backend: GatewayBackend, silent: Sequence[WorkerRecord]) -> dict[str, list[RunInProgress]]:
    """Return the runs that each disconnected worker still owns, most recently disconnected workers first.

    A worker record names the runs that were in flight at its last heartbeat. Other workers may have taken them over
    since, and may be disconnected, too. Records are kept for a week, so there may be many.
    """
    latest = sorted(silent, key=lambda each: each.last_seen_at, reverse=True)
    had = dict.fromkeys(run_id for each in latest for run_id in each.running)
    names = {each.worker_id for each in silent}
    lost: dict[str, list[RunInProgress]] = {}
    if had:
        for run in await backend.index.held(list(islice(had, _RUNS_MAX))):
            if run.worker_id is not None and run.worker_id in names:
                lost.setdefault(run.worker_id, []).append(run)
    return lost


def _may_see(caller: Caller, run: RunInProgress) -> bool:
    return caller.tenant_id is None or caller.tenant_id == run.tenant_id


def _has_wheel_failure(record: WorkerRecord) -> bool:
    return record.wheel_sync is not None and record.wheel_sync.get("status") == "error"
