"""Show one run."""

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
    """What the registry says of a run's worker (FLOW-93)."""

    alive: bool = False
    heartbeat_at: float | None = None
    tags: tuple[str, ...] | None = None
    state: str | None = None


def may_see(caller: Caller, run: Run) -> bool:
    """Without a key everything but priced runs, with one only its tenant's runs; a run of nobody is hidden (FLOW-273,
    FLOW-275, SAFE-5)."""
    return may_list(caller, run) and not is_withheld(caller, run.kind, run.tenant_id)


def may_list(caller: Caller, run: Run) -> bool:
    """Whether a list shows the run, be it redacted."""
    return caller.tenant_id is None or run.tenant_id == caller.tenant_id


async def read_run(backend: Backend, caller: Caller, run_id: str) -> Stored:
    """The newest record: one round trip to the leader. Raises RunNotFound, also for another tenant's run."""
    found = await find_run(backend, run_id)
    if not may_see(caller, found.run):
        raise RunNotFound
    return found


async def find_run(backend: Backend, run_id: str) -> Stored:
    """The newest record, for code that has access to the store itself: no owner guard. Raises RunNotFound."""
    if not is_run_id(run_id):
        raise RunNotFound
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored):
        raise RunNotFound
    return found


async def worker_of(backend: Backend, run: Run) -> WorkerRecord | None:
    """What the registry has under the name of the run's worker, be it another process by now. Raises Unavailable.

    A stranger's record may hold any text for a name, one that fits other workers' among it: such a name is nobody's.
    """
    if run.worker_id is None or worker_id_problem(run.worker_id) is not None:
        return None
    return await backend.registry.find(run.worker_id)


async def worker_facts(backend: Backend, run: Run) -> WorkerFacts | None:
    """Best effort: None when there is no worker yet, or the registry cannot be read. Costs no round trip."""
    if run.worker_id is None:
        return None
    try:
        record = await worker_of(backend, run)
    except Unavailable as error:
        log.warning("the worker registry cannot be read", run_id=run.run_id, error=error)
        return None
    if record is not None and run.instance_id is not None and record.instance_id != run.instance_id:
        # Another process under the same name: the one that had this run is gone.
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
