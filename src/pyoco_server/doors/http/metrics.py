"""`/metrics`: metrics for Prometheus."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.measure import measure
from pyoco_server.actions.programs.measure import measure_programs
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.exposition import CONTENT_TYPE, Moment, render
from pyoco_server.doors.http.log_exposition import LogFigures
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import state_of
from pyoco_server.loops.schedule_tally import ScheduleFigures

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_metrics(request: Request) -> Response:
    """FLOW-129 to FLOW-135"""
    state = state_of(request)
    await state.settled()
    await state.dead_letters_settled()
    figures = await measure(state.backend, state.tally.lag)
    state.tally.logs.add(figures.reported_logs)
    moment = Moment(
        figures=figures,
        tally=state.tally,
        operations=request.app.state.operations,
        watchers=state.hub.count,
        version=request.app.version,
        logs=LogFigures(state.tally.logs, figures.log_bytes),
        programs=await measure_programs(state.backend, state.run_times, dict(state.duplicates)),
        schedules=ScheduleFigures() if state.schedules is None else state.schedules.figures(),
    )
    return Response(await render(moment), headers={"Content-Type": CONTENT_TYPE})


SCHEMAS: dict[str, Any] = {}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/metrics",
        endpoint=get_metrics,
        any_query=True,
        summary="Read the metrics",
        description="In the text format of Prometheus, version 0.0.4. The figures cover all tenants.",
        answer={
            "description": "The current figures.",
            "content": {"text/plain": {"schema": schemas.TEXT}},
        },
        tags=("metrics",),
    ),
)
