"""Show one dead letter."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.programs.requeue import can_requeue
from pyoco_server.actions.read import read_run
from pyoco_server.core.dead_letter import read_letter_id
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import Corrupt, DeadLetterNotFound, ObjectNotFound, RunNotFound
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import StoredDeadLetter

__all__ = ["DeadLetterView", "find_dead_letter", "find_run", "show_dead_letter"]


@dataclass(frozen=True)
class DeadLetterView:
    """A letter, and the current state of its run."""

    found: StoredDeadLetter
    #: None: the job named no run, or its record is no longer stored.
    run_status: str | None
    #: Whether everything a redrive needs is available.
    redrivable: bool


async def find_dead_letter(backend: GatewayBackend, caller: Caller, letter_id: str) -> StoredDeadLetter:
    """Return the letter: one round trip. Raises DeadLetterNotFound, also for another tenant's letter (FLOW-273)."""
    number = read_letter_id(letter_id)
    found = None if number is None else await backend.dead_letters.find(number)
    if found is None or (caller.tenant_id is not None and found.dead_letter.tenant_id != caller.tenant_id):
        raise DeadLetterNotFound
    return found


async def find_run(backend: GatewayBackend, caller: Caller, found: StoredDeadLetter) -> Run | None:
    """Return the run of a letter: one round trip. Returns None if it names no run, or if the caller cannot read it."""
    if found.dead_letter.run_id is None:
        return None
    try:
        return (await read_run(backend, caller, found.dead_letter.run_id)).run
    except (RunNotFound, Corrupt):
        return None


async def show_dead_letter(backend: GatewayBackend, caller: Caller, letter_id: str) -> DeadLetterView:
    """Return the letter and its run: two round trips, three for an uploaded flow. Raises DeadLetterNotFound."""
    found = await find_dead_letter(backend, caller, letter_id)
    run = await find_run(backend, caller, found)
    if found.dead_letter.is_exec:  # it contains the job itself
        return DeadLetterView(found, None if run is None else run.status, await can_requeue(backend, found.dead_letter))
    if run is None:
        return DeadLetterView(found, None, redrivable=False)
    return DeadLetterView(found, run.status, await _is_repeatable(backend, run))


async def _is_repeatable(backend: GatewayBackend, run: Run) -> bool:
    """Whether a redrive is possible as far as is known now; the redrive itself decides."""
    if not run.is_terminal or run.kind != "flow":
        return False
    if run.workflow_yaml_sha256 is None:
        return not run.params_truncated
    try:
        await backend.workflows.info(run.workflow_yaml_sha256)
    except (ObjectNotFound, Corrupt):
        return False
    return True
