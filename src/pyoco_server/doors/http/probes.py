"""`/healthz` and `/readyz`: probes for load balancers of priced requests."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.check_ready import READY_SECONDS
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import state_of

__all__ = ["OPERATIONS", "SCHEMAS"]

_NO_STORE = {"Cache-Control": "no-store"}


async def get_healthz(_: Request) -> Response:
    """PRICED-177: responds while the process serves HTTP; checks nothing else."""
    return json_answer({"status": "ok"}, headers=_NO_STORE)


async def get_readyz(request: Request) -> Response:
    """PRICED-178"""
    readiness = await state_of(request).readiness()
    return json_answer(readiness.document(), 200 if readiness.is_ready else 503, _NO_STORE)


_WORD = {"type": "string", "enum": ["ok", "fail"]}
_CHECKS = dict.fromkeys(("ledger", "budget", "queue", "results"), _WORD) | {
    "ledger_identity": _WORD | {"description": "`fail`: the ledger is not the one that this deployment uses."},
}

SCHEMAS: dict[str, Any] = {
    "PricedReady": schemas.object_of(
        {"status": _WORD, "checks": schemas.object_of(_CHECKS, list(_CHECKS), "Which of its stores answer.")},
        ["status", "checks"],
        "Whether priced runs can be submitted here.",
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/healthz",
        endpoint=get_healthz,
        any_query=True,
        summary="Is the gateway alive?",
        answer=schemas.json_response(schemas.ref("Health"), "The process serves HTTP. Nothing else is checked."),
        open=True,
        tags=("health",),
    ),
    Operation(
        method="GET",
        path="/readyz",
        endpoint=get_readyz,
        any_query=True,
        summary="Can priced runs be submitted?",
        description=f"The ledger, the budget, the queue and the store of results have {READY_SECONDS} s to answer. The "
        "queue must also accept writes, and the ledger must be the one that this deployment uses.",
        answer=schemas.json_response(schemas.ref("PricedReady"), "All of them answer."),
        other_answers={503: schemas.json_response(schemas.ref("PricedReady"), "Priced runs cannot be submitted.")},
        open=True,
        tags=("health",),
    ),
)
