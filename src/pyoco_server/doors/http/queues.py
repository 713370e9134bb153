"""`/queues`: waiting runs by tag."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.list_queues import QUEUES_MAX, list_queues
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Absent, Answer, Count
from pyoco_server.doors.http.state import state_of

__all__ = ["OPERATIONS"]


class Queue(msgspec.Struct):
    """The runs waiting for one tag, and the workers that serve it."""

    tag: str
    depth: Annotated[
        Count,
        Meta(description="PENDING runs, and runs that a worker released and no worker has taken for a while."),
    ]
    oldest_at: Annotated[
        float | None,
        Meta(description="When the oldest of them was submitted or released; null: no run is waiting."),
    ]
    oldest_age_seconds: float | None
    workers_alive: Annotated[
        Count, Meta(description="Live workers with this tag. One with several tags counts for each.")
    ]
    slots: Count
    slots_busy: Count
    depth_before: Annotated[Count | None, Meta(description="The depth ten minutes ago; null: not known yet.")]
    drained_per_minute: Annotated[
        float | None,
        Meta(
            description="Runs of this tag that ended per minute, averaged over up to ten minutes; null: not known yet."
        ),
    ]
    eta_seconds: Annotated[
        float | None,
        Meta(description="Time until the queue is empty at that rate; null: no run is waiting, or no runs are ending."),
    ]


class WaitingPacks(msgspec.Struct):
    """The waiting priced runs."""

    depth: Count
    oldest_at: Annotated[
        float | None, Meta(description="When the oldest of them was submitted; null: no run is waiting.")
    ]
    oldest_age_seconds: float | None
    workers_alive: Annotated[Count, Meta(description="All live workers: any of them may take a priced run.")]


class Queues(msgspec.Struct):
    """The queues as they were at this instant."""

    at: float
    items: Annotated[list[Queue], Meta(max_length=QUEUES_MAX)]
    #: Earlier versions have none.
    packs: WaitingPacks | Absent = msgspec.UNSET


async def get_queues(request: Request) -> Response:
    state = state_of(request)
    await state.settled()
    queues = await list_queues(state.backend, state.trend)
    return json_answer(msgspec.convert(queues, Queues, from_attributes=True))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/queues",
        endpoint=get_queues,
        summary="List the queues, the longest first",
        description="Tags with waiting runs, then other tags of live workers. Queues are shared by all tenants. The "
        "earlier depth and the rate come from this gateway's memory: they are null for a while after its start.",
        answer=Answer(Queues, "The queues and their workers."),
        tags=("metrics",),
    ),
)
