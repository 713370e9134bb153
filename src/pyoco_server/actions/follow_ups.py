"""What became of a failed run: its dead letter, and the runs that repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.port import DeadLetterFilter
from pyoco_server.ports.index.port import EVERYBODY

__all__ = ["FollowUps", "follow_ups"]

_RERUNS_MAX = 20


@dataclass(frozen=True)
class FollowUps:
    #: None: it is not kept.
    letter_id: int | None
    #: Newest first.
    rerun_ids: list[str]


async def follow_ups(backend: GatewayBackend, caller: Caller, run: Run) -> FollowUps | None:
    """Return what became of a failed run (CLI-18). None: it has not failed. Two index reads, no round trip.

    Raises Unavailable.
    """
    if run.status is not RunState.FAILED:
        return None
    tenant_id = caller.tenant_id or EVERYBODY
    dead_letters = await backend.dead_letter_index.page(DeadLetterFilter(run_id=run.run_id, tenant_id=tenant_id), 1)
    reruns = await backend.index.repeats(run.run_id, tenant_id, _RERUNS_MAX)
    return FollowUps(dead_letters.items[0].letter_id if dead_letters.items else None, reruns)
