"""`/metrics/recent`: the metrics of the last hour, for charts."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.core.trend import COUNTED, MEASURED, STEP_SECONDS, STEPS_MAX
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import NOT_AN_INSTANT, MalformedQuery, read_instant
from pyoco_server.doors.http.state import state_of
from pyoco_server.errors import Problem

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_recent_metrics(request: Request) -> Response:
    """Served from memory, so it works while NATS is down."""
    state, after = state_of(request), _read_after(request.query_params)
    now = state.backend.clock()
    points = state.trend.points(now, after)
    return json_answer({"now": now, "step_seconds": STEP_SECONDS, "from": points.begin, **points.columns})


def _read_after(query: QueryParams) -> float | None:
    """Raises MalformedQuery."""
    given = query.getlist("after")
    if not given:
        return None
    instant = read_instant(given[0]) if len(given) == 1 else None
    if instant is None:
        message = "is given more than once" if len(given) > 1 else NOT_AN_INSTANT
        raise MalformedQuery(message, problems=(Problem(("query", "after"), message, "value"),))
    return instant


def _column(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return schemas.array_of(schema) | {"maxItems": STEPS_MAX, "description": text}


_COUNT = {"type": "integer", "minimum": 0}
_WORDS = {
    "submitted": "Runs submitted.",
    "completed": "Runs that ended COMPLETED.",
    "failed": "Runs that ended FAILED.",
    "cancelled": "Runs that ended CANCELLED.",
    "in_flight": "Runs that were RUNNING or CANCELLING, at the last sample of the step; null: no sample.",
    "waiting": "Runs that were PENDING, likewise.",
    **{
        f"{name}_p{part}": f"{part} % of the runs that ended in the step {did} this many seconds or fewer; null: none "
        "ended. Right to 8 %."
        for name, did in (("wait", "had waited"), ("run", "took"))
        for part in (50, 95, 99)
    },
}
assert _WORDS.keys() == {*COUNTED, *MEASURED}

_METRICS: dict[str, Any] = {
    "now": schemas.NUMBER | {"description": "The gateway's clock."},
    "step_seconds": {"type": "integer", "enum": [STEP_SECONDS]},
    "from": schemas.NUMBER | {"description": "When the first step began; without any, when the next one did."},
    **{name: _column(_COUNT, _WORDS[name]) for name in COUNTED},
    **{name: _column(schemas.or_null(_COUNT), _WORDS[name]) for name in MEASURED[:2]},
    **{name: _column(schemas.or_null(schemas.NUMBER), _WORDS[name]) for name in MEASURED[2:]},
}

SCHEMAS: dict[str, Any] = {
    "RecentMetrics": schemas.object_of(
        _METRICS, list(_METRICS), "Finished steps of ten seconds, oldest first, by column. All have the same length."
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/metrics/recent",
        endpoint=get_recent_metrics,
        summary="Read the metrics of the last hour",
        description="From this gateway's memory, since its start, for all tenants. Ends and submissions count when the "
        "gateway receives them. It also works while NATS is down.",
        parameters=(
            schemas.query(
                "after", {"type": "number", "minimum": 0}, "Only steps that began later than this, in unix seconds."
            ),
        ),
        answer=schemas.json_response(schemas.ref("RecentMetrics"), "The available steps."),
        errors=(422,),
        tags=("metrics",),
    ),
)
