"""`/healthz` and `/readyz`: probes for load balancers of priced requests."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.check_ready import READY_SECONDS
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.health import Health
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Answer
from pyoco_server.doors.http.state import state_of

__all__ = ["OPERATIONS"]

_NO_STORE = {"Cache-Control": "no-store"}


Word = Literal["ok", "fail"]


class PricedChecks(msgspec.Struct):
    """Which of its stores answer."""

    ledger: Word
    budget: Word
    queue: Word
    results: Word
    ledger_identity: Annotated[Word, Meta(description="`fail`: the ledger is not the one that this deployment uses.")]


class PricedReady(msgspec.Struct):
    """Whether priced runs can be submitted here."""

    status: Word
    checks: PricedChecks


async def get_healthz(_: Request) -> Response:
    """PRICED-177: responds while the process serves HTTP; checks nothing else."""
    return json_answer(Health("ok"), headers=_NO_STORE)


async def get_readyz(request: Request) -> Response:
    """PRICED-178"""
    readiness = await state_of(request).readiness()
    return json_answer(readiness.document(), 200 if readiness.is_ready else 503, _NO_STORE)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/healthz",
        endpoint=get_healthz,
        any_query=True,
        summary="Is the gateway alive?",
        answer=Answer(Health, "The process serves HTTP. Nothing else is checked."),
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
        answer=Answer(PricedReady, "All of them answer."),
        other_answers={503: Answer(PricedReady, "Priced runs cannot be submitted.")},
        open=True,
        tags=("health",),
    ),
)
