"""The slots of a client's cap: taking them, and freeing abandoned ones (section 12.2).

Clients are named within their tenant here (`client_key`): the caps of two tenants are separate (SAFE-4).
"""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.actions.programs.admit import effective_cap
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.moves import is_fresh
from pyoco_server.core.programs.names import client_id_of, client_key
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.port import Slot

__all__ = ["cap_of", "clear_abandoned", "find_slot_of", "free_slot", "free_slot_of", "take_slot", "with_holder"]

log = get_logger(__name__)

#: GRID-74: the age at which a slot that no run was written into is abandoned. Less if EXEC_ACK_TIMEOUT_SEC is shorter.
_NAMELESS_SECONDS = 30.0
#: Checks of a held slot in one lease.
_CHECKS_PER_LEASE = 4
#: Limit of slots checked by one request for a slot; the next request checks others.
_CHECKS_MAX = 16
#: Limit of numbers tried after conflicts. The caller tries again later.
_TRIES_MAX = 16


def cap_of(programs: Programs, group: str, client: str) -> int:
    """Return the last cap set for the client, else the default (GRID-71); lowered to what the ACL allows."""
    stored = programs.slots.cap(group, client)
    return effective_cap(
        programs, client_id_of(client), programs.config.exec_default_cap if stored is None else stored.cap
    )


async def take_slot(
    backend: Backend, group: str, client: str, holder: str, taking: set[int] | None = None
) -> Slot | None:
    """Take one slot of the client (GRID-73). None: the client is at its cap. Raises Unavailable.

    `taking`: the numbers that concurrent calls of this process are trying for this client, so that they do not conflict
    with each other; this call adds its own.

    Costs one write when a number is free. At the cap, abandoned slots are freed first (GRID-74): a read for each that
    was not checked recently.

    Only the lowest free numbers are candidates, as many as the cap has room for. So when a cap was lowered and higher
    numbers are still held, two processes cannot both take the last one (GRID-76). The order in which candidates are
    tried is random, so that processes do not all start with the same one.
    """
    programs = programs_of(backend)
    tried: set[int] = set()
    taking = set() if taking is None else taking
    has_cleared = False
    while len(tried) < _TRIES_MAX:
        numbers = [number for number in _open_numbers(programs, group, client, taking) if number not in tried]
        if not numbers:
            if has_cleared or tried or not await clear_abandoned(backend, group, client, _CHECKS_MAX):
                return None
            has_cleared = True
            continue
        number = numbers[min(int(programs.chance() * len(numbers)), len(numbers) - 1)]
        tried.add(number)
        slot = Slot(group, client, number, backend.new_id(), None, backend.clock(), holder, 0)
        taking.add(number)
        try:
            taken = await programs.slots.take(slot)
        finally:
            taking.discard(number)
        if taken is not None:
            return taken
    return None


def _open_numbers(programs: Programs, group: str, client: str, taking: set[int]) -> list[int]:
    """O(cap)."""
    cap = cap_of(programs, group, client)
    held = taking | {slot.number for slot in programs.slots.held(group, client)}
    room = cap - len(held)
    if room <= 0:
        return []
    return [number for number in range(cap) if number not in held][:room]


async def clear_abandoned(backend: Backend, group: str, client: str, checks_max: int = CAP_MAX) -> int:
    """Free the abandoned slots of this client (GRID-74) and return how many. Raises Unavailable.

    Costs a read for each slot, of up to `checks_max` that were not checked recently.
    """
    programs, freed = programs_of(backend), 0
    every_seconds = programs.config.exec_lease_fresh_sec / _CHECKS_PER_LEASE
    for slot in programs.slots.held(group, client):
        now = backend.clock()
        if not checks_max:
            break
        # A slot written recently has a live holder, or one whose lease has not expired yet.
        if now - slot.t < every_seconds or not programs.slot_checks.is_due(slot, now, every_seconds):
            continue
        checks_max -= 1
        if await _is_abandoned(backend, slot, now) and await programs.slots.free(slot):
            freed += 1
            log.info("freed an abandoned slot", client=client, slot=slot.number, was=slot.holder)
    return freed


async def _is_abandoned(backend: Backend, slot: Slot, now: float) -> bool:
    programs = programs_of(backend)
    if slot.run_id is None:
        return now - slot.t > min(_NAMELESS_SECONDS, programs.config.exec_ack_timeout_sec)
    try:
        found = await backend.runs.find(slot.run_id)
    except Corrupt:  # undecidable, so keep it
        return False
    if not isinstance(found, Stored):
        return True
    run = found.run
    if run.is_terminal or run.status is RunState.PENDING or run.attempt_id != slot.token:
        return True
    return not programs.grace.covers(now) and not is_fresh(run, now, programs.config.exec_lease_fresh_sec)


async def free_slot(backend: Backend, slot: Slot) -> None:
    """Free a slot with one write.

    Best effort: on failure it is freed by its age later (GRID-74). Never raises Unavailable.
    """
    try:
        await programs_of(backend).slots.free(slot)
    except Unavailable as error:
        log.warning("could not free a slot; it will be freed by its age", client=slot.client, error=error)


def find_slot_of(backend: Backend, run: Run) -> Slot | None:
    """Return the slot of the last attempt, as far as this process knows. O(cap)."""
    program = run.program
    if program is None:
        return None
    for slot in programs_of(backend).slots.held(program.group, client_key(program.client_id, run.tenant_id)):
        if slot.run_id == run.run_id and slot.token == run.attempt_id:
            return slot
    return None


async def free_slot_of(backend: Backend, run: Run) -> None:
    """Free the slot of an attempt that is over, if its holder has not. Best effort, like `free_slot`."""
    slot = find_slot_of(backend, run)
    if slot is not None:
        await free_slot(backend, slot)


def with_holder(slot: Slot, run: Run, holder: str, now: float) -> Slot:
    """Return the slot with a new run holder, to be written over itself when an attempt is taken over."""
    return replace(slot, run_id=run.run_id, token=run.attempt_id or slot.token, holder=holder, t=now)
