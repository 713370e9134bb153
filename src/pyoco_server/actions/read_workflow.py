"""Read the flow.yaml that a run was submitted with."""

from __future__ import annotations

from contextlib import aclosing

from pyoco_server.errors import Corrupt, NotRepeatable, ObjectNotFound, Problem, WorkflowTooLarge
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["not_repeatable", "read_workflow"]

log = get_logger(__name__)

#: How often an object that is replaced during the read is read again: the same bytes are then stored under another id.
_READS_MAX = 5


async def read_workflow(backend: Backend, sha256: str) -> bytes:
    """Return the file as uploaded. Raises NotRepeatable if it was deleted or its bytes have changed; Unavailable."""
    for _ in range(_READS_MAX):
        try:
            info = await backend.workflows.info(sha256)
        except ObjectNotFound as error:
            raise not_repeatable("was submitted with a flow.yaml that is no longer kept", "workflow_gone") from error
        if info.sha256_hex != sha256:
            raise _damaged(sha256)
        if info.size_bytes > backend.config.workflow_yaml_max_bytes:
            raise WorkflowTooLarge
        try:
            async with aclosing(backend.workflows.read(info)) as chunks:
                return b"".join([chunk async for chunk in chunks])
        except ObjectNotFound:  # it has just been stored anew
            continue
        except Corrupt as error:
            raise _damaged(sha256) from error
    raise not_repeatable("was submitted with a flow.yaml that cannot be read: it changes too fast", "workflow_gone")


def _damaged(sha256: str) -> NotRepeatable:
    log.error("stored flow.yaml is damaged", workflow_yaml_sha256=sha256)
    return not_repeatable("was submitted with a flow.yaml whose stored bytes are damaged", "workflow_damaged")


def not_repeatable(message: str, kind: str) -> NotRepeatable:
    return NotRepeatable(f"the run {message}", problems=(Problem(("path", "run_id"), message, kind),))
