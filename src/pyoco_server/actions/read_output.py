"""Read the result of a run, or the output of one of its tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pyoco_server.actions.priced.owned import find_owned, stored_envelope
from pyoco_server.actions.read import read_run
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState, TaskState
from pyoco_server.core.values.kept import InRecord, InStore, NotKept, Where, in_record, object_name
from pyoco_server.core.values.shown import output_of, result_of
from pyoco_server.errors import (
    Corrupt,
    ObjectNotFound,
    ResultGone,
    ResultNotEncodable,
    ResultNotFound,
    ResultNotReady,
    ResultTooLarge,
    RunExpired,
    RunNotFound,
    ValueMissing,
)
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["FoundOutput", "find_output", "find_result", "open_value", "pack_result"]

log = get_logger(__name__)


@dataclass(frozen=True)
class FoundOutput:
    """A value that can be read."""

    run: Run
    value: InRecord | InStore


async def find_result(backend: Backend, caller: Caller, run_id: str) -> FoundOutput:
    """Return the result of a run. One round trip; for a pack, also one query of the ledger and one read of the store.

    Raises RunNotFound, ValueMissing with the reason (RES-8 to RES-12).
    """
    run = (await read_run(backend, caller, run_id)).run
    if not run.is_terminal:
        raise ResultNotReady(f"the run is {run.status} now: it has a result once it has completed", status=run.status)
    if run.status is not RunState.COMPLETED:
        raise ResultNotReady(
            f"the run is {run.status}: it has no result", status=run.status, reason=run.reason, error=run.error
        )
    found: Where | None = await pack_result(backend, run) if run.is_pack else result_of(run)
    if found is None:
        raise ResultNotFound("the run was ended by a worker of an earlier version, which kept no result")
    return FoundOutput(run, _readable(found))


async def pack_result(backend: Backend, run: Run) -> InRecord | NotKept:
    """Return the data of a pack's envelope. The caller must have checked that the caller owns the run (SAFE-5)."""
    if backend.priced is None:
        raise RunNotFound
    try:
        owned = await find_owned(backend.priced, run.run_id, run.tenant_id or "")
        if owned.result is None:
            raise ResultNotReady("the run has not completed", status=run.status)
        envelope = await stored_envelope(backend.priced, owned.run, owned.result, owned.now_us)
    except RunExpired:
        return NotKept(56, "the result is past its retention, or its store has lost it")
    return in_record(json.loads(envelope)["data"])


async def find_output(backend: Backend, caller: Caller, run_id: str, task: str) -> FoundOutput:
    """Return the output of a task. One round trip. Raises RunNotFound, ValueMissing with the reason."""
    run = (await read_run(backend, caller, run_id)).run
    if task not in run.tasks and not (run.is_flow and task in run.graph):
        raise ResultNotFound(f"the run has no task {task[:200]!r}")
    state = run.tasks.get(task, TaskState.PENDING.value)
    if state != TaskState.SUCCEEDED:
        raise ResultNotReady(
            f"the task is {state}: it has an output once it has succeeded", status=run.status, task_state=state
        )
    found = output_of(run, task)
    if found is None:
        raise ResultNotReady("the output is too large for the record, and stored when the run ends", status=run.status)
    return FoundOutput(run, _readable(found))


_REASONS: dict[int, type[ValueMissing]] = {54: ResultNotEncodable, 55: ResultTooLarge, 56: ResultGone}


def _readable(found: Where) -> InRecord | InStore:
    if isinstance(found, NotKept):
        raise _REASONS.get(found.number, ResultGone)(found.detail)
    return found


async def open_value(backend: Backend, found: FoundOutput, start: int, length: int) -> AsyncGenerator[bytes, None]:
    """Yield this slice of the value; read all of it, and its digest is compared before the last piece.

    Raises ResultGone before the first byte if the object is missing, Corrupt if it is damaged, Unavailable.
    """
    value = found.value
    if isinstance(value, InRecord):
        yield value.data[start : start + length]
        return
    name = object_name(found.run.run_id, found.run.attempt_id or "", value.part)
    is_whole = (start, length) == (0, value.size)
    digest, last = hashlib.sha256(), b""
    try:
        async with aclosing(backend.outputs.read(name, value.offset + start, length)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
                if last:
                    yield last
                last = chunk
    except ObjectNotFound:
        raise ResultGone("its object is no longer in the store of outputs") from None
    if is_whole and digest.hexdigest() != value.sha256:
        log.error("stored output is damaged", run_id=found.run.run_id, part=value.part)
        raise Corrupt("a stored output is damaged")
    yield last
