"""`/queues`: what waits, by tag."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.list_queues import QUEUES_MAX, list_queues
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import state_of

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_queues(request: Request) -> Response:
    state = state_of(request)
    await state.settled()
    queues = await list_queues(state.backend, state.trend)
    items = [vars(queue) for queue in queues.items]
    return json_answer({"at": queues.at, "items": items, "packs": vars(queues.packs)})


_COUNT = {"type": "integer", "minimum": 0}
_OR_NUMBER = schemas.or_null(schemas.NUMBER)
_QUEUE: dict[str, Any] = {
    "tag": schemas.TEXT,
    "depth": _COUNT
    | {"description": "PENDING runs, and those that a worker has handed back and that nobody has taken for a while."},
    "oldest_at": _OR_NUMBER
    | {"description": "When the oldest of them was submitted or handed back; null: nothing waits."},
    "oldest_age_seconds": _OR_NUMBER,
    "workers_alive": _COUNT | {"description": "Live workers with this tag. One with several tags counts for each."},
    "slots": _COUNT,
    "slots_busy": _COUNT,
    "depth_before": schemas.or_null(_COUNT) | {"description": "Ten minutes ago; null: not known, yet."},
    "drained_per_minute": _OR_NUMBER
    | {"description": "Runs of this tag that ended per minute, over ten minutes at most; null: not known, yet."},
    "eta_seconds": _OR_NUMBER
    | {"description": "Until what waits now is worked off at that pace; null: nothing waits, or nobody works."},
}

_PACKS: dict[str, Any] = {
    "depth": _COUNT,
    "oldest_at": _OR_NUMBER | {"description": "When the oldest of them was submitted; null: nothing waits."},
    "oldest_age_seconds": _OR_NUMBER,
    "workers_alive": _COUNT | {"description": "All live workers: any of them may take a priced run."},
}

SCHEMAS: dict[str, Any] = {
    "WaitingPacks": schemas.object_of(_PACKS, list(_PACKS), "The priced runs that wait."),
    "Queue": schemas.object_of(_QUEUE, list(_QUEUE), "The runs that wait for one tag, and who serves it."),
    "Queues": schemas.object_of(
        {
            "at": schemas.NUMBER,
            "items": schemas.array_of(schemas.ref("Queue")) | {"maxItems": QUEUES_MAX},
            "packs": schemas.ref("WaitingPacks"),
        },
        ["at", "items"],
        "The queues as they were at this instant.",
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/queues",
        endpoint=get_queues,
        summary="List the queues, the longest first",
        description="Tags with waiting runs, then other tags of live workers. Queues are shared by all tenants. What "
        "was ten minutes ago, and the pace, are of this gateway's own memory: after its start they are null at first.",
        answer=schemas.json_response(schemas.ref("Queues"), "What waits, and who serves it."),
        tags=("metrics",),
    ),
)
