"""`/queues`: waiting runs by tag."""

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
    | {"description": "PENDING runs, and runs that a worker released and no worker has taken for a while."},
    "oldest_at": _OR_NUMBER
    | {"description": "When the oldest of them was submitted or released; null: no run is waiting."},
    "oldest_age_seconds": _OR_NUMBER,
    "workers_alive": _COUNT | {"description": "Live workers with this tag. One with several tags counts for each."},
    "slots": _COUNT,
    "slots_busy": _COUNT,
    "depth_before": schemas.or_null(_COUNT) | {"description": "The depth ten minutes ago; null: not known yet."},
    "drained_per_minute": _OR_NUMBER
    | {"description": "Runs of this tag that ended per minute, averaged over up to ten minutes; null: not known yet."},
    "eta_seconds": _OR_NUMBER
    | {"description": "Time until the queue is empty at that rate; null: no run is waiting, or no runs are ending."},
}

_PACKS: dict[str, Any] = {
    "depth": _COUNT,
    "oldest_at": _OR_NUMBER | {"description": "When the oldest of them was submitted; null: no run is waiting."},
    "oldest_age_seconds": _OR_NUMBER,
    "workers_alive": _COUNT | {"description": "All live workers: any of them may take a priced run."},
}

SCHEMAS: dict[str, Any] = {
    "WaitingPacks": schemas.object_of(_PACKS, list(_PACKS), "The waiting priced runs."),
    "Queue": schemas.object_of(_QUEUE, list(_QUEUE), "The runs waiting for one tag, and the workers that serve it."),
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
        description="Tags with waiting runs, then other tags of live workers. Queues are shared by all tenants. The "
        "earlier depth and the rate come from this gateway's memory: they are null for a while after its start.",
        answer=schemas.json_response(schemas.ref("Queues"), "The queues and their workers."),
        tags=("metrics",),
    ),
)
