"""Publish the job of a run again after its queue was deleted and created anew (SAFE-15)."""

from __future__ import annotations

from pyoco_server.actions.read_workflow import not_repeatable, read_workflow
from pyoco_server.core.flow_moves import beat
from pyoco_server.core.job import job_of
from pyoco_server.core.outcome import NOTHING_YET
from pyoco_server.core.run import Run, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotRepeatable, WorkflowTooLarge
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["queue_again", "submission_of"]

log = get_logger(__name__)


async def queue_again(backend: Backend, found: Stored) -> bool:
    """Publish the missing job of a flow run, under the same run id and message id.

    Returns False if the record does not contain what the job needs: params were truncated, or the flow.yaml is no
    longer stored.

    The record of a PENDING run is written again after the job, with a new time: it is then newer than the queue, so no
    keeper publishes the job a second time. A crash in between leaves a run whose job is published again; the queue
    drops the second job within two minutes, later the claim does. If a worker takes the job before that write, it
    claims the run as usual, and the write is lost. Two round trips, and those that read an uploaded flow.yaml. Raises
    Unavailable.
    """
    run = found.run
    try:
        ask = await submission_of(backend, run)
    except (NotRepeatable, WorkflowTooLarge) as error:
        log.warning("cannot queue a run again", run_id=run.run_id, error=error)
        return False
    # A job does not carry what earlier attempts left in the record: its claim has to read that.
    is_pristine = run.attempt == 0 and run.not_before is None
    await backend.queue.put(job_of(run, ask, found.revision if is_pristine else found.revision - 1))
    if run.status is RunState.PENDING:
        await backend.runs.replace(beat(run, NOTHING_YET, backend.clock()), found.revision)
    log.warning("queued a run again: its job was lost with the queue", run_id=run.run_id, tag=run.tag, was=run.status)
    return True


async def submission_of(backend: Backend, run: Run) -> Submission:
    """Return the submission of a flow run, from its record. Raises NotRepeatable and WorkflowTooLarge if it is no
    longer complete, Unavailable."""
    if run.params_truncated:
        raise not_repeatable("was too large to keep its params", "params_truncated")
    sha256 = run.workflow_yaml_sha256
    text = None if sha256 is None else (await read_workflow(backend, sha256)).decode()
    return Submission(flow_name=run.flow_name, tag=run.tag, tags=run.tags, params=run.params, workflow_yaml=text)
