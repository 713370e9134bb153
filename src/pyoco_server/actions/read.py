"""Read one run."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.names import is_run_id, worker_id_problem
from pyoco_server.core.priced.projection import is_withheld
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import RunNotFound, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["WorkerFacts", "find_run", "may_list", "may_see", "read_run", "worker_facts", "worker_of"]

log = get_logger(__name__)


@dataclass(frozen=True)
class WorkerFacts:
    """What the registry contains about a run's worker (FLOW-93)."""

    alive: bool = False
    heartbeat_at: float | None = None
    tags: tuple[str, ...] | None = None
    state: str | None = None


def may_see(caller: Caller, run: Run) -> bool:
    """Whether the caller may read the run.

    Without a key: everything except priced runs. With a key: only the runs of its tenant; a run without a tenant is
    hidden (FLOW-273, FLOW-275, SAFE-5).
    """
    return may_list(caller, run) and not is_withheld(caller, run.kind, run.tenant_id)


def may_list(caller: Caller, run: Run) -> bool:
    """Whether a list includes the run, even if redacted."""
    return caller.tenant_id is None or run.tenant_id == caller.tenant_id


async def read_run(backend: Backend, caller: Caller, run_id: str) -> Stored:
    """Return the newest record: one round trip to the leader. Raises RunNotFound, also for another tenant's run."""
    found = await find_run(backend, run_id)
    if not may_see(caller, found.run):
        raise RunNotFound
    return found


async def find_run(backend: Backend, run_id: str) -> Stored:
    """Return the newest record without an owner check, for code that has access to the store itself. Raises
    RunNotFound."""
    if not is_run_id(run_id):
        raise RunNotFound
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored):
        raise RunNotFound
    return found


async def worker_of(backend: Backend, run: Run) -> WorkerRecord | None:
    """Return the registry record under the name of the run's worker, even if it belongs to another process by now.
    Raises Unavailable.

    A foreign record may contain any text as the worker name, even a pattern that matches other workers: an invalid name
    matches none.
    """
    if run.worker_id is None or worker_id_problem(run.worker_id) is not None:
        return None
    return await backend.registry.find(run.worker_id)


async def worker_facts(backend: Backend, run: Run) -> WorkerFacts | None:
    """Return the facts about the run's worker, best effort. Costs no round trip.

    Returns None if the run has no worker yet, or if the registry cannot be read.
    """
    if run.worker_id is None:
        return None
    try:
        record = await worker_of(backend, run)
    except Unavailable as error:
        log.warning("cannot read the worker registry", run_id=run.run_id, error=error)
        return None
    if record is not None and run.instance_id is not None and record.instance_id != run.instance_id:
        # Another process under the same name: the process that executed this run has exited.
        return WorkerFacts(heartbeat_at=record.last_heartbeat_at, tags=record.tags, state=WorkerState.DISCONNECTED)
    return _facts(record, backend.clock(), backend.config.worker_disconnect_timeout_sec)


def _facts(record: WorkerRecord | None, now: float, disconnect_seconds: float) -> WorkerFacts:
    if record is None:
        return WorkerFacts()
    return WorkerFacts(
        alive=record.is_alive(now, disconnect_seconds),
        heartbeat_at=record.last_heartbeat_at,
        tags=record.tags,
        state=record.derived_state(now, disconnect_seconds),
    )
