"""Redrive one dead letter: submit its work again."""

from __future__ import annotations

from pyoco_server.actions.delete_dead_letter import forget_dead_letters
from pyoco_server.actions.programs.requeue import requeue
from pyoco_server.actions.rerun import UNCHANGED, RerunChange, rerun
from pyoco_server.actions.show_dead_letter import find_dead_letter, find_run
from pyoco_server.actions.submit import Accepted
from pyoco_server.core.run import Caller
from pyoco_server.errors import NotRepeatable, Problem, Refused, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import StoredDeadLetter
from pyoco_server.ports.runs.port import Stored

__all__ = ["redrive"]

log = get_logger(__name__)


async def redrive(backend: GatewayBackend, caller: Caller, letter_id: str, change: RerunChange = UNCHANGED) -> Accepted:
    """Submit the work of the letter's run as a new run, then delete the letter, in that order.

    A terminal state is final, so the dead run stays as it is; the new run names it in `rerun_of`. The submission uses
    an idempotency key made from the dead run's id, with a space in it, which no user can send: two clicks, two gateways
    or two letters of one run lead to one new run, for as long as keys are remembered. Three round trips and those of
    `rerun`.

    A crash leaves behind:

    - before the new run: nothing, or what a crash of `rerun` leaves;
    - after it: a new run and the letter. The next redrive finds that run, and deletes the letter.

    Unavailable after the new run leaves the same state: repeat the redrive.

    Raises DeadLetterNotFound; NotRepeatable if there is no run, it has not ended, or its submission is no longer
    stored; KeyReused if it was redriven with another change before; Refused if the change is not possible.
    """
    found = await find_dead_letter(backend, caller, letter_id)
    if found.dead_letter.is_exec:
        return await _redrive_program(backend, caller, found, change)
    run = await find_run(backend, caller, found)
    if run is None:
        raise _not_repeatable("names a run that is no longer stored", "run_gone")
    if not run.is_terminal:
        raise _not_repeatable(f"names a run that is {run.status} now", "not_ended")
    try:
        accepted = await rerun(backend, caller, run.run_id, change, f"redrive {run.run_id}")
    except RunNotFound as error:
        raise _not_repeatable("names a run that is no longer stored", "run_gone") from error
    return await _delete_dead_letter(backend, found, accepted)


async def _redrive_program(
    backend: GatewayBackend, caller: Caller, found: StoredDeadLetter, change: RerunChange
) -> Accepted:
    """Submit a program again. The letter contains the job itself, so the run need not exist any more. Raises as
    `requeue` does, and Refused."""
    if change != UNCHANGED:
        message = "cannot be changed for a program: submit another job"
        raise Refused(message, problems=(Problem(("body",), message, "forbidden"),))
    submitted = await requeue(backend, caller, found)
    accepted = Accepted(Stored(submitted.run, submitted.revision), replayed=submitted.duplicate)
    return await _delete_dead_letter(backend, found, accepted)


async def _delete_dead_letter(backend: GatewayBackend, found: StoredDeadLetter, accepted: Accepted) -> Accepted:
    await backend.dead_letters.delete(found.letter_id)
    await forget_dead_letters(backend, {found.letter_id})
    log.info(
        "redriven",
        letter_id=found.letter_id,
        reason=found.dead_letter.reason,
        run_id=accepted.stored.run.run_id,
        rerun_of=found.dead_letter.run_id,
        replayed=accepted.replayed,
    )
    return accepted


def _not_repeatable(message: str, kind: str) -> NotRepeatable:
    return NotRepeatable(f"the letter {message}", problems=(Problem(("path", "letter_id"), message, kind),))
