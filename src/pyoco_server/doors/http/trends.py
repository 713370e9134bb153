"""`/metrics/recent`: the metrics of the last hour, for charts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.core.trend import COUNTED, MEASURED, STEP_SECONDS, STEPS_MAX
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.filters import UnixSeconds
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import Malformed, MalformedQuery
from pyoco_server.doors.http.shapes import Answer, Count
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import state_of

__all__ = ["OPERATIONS"]


class RecentQuery(Shape):
    after: (
        Annotated[UnixSeconds, Meta(description="Only steps that began later than this, in unix seconds.")] | None
    ) = None


def _column(text: str) -> Meta:
    return Meta(max_length=STEPS_MAX, description=text)


def _percentile(part: int, did: str) -> Meta:
    return _column(
        f"{part} % of the runs that ended in the step {did} this many seconds or fewer; null: none ended. Right to 8 %."
    )


class RecentMetrics(msgspec.Struct, kw_only=True):
    """Finished steps of ten seconds, oldest first, by column. All have the same length."""

    now: Annotated[float, Meta(description="The gateway's clock.")]
    step_seconds: Annotated[int, Meta(ge=STEP_SECONDS, le=STEP_SECONDS)]
    from_: Annotated[float, Meta(description="When the first step began; without any, when the next one did.")] = (
        msgspec.field(name="from")
    )
    submitted: Annotated[list[Count], _column("Runs submitted.")]
    completed: Annotated[list[Count], _column("Runs that ended COMPLETED.")]
    failed: Annotated[list[Count], _column("Runs that ended FAILED.")]
    cancelled: Annotated[list[Count], _column("Runs that ended CANCELLED.")]
    in_flight: Annotated[
        list[Count | None],
        _column("Runs RUNNING or CANCELLING at the last sample of the step; null: no sample."),
    ]
    waiting: Annotated[list[Count | None], _column("Runs that were PENDING, likewise.")]
    wait_p50: Annotated[list[float | None], _percentile(50, "had waited")]
    wait_p95: Annotated[list[float | None], _percentile(95, "had waited")]
    wait_p99: Annotated[list[float | None], _percentile(99, "had waited")]
    run_p50: Annotated[list[float | None], _percentile(50, "took")]
    run_p95: Annotated[list[float | None], _percentile(95, "took")]
    run_p99: Annotated[list[float | None], _percentile(99, "took")]


assert {*COUNTED, *MEASURED} <= set(RecentMetrics.__struct_fields__)


async def get_recent_metrics(request: Request) -> Response:
    """Served from memory, so it works while NATS is down."""
    state = state_of(request)
    after = read_query(RecentQuery, request.query_params).checked(MalformedQuery, unknown=Malformed).after
    now = state.backend.clock()
    points = state.trend.points(now, after)
    columns: dict[str, list[Any]] = points.columns
    return json_answer(RecentMetrics(now=now, step_seconds=STEP_SECONDS, from_=points.begin, **columns))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/metrics/recent",
        endpoint=get_recent_metrics,
        summary="Read the metrics of the last hour",
        description="From this gateway's memory, since its start, for all tenants. Ends and submissions count when the "
        "gateway receives them. It also works while NATS is down.",
        query=RecentQuery,
        answer=Answer(RecentMetrics, "The available steps."),
        errors=(422,),
        tags=("metrics",),
    ),
)
