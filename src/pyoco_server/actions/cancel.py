"""Request the cancellation of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.actions.priced.finalize import Finished
from pyoco_server.actions.priced.sweep import cancel_delayed
from pyoco_server.actions.programs.cancel import ask_job, tell_holder
from pyoco_server.actions.read import read_run
from pyoco_server.core.flow_moves import ask_cancel, shorten_cancel
from pyoco_server.core.priced.projection import project
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.core.waiting import is_disputed
from pyoco_server.errors import DependencyUnavailable, NotOfThisKind, Problem, SnapshotTooLargeError
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.ledger.port import Lost as LostRow
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.port import Lost, Stored

__all__ = ["Answered", "cancel", "cancel_if"]

_WHY_NOT = "is a priced one, which cannot be cancelled"
_INSTEAD = {
    RunState.PENDING: "no worker has started it yet; if none does, it fails, and all money is back",
    RunState.RUNNING: "it ends by itself within its timebox",
}


@dataclass(frozen=True)
class Answered:
    """The run after the request, and whether this request is the one that cancelled it."""

    stored: Stored
    asked: bool


async def cancel(
    backend: Backend, caller: Caller, run_id: str, reason: str | None, grace_seconds: float | None = None
) -> Stored:
    """Mark the run CANCELLING; its worker stops it. A waiting program becomes CANCELLED immediately
    (`actions/programs/cancel.py`).

    One read and one write, repeated while other writers change the run. A run that has ended, or is already being
    cancelled, stays as it is (FLOW-176, FLOW-177), but a shorter `grace_seconds` moves its deadline forward (CLI-10).
    Raises RunNotFound; and NotOfThisKind for a pack: its money is set aside, and only the ledger ends it.
    """
    return (await cancel_if(backend, caller, run_id, reason, lambda _: True, grace_seconds)).stored


async def cancel_if(
    backend: Backend,
    caller: Caller,
    run_id: str,
    reason: str | None,
    wanted: Callable[[Run], bool],
    grace_seconds: float | None = None,
) -> Answered:
    """Cancel as `cancel` does, but only while `wanted` accepts the run, which is read again for each try."""
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await read_run(backend, caller, run_id)
        run = found.run
        if run.is_pack and run.waits_for_time and backend.priced is not None:
            return await _cancel_delayed_pack(backend.priced, found)
        if run.is_pack:
            why = _why_not(run)
            raise NotOfThisKind(f"the run {why}", problems=(Problem(("path", "run_id"), why, "kind"),))
        is_asked = run.status is RunState.CANCELLING
        if is_asked and grace_seconds is not None:
            asked = await _shorten(backend, found, grace_seconds)
        elif run.is_terminal or is_asked or not wanted(run):
            return Answered(found, asked=False)
        elif run.is_exec:
            asked = await ask_job(backend, found, caller.api_key_id, reason, grace_seconds)
        else:
            asked = await _ask(backend, caller, found, reason, grace_seconds)
        if isinstance(asked, Stored):
            return Answered(asked, asked=not is_asked)


async def _shorten(backend: Backend, found: Stored, grace_seconds: float) -> Stored | Lost:
    run = shorten_cancel(found.run, grace_seconds, backend.clock())
    if run is found.run:
        return found
    stored = await backend.runs.replace(run, found.revision)
    if run.is_exec and isinstance(stored, Stored):
        await tell_holder(backend, run)
    return stored


async def _cancel_delayed_pack(priced: Priced, found: Stored) -> Answered:
    """Refund a priced run before its time (DELAY-7). Raises NotOfThisKind if its time has come."""
    row = await priced.ledger.read(lambda tx: tx.runs.get(found.run.run_id))
    ended = None if row is None else await cancel_delayed(priced, row)
    if isinstance(ended, Finished) and (shown := project(ended.run)) is not None:
        return Answered(Stored(shown, found.revision), asked=True)
    if ended is None or isinstance(ended, LostRow):
        why = f"{_WHY_NOT}: its time has come"
        raise NotOfThisKind(f"the run {why}", problems=(Problem(("path", "run_id"), why, "kind"),))
    raise DependencyUnavailable("the run is cancelled, and its money is not back yet; it will be")


def _why_not(run: Run) -> str:
    if is_disputed(run):
        return f"{_WHY_NOT}: it is disputed, and an operator ends it"
    return f"{_WHY_NOT}: {_INSTEAD.get(run.status, 'it has ended')}"


async def _ask(
    backend: Backend, caller: Caller, found: Stored, reason: str | None, grace_seconds: float | None
) -> Stored | Lost:
    now, key = backend.clock(), caller.api_key_id
    grace = backend.config.cancel_grace_period_sec if grace_seconds is None else grace_seconds
    for why, by in ((reason, key), (None, key)):
        with contextlib.suppress(SnapshotTooLargeError):  # drop the reason, then the key id, rather than the request
            return await backend.runs.replace(ask_cancel(found.run, why, now, by, grace), found.revision)
    return await backend.runs.replace(ask_cancel(found.run, None, now, None, grace), found.revision)
