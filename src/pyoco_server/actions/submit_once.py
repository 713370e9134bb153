"""Accept a submission at a gateway: store its flow.yaml, and deduplicate by idempotency key."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.actions.check_flow_name import NamedFlow, check_flow_name
from pyoco_server.actions.keep_workflow import keep_workflow
from pyoco_server.actions.submit import Accepted, check_size, record_and_queue, submit
from pyoco_server.actions.submit_promised import queue_once_more
from pyoco_server.core.fingerprint import fingerprint, receipt_key
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import KeyReused
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.receipts.port import Receipt
from pyoco_server.ports.runs.port import ABSENT, Absent, Stored, Withdrawn

__all__ = ["submit_once"]


async def submit_once(backend: GatewayBackend, caller: Caller, ask: Submission, key: str | None = None) -> Accepted:
    """Submit as `submit` does; under a key the same submission is accepted once, and every repeat gets the first
    answer.

    Without a key it costs what `submit` costs. With one: a receipt first, three round trips in all; a repeat takes
    three, or five while no worker has claimed the run yet. A new flow.yaml is stored before all that (`keep_workflow`).

    What a crash leaves behind, and how a repeat under the same key resolves it:

    - after the receipt: a promise without a run. The repeat creates the run, under the promised id;
    - after the record: a PENDING run that may have no job. The repeat publishes the job again, see `queue_once_more`;
    - after the job: an accepted run whose answer was lost. The repeat finds it.

    Without a repeat the keeper ends a run that has no job; a repeat that comes after that promises another run.

    Raises KeyReused if the key stands for another submission, FlowNotOffered if no worker can execute a flow of this
    name (`check_flow_name`), Refused if the run is too large to record (then the key is not used up), Unavailable if
    NATS fails: a repeat under the same key is safe, whatever was stored.
    """
    place = None if key is None else receipt_key(caller.tenant_id, key)
    warning = None
    if ask.workflow_yaml is None:
        warning = await check_flow_name(backend, NamedFlow(ask.flow_name, ask.tag), place)
    elif ask.workflow_yaml_sha256 is not None:
        await keep_workflow(backend, ask.workflow_yaml_sha256, ask.workflow_yaml)
    if place is None:
        return Accepted(await submit(backend, caller, ask), warning=warning)
    return replace(await _submit_under_key(backend, caller, ask, place), warning=warning)


async def _submit_under_key(backend: GatewayBackend, caller: Caller, ask: Submission, place: str) -> Accepted:
    run = accept(ask, caller, backend.new_id(), backend.clock())
    check_size(backend, run)
    mark = fingerprint(ask)
    receipt = await backend.receipts.claim(place, run.run_id, mark)
    rounds = Rounds("the run of an idempotency key")
    while True:
        rounds.begin()
        if receipt.fingerprint != mark:
            raise KeyReused
        step = await _step(backend, place, receipt, run, ask)
        if isinstance(step, Accepted):
            return step
        receipt, run = step


async def _step(
    backend: GatewayBackend, place: str, receipt: Receipt, run: Run, ask: Submission
) -> Accepted | tuple[Receipt, Run]:
    """Record and queue the run of the receipt. If it returns no Accepted, the state has changed meanwhile: try again
    with the returned values.

    `run` is the run to record; the receipt contains its id.
    """
    # No other process can have used an id that we have just generated: no need to read it.
    found = ABSENT if receipt.run_id == run.run_id else await backend.runs.find(receipt.run_id)
    if isinstance(found, Absent):
        made = await record_and_queue(backend, replace(run, run_id=receipt.run_id), ask)
        # LOST: another submission with the same receipt was faster, so the run exists.
        return Accepted(made) if isinstance(made, Stored) else (receipt, replace(run, run_id=""))
    if isinstance(found, Withdrawn) or _was_abandoned(found.run):
        run = replace(run, run_id=backend.new_id())
        return await backend.receipts.replace(place, run.run_id, receipt), run
    if found.run.waits_for_time:
        return Accepted(found, replayed=True)
    if found.run.status is RunState.PENDING and found.run.attempt == 0:
        again = await queue_once_more(backend, found, ask)
        return Accepted(again, replayed=True) if isinstance(again, Stored) else (receipt, run)
    return Accepted(found, replayed=True)


def _was_abandoned(run: Run) -> bool:
    """Whether the keeper ended the run because it had no job, and no worker ever claimed it: nothing was executed."""
    return run.is_terminal and run.attempt == 0 and run.reason == DeadReason.ABANDONED
