"""The units of a client's cap: who may take one, and which are nobody's any more (section 12.2).

A client is named within its tenant here (`client_key`): the caps of two tenants are apart (SAFE-4).
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

#: GRID-74: a slot that was taken and never named its run. Less where attempts are given up sooner.
_NAMELESS_SECONDS = 30.0
#: A held slot is looked at four times in a lease.
_LOOKS_PER_LEASE = 4
#: Slots that are looked at while somebody waits for one; the next who wants one looks at others.
_LOOKS_MAX = 16
#: Numbers that others were faster to take. Whoever meets so many at once comes back later.
_TRIES_MAX = 16


def cap_of(programs: Programs, group: str, client: str) -> int:
    """GRID-71: what it said last, the default if it never said one; within what it is allowed."""
    said = programs.slots.cap(group, client)
    return effective_cap(programs, client_id_of(client), programs.config.exec_default_cap if said is None else said.cap)


async def take_slot(backend: Backend, group: str, client: str, holder: str) -> Slot | None:
    """One unit of the client's cap (GRID-73). None: it is at its cap. Raises Unavailable.

    One write when a number is free. At the cap, those slots are freed first that belong to nobody any more (GRID-74):
    a read for each that was not looked at lately.

    Of the free numbers below the cap only as many may be taken, the lowest, as the cap has room for: so when a cap was
    lowered and higher numbers are still held, two processes cannot both take the last one (GRID-76). Which of these is
    tried first is left to chance, so that processes do not all begin with the same.
    """
    programs = programs_of(backend)
    tried: set[int] = set()
    looked = False
    while len(tried) < _TRIES_MAX:
        numbers = [number for number in _open_numbers(programs, group, client) if number not in tried]
        if not numbers:
            if looked or tried or not await clear_abandoned(backend, group, client, _LOOKS_MAX):
                return None
            looked = True
            continue
        number = numbers[min(int(programs.chance() * len(numbers)), len(numbers) - 1)]
        tried.add(number)
        wanted = Slot(group, client, number, backend.new_id(), None, backend.clock(), holder, 0)
        taken = await programs.slots.take(wanted)
        if taken is not None:
            await programs.reached("claim.slot_taken")
            return taken
    return None


def _open_numbers(programs: Programs, group: str, client: str) -> list[int]:
    """O(cap)."""
    cap = cap_of(programs, group, client)
    held = {slot.number for slot in programs.slots.held(group, client)}
    room = cap - len(held)
    if room <= 0:
        return []
    return [number for number in range(cap) if number not in held][:room]


async def clear_abandoned(backend: Backend, group: str, client: str, looks_max: int = CAP_MAX) -> int:
    """Free the slots of this client that nobody stands behind any more (GRID-74). How many. A read for each, of up to
    `looks_max` that were not looked at lately. Raises Unavailable."""
    programs, freed = programs_of(backend), 0
    every_seconds = programs.config.exec_lease_fresh_sec / _LOOKS_PER_LEASE
    for slot in programs.slots.held(group, client):
        now = backend.clock()
        if not looks_max:
            break
        # One that was named a moment ago has its holder behind it: who dies needs a lease to be missed.
        if now - slot.t < every_seconds or not programs.looks.is_due(slot, now, every_seconds):
            continue
        looks_max -= 1
        if await _is_abandoned(backend, slot, now) and await programs.slots.free(slot):
            freed += 1
            log.info("freed a slot that nobody stood behind", client=client, slot=slot.number, was=slot.holder)
    return freed


async def _is_abandoned(backend: Backend, slot: Slot, now: float) -> bool:
    programs = programs_of(backend)
    if slot.run_id is None:
        return now - slot.t > min(_NAMELESS_SECONDS, programs.config.exec_ack_timeout_sec)
    try:
        found = await backend.runs.find(slot.run_id)
    except Corrupt:  # nobody can tell, so it stays
        return False
    if not isinstance(found, Stored):
        return True
    run = found.run
    if run.is_terminal or run.status is RunState.PENDING or run.attempt_id != slot.token:
        return True
    return not programs.grace.covers(now) and not is_fresh(run, now, programs.config.exec_lease_fresh_sec)


async def free_slot(backend: Backend, slot: Slot) -> None:
    """Give it back: one write. Best effort: one that stays is freed by its age (GRID-74). Never raises Unavailable."""
    try:
        await programs_of(backend).slots.free(slot)
    except Unavailable as error:
        log.warning("a slot was not given back; it is freed by its age", client=slot.client, error=error)


def find_slot_of(backend: Backend, run: Run) -> Slot | None:
    """The slot of its last attempt, as far as is known. O(cap)."""
    program = run.program
    if program is None:
        return None
    for slot in programs_of(backend).slots.held(program.group, client_key(program.client_id, run.tenant_id)):
        if slot.run_id == run.run_id and slot.token == run.attempt_id:
            return slot
    return None


async def free_slot_of(backend: Backend, run: Run) -> None:
    """Free the slot of an attempt that is over, if whoever held it has not. Best effort, as `free_slot`."""
    slot = find_slot_of(backend, run)
    if slot is not None:
        await free_slot(backend, slot)


def with_holder(slot: Slot, run: Run, holder: str, now: float) -> Slot:
    """The same slot, to be written over itself by whoever takes the attempt over."""
    return replace(slot, run_id=run.run_id, token=run.attempt_id or slot.token, holder=holder, t=now)
