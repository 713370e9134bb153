"""`/v1/runs`: submit and read priced runs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.read_run import PricedRunReading, SignedResult, read_run
from pyoco_server.actions.priced.submit import submit
from pyoco_server.core.priced.constants import POLL_RECOMMENDED_INTERVAL_MS
from pyoco_server.core.priced.instants import SECOND_US, iso
from pyoco_server.core.priced.money import usd_exact, usd_up
from pyoco_server.core.priced.reasons import Reason, problem_type, title_of
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Status
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import REPLAYED
from pyoco_server.doors.http.v1.addresses import absolute
from pyoco_server.doors.http.v1.costs import Costs
from pyoco_server.doors.http.v1.documents import KEY_PARAMETER, TRACE_PARAMETER
from pyoco_server.doors.http.v1.limits import admit, priced_of
from pyoco_server.doors.http.v1.submissions import read_ask

__all__ = ["OPERATIONS", "SCHEMAS"]


async def submit_priced_run(request: Request) -> Response:
    """PRICED-65: check key, rate, validity, idempotency, budget. A refused submission reserves nothing."""
    visit, priced = await admit(request, "post"), priced_of(request)
    assert visit.tenant_id is not None
    now = state_of(request).backend.clock()
    ask = await read_ask(request, priced, visit.tenant_id, now)
    visit.trace_id = ask.trace_id or visit.trace_id
    new = ask.new_run(priced.new_id(), caller_of(request), visit.trace_id, now)
    visit.asked_usd_micros = new.reserved_usd_micros
    accepted = await submit(priced, new)
    run = accepted.run
    visit.trace_id = run.trace_id or visit.trace_id  # a repeat returns the trace id of the first submission
    visit.costs = visit.costs.left_with(accepted.balance_usd_micros).of_run(run)
    headers = visit.headers() | (REPLAYED if accepted.replayed else {})
    return json_answer(_receipt(run), 202, headers)


async def get_priced_run(request: Request) -> Response:
    visit = await admit(request, "get")
    assert visit.tenant_id is not None
    reading = await read_run(priced_of(request), request.path_params["run_id"], visit.tenant_id)
    visit.costs = visit.costs.left_with(reading.balance_usd_micros).of_run(reading.run)
    return json_answer(_shown(request, reading, visit.costs), headers=visit.headers())


def _receipt(run: PricedRun) -> dict[str, Any]:
    """PRICED-72, PRICED-73: render the submission as accepted, whatever its current state."""
    return {
        "run_id": run.run_id,
        "status": Status.QUEUED.value,
        "reservation": {
            "max_cost_usd": usd_exact(run.reserved_usd_micros),
            "timebox_sec": run.timebox_sec,
            "min_reliability_score": _score(run.min_reliability_e4),
        },
        "poll": {"href": f"/v1/runs/{run.run_id}", "recommended_interval_ms": POLL_RECOMMENDED_INTERVAL_MS},
        "meta": {"trace_id": run.trace_id, "profile_version": run.profile_version},
    }


def _score(e4: int) -> msgspec.Raw:
    """Return 8000 as 0.8: a JSON number with exact digits, without converting to a double."""
    whole, fraction = divmod(e4, 10_000)
    digits = f"{fraction:04d}".rstrip("0") or "0"
    return msgspec.Raw(f"{whole}.{digits}".encode())


def _shown(request: Request, reading: PricedRunReading, costs: Costs) -> dict[str, Any]:
    """PRICED-74"""
    run = reading.run
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "money_state": run.money.value,
        "cost": {
            "reserved_usd": costs.reserved_usd,
            "used_usd": costs.used_usd,
            "minimum_fee_usd": usd_up(run.minimum_fee_usd_micros),
            "budget_remaining_usd": costs.remaining_usd,
        },
        "result": _result(request, reading),
        "meta": {"created_at": iso(run.created_at), "updated_at": iso(run.updated_at), "trace_id": run.trace_id},
    }


def _result(request: Request, reading: PricedRunReading) -> dict[str, Any] | None:
    if reading.result is not None:
        return _signed(request, reading.result)
    if reading.run.status is Status.FAILED:
        return _failure(reading.run)
    return None


def _signed(request: Request, result: SignedResult) -> dict[str, Any]:
    expires_at = iso(result.expires_at * SECOND_US)
    shown: dict[str, Any] = {
        "presigned_url": absolute(request.scope, result.url),
        "sha256": result.sha256,
        "expires_at": expires_at,
        "artifacts": [
            {
                "name": item.name,
                "presigned_url": absolute(request.scope, item.url),
                "sha256": item.sha256,
                "bytes": item.size_bytes,
                "content_type": item.content_type,
                "expires_at": expires_at,
            }
            for item in result.artifacts
        ],
    }
    if result.inline is not None:  # PRICED-76
        if result.inline.omitted is None:
            shown["inline"] = {"data": result.inline.data}
        else:
            shown["inline_omitted"] = result.inline.omitted
    return shown


def _failure(run: PricedRun) -> dict[str, Any]:
    """Render the reason of the failure; never a URL."""
    try:
        reason = Reason(run.reason_code or "")
    except ValueError:  # ended by an operator, or a reason of a newer version
        reason = Reason.PACK_FAILED
    code = run.reason_code or reason.value
    return {
        "reason_code": code,
        "problem": {
            "type": problem_type(reason),
            "title": title_of(reason),
            "detail": run.error_detail or title_of(reason),
            "reason_code": code,
        },
    }


#: Defined in `documents.py`.
SCHEMAS: dict[str, Any] = {}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/runs",
        endpoint=submit_priced_run,
        summary="Submit a priced run",
        description="202 means that the run is recorded, its maximum cost is set aside, and it is queued. The result "
        "is read by polling. The `X-DPP-*` headers of every response contain the cost and the remaining budget.",
        parameters=(KEY_PARAMETER, TRACE_PARAMETER),
        body=schemas.json_body(schemas.ref("PricedSubmission")),
        status=202,
        answer=schemas.json_response(schemas.ref("PricedReceipt"), "Accepted."),
        errors=(402, 409, 422),
        problems=True,
        tags=("priced",),
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run_id}",
        endpoint=get_priced_run,
        summary="Read a priced run",
        description="A run of another tenant and one that does not exist get the same response.",
        parameters=(schemas.path_run_id, TRACE_PARAMETER),
        answer=schemas.json_response(schemas.ref("PricedRun"), "The latest state of the run."),
        errors=(404, 410),
        problems=True,
        tags=("priced",),
    ),
)
