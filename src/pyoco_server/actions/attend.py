"""Say what a person should look at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from pyoco_server.actions.list_queues import workers_by_tag
from pyoco_server.actions.measure import crowd_of
from pyoco_server.core.attention import Facts, Finding, LostWorker, QueueFacts, findings
from pyoco_server.core.run import Caller
from pyoco_server.core.states import WorkerState
from pyoco_server.core.trend import NOT_KNOWN, Trend
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import EVERYBODY, Held
from pyoco_server.ports.store_state import StoreState

__all__ = ["attend"]

log = get_logger(__name__)

#: Whoever looks for trouble does not wait for it: what is not known by then is told as such.
_SECONDS_MAX = 1.0
#: Queues whose growth is looked at: the longest.
_QUEUES_MAX = 200
#: Runs of silent workers that are looked up.
_RUNS_MAX = 1_000
#: Stale runs, and new dead letters, that are counted.
_STALE_MAX = 100
_LETTERS_MAX = 1_000
_LETTER_SECONDS = 3_600.0


async def attend(
    backend: GatewayBackend, trend: Trend, caller: Caller, *, runs_listed: bool, letters_listed: bool
) -> list[Finding]:
    """The most urgent first, at most 50. No round trip; within a second. Never raises for an outage: it tells of it.

    `runs_listed` and `letters_listed`: whether the indexes are true now. What would be read from one that is not is
    left out, since nobody knows whether it is so. With authentication on, flows, run ids and dead letters are those of
    the caller's tenant; tags and workers are shared by all (FLOW-273 to FLOW-276).

    O(workers + tags + flows), and the limits above.
    """
    now, store, is_up = backend.clock(), backend.store_state(), backend.is_up()
    facts = Facts(
        now=now,
        is_up=is_up,
        store_full=store is not StoreState.TAKES,
        store_stuck=store is StoreState.STUCK,
        lists_true=runs_listed and letters_listed,
        flows=tuple(trend.flows(now, caller.tenant_id)),
    )
    if not is_up:
        return findings(facts)
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            if letters_listed:
                facts = await _with_letters(facts, backend, caller)
            if runs_listed:
                facts = await _with_runs(facts, backend, trend, caller)
    except (Unavailable, TimeoutError) as error:
        log.info("cannot tell everything that needs attention", error=error)
        facts = replace(facts, lists_true=False)
    return findings(replace(facts, is_up=backend.is_up()))


async def _with_letters(facts: Facts, backend: GatewayBackend, caller: Caller) -> Facts:
    tenant_id = caller.tenant_id or EVERYBODY
    new = await backend.letter_index.recent(tenant_id, facts.now - _LETTER_SECONDS, _LETTERS_MAX)
    total = await backend.letter_index.total(tenant_id)
    return replace(facts, letters=total, letters_new=new, letters_new_capped=new >= _LETTERS_MAX)


async def _with_runs(facts: Facts, backend: GatewayBackend, trend: Trend, caller: Caller) -> Facts:
    now, config = facts.now, backend.config
    workers = await backend.registry.all()
    silence = config.worker_disconnect_timeout_sec
    silent = [each for each in workers if each.derived_state(now, silence) is WorkerState.DISCONNECTED]
    lost = await _lost(backend, silent)
    stale = await _stale(backend, caller, now, {run.run_id for runs in lost.values() for run in runs})
    return replace(
        facts,
        queues=await _queues(backend, trend, workers, now),
        lost=tuple(
            LostWorker(worker_id, len(runs), tuple(run.run_id for run in runs if _may_know(caller, run)))
            for worker_id, runs in lost.items()
        ),
        stale=stale,
        stale_capped=len(stale) >= _STALE_MAX,
        wheel_failures=tuple(
            sorted(each.worker_id for each in workers if each.is_alive(now, silence) and _has_wheel_failure(each))
        ),
    )


async def _lost(backend: GatewayBackend, silent: Sequence[WorkerRecord]) -> dict[str, list[Held]]:
    """By silent worker, the runs that are still its own. Its record names what it had in hand when it was last heard
    of: by now others may have taken them over, and the record stays for a week."""
    had = {run_id: each.worker_id for each in silent for run_id in each.running}
    lost: dict[str, list[Held]] = {}
    if had:
        for run in await backend.index.held(list(islice(had, _RUNS_MAX))):
            if run.worker_id == had[run.run_id]:
                lost.setdefault(run.worker_id, []).append(run)
    return lost


async def _stale(backend: GatewayBackend, caller: Caller, now: float, told: set[str]) -> tuple[str, ...]:
    """FLOW-30, for RUNNING runs of which nothing was heard, not even that they were handed back. Those of silent
    workers are told with their worker."""
    seconds = max(30.0, 3 * backend.config.run_heartbeat_interval_sec)
    quiet = await backend.index.quiet(caller.tenant_id or EVERYBODY, now - seconds, _STALE_MAX + len(told))
    return tuple(run_id for run_id in quiet if run_id not in told)[:_STALE_MAX]


async def _queues(
    backend: GatewayBackend, trend: Trend, workers: Sequence[WorkerRecord], now: float
) -> tuple[QueueFacts, ...]:
    counts, serving = await backend.index.counts(), workers_by_tag(workers)
    silence = backend.config.worker_disconnect_timeout_sec
    queues = []
    for place, (tag, waiting) in enumerate(counts.waiting.items()):
        drain = trend.drain(now, tag) if place < _QUEUES_MAX else NOT_KNOWN
        queues.append(
            QueueFacts(
                tag=tag,
                depth=waiting.count,
                oldest_at=waiting.oldest_at,
                workers_alive=crowd_of(serving.get(tag, []), now, silence).alive,
                depth_before=drain.depth_before,
                depth_lately=drain.depth_lately,
            )
        )
    return tuple(queues)


def _may_know(caller: Caller, run: Held) -> bool:
    return caller.tenant_id is None or caller.tenant_id == run.tenant_id


def _has_wheel_failure(record: WorkerRecord) -> bool:
    return record.wheel_sync is not None and record.wheel_sync.get("status") == "error"
