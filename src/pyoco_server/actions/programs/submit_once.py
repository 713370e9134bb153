"""Accept a job at a gateway. An idempotency key makes the submission count once, as the id of the job does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyoco_server.actions.programs.submit import Content, Submitted, submit_job
from pyoco_server.core.fingerprint import receipt_key
from pyoco_server.core.programs.job import JobAsk, fingerprint
from pyoco_server.core.run import Caller
from pyoco_server.errors import JobInDoubt, KeyReused, Unavailable
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["Key", "submit_job_once"]


@dataclass(frozen=True)
class Key:
    """An idempotency key, and whether the caller chose the id of the job as well."""

    text: str
    names_job: bool


async def submit_job_once(
    backend: GatewayBackend, caller: Caller, ask: JobAsk, content: Content, key: Key | None = None
) -> Submitted:
    """Submit a job once. Like `submit_job`; with a key, the first id of the job is claimed before anything else.

    The claim of the key costs one more round trip. Every repeat is then a repeat of that job: a crash leaves what a
    crash of `submit_job` leaves, or a claimed key that the repeat uses.

    Raises what `submit_job` raises, with JobInDoubt for an outage; KeyReused if the key belongs to another job.
    """
    try:
        if key is not None:
            ask = await _promised(backend, caller, ask, key)
        return await submit_job(backend, caller, ask, content)
    except Unavailable as error:
        raise JobInDoubt(ask.job_id, ask.run_id, error) from error


async def _promised(backend: GatewayBackend, caller: Caller, ask: JobAsk, key: Key) -> JobAsk:
    """Return the job under the id that was first claimed with this key."""
    words = ["job", ask.group, fingerprint(ask), *([ask.job_id] if key.names_job else [])]
    mark = " ".join(words)
    receipt = await backend.receipts.claim(receipt_key(caller.tenant_id, key.text), ask.job_id, mark)
    if receipt.fingerprint != mark:
        raise KeyReused
    return replace(ask, job_id=receipt.run_id)
