"""Accept a submission at a gateway: its flow.yaml is kept, and an idempotency key makes it count once."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.actions.keep_workflow import keep_workflow
from pyoco_server.actions.submit import Accepted, check_size, record_and_queue, submit
from pyoco_server.core.fingerprint import fingerprint, receipt_key
from pyoco_server.core.job import job_of
from pyoco_server.core.outcome import NOTHING_YET, DeadReason
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller, Run, Submission, accept, beat
from pyoco_server.core.states import RunState
from pyoco_server.errors import KeyReused
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.receipts.port import Receipt
from pyoco_server.ports.runs.port import ABSENT, Absent, Lost, Stored, Withdrawn

__all__ = ["submit_once"]


async def submit_once(backend: GatewayBackend, caller: Caller, ask: Submission, key: str | None = None) -> Accepted:
    """As `submit`; under a key the same submission is accepted once, and every repeat gets the first answer again.

    Without a key it costs what `submit` costs. With one: a receipt first, three round trips in all; a repeat takes
    three, five while nobody has taken the run yet. A new flow.yaml is stored before all that (`keep_workflow`).

    What a crash leaves behind, and what a repeat under the same key makes of it:
      after the receipt  a promise without a run: the repeat makes the run, under the promised id;
      after the record   a PENDING run that may have no job: the repeat puts the job again, see `_queue_again`;
      after the job      an accepted run whose answer was lost: the repeat finds it.
    Until a repeat comes, the keeper ends what has no job; a repeat that comes after that promises another run.

    Raises KeyReused when the key stands for another submission, Refused when the run is too large to record (then the
    key is not used up), Unavailable when NATS fails: a repeat under the same key is safe, whatever was stored.
    """
    if ask.workflow_yaml is not None and ask.workflow_yaml_sha256 is not None:
        await keep_workflow(backend, ask.workflow_yaml_sha256, ask.workflow_yaml)
    if key is None:
        return Accepted(await submit(backend, caller, ask))
    run = accept(ask, caller, backend.new_id(), backend.clock())
    check_size(backend, run)
    place, mark = receipt_key(caller.tenant_id, key), fingerprint(ask)
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
    """Bring the run of the receipt to where it is recorded and queued. Not accepted: something has moved on meanwhile;
    look again with these.

    `run` is what would be recorded; the receipt says under which id.
    """
    # An id of our own making nobody else has used yet: no need to look.
    found = ABSENT if receipt.run_id == run.run_id else await backend.runs.find(receipt.run_id)
    if isinstance(found, Absent):
        made = await record_and_queue(backend, replace(run, run_id=receipt.run_id), ask)
        # LOST: somebody with the same receipt was faster, so there is something to look at.
        return Accepted(made) if isinstance(made, Stored) else (receipt, replace(run, run_id=""))
    if isinstance(found, Withdrawn) or _came_to_nothing(found.run):
        run = replace(run, run_id=backend.new_id())
        return await backend.receipts.replace(place, run.run_id, receipt), run
    if found.run.status is RunState.PENDING and found.run.attempt == 0:
        again = await _queue_again(backend, found, ask)
        return Accepted(again, replayed=True) if isinstance(again, Stored) else (receipt, run)
    return Accepted(found, replayed=True)


def _came_to_nothing(run: Run) -> bool:
    """Ended by the keeper because it had no job, and nobody ever began it: nothing of it happened."""
    return run.is_terminal and run.attempt == 0 and run.reason == DeadReason.ABANDONED


async def _queue_again(backend: GatewayBackend, found: Stored, ask: Submission) -> Stored | Lost:
    """Put the job of a run that nobody has begun: whoever recorded it may have died before its job. LOST: the run has
    moved on; look again.

    The record is written first, over exactly what was found, with a new time and nothing else. From then on nobody can
    take it back: who recorded it withdraws over the first revision alone, perhaps at this very moment, because its own
    put failed. Without that write it could withdraw a run that we have just answered for. And the keeper, who ends
    what has been quiet and has no job, sees that it is not quiet. For the same reason we ourselves never take it back:
    somebody else may have answered for it.

    The job goes out under the run's id once more. Is its first job still in the queue, then within two minutes the
    queue drops the second; later it stores both, and the claim drops the one that comes second. That the first job was
    dealt with already and the second is dropped as a repeat cannot be: a job leaves the queue only when its run was
    begun, has ended or was withdrawn, and this one is none of these. (That is also why a withdrawn run is never brought
    back under its old id: its first job may be dropped at any moment, and for two minutes no other would be stored.)
    A job that names the older revision loses its first, blind claim; the worker then reads the record and claims that.
    """
    touched = await backend.runs.replace(beat(found.run, NOTHING_YET, backend.clock()), found.revision)
    if isinstance(touched, Stored):
        await backend.queue.put(job_of(touched.run, ask, touched.revision))
    return touched
