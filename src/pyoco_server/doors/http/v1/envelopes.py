"""`/v1/runs/{run_id}/envelope`: the result of a run, for callers with the tenant's key instead of a signed URL."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.owned import find_owned, stored_envelope
from pyoco_server.core.priced.envelope import ENVELOPE_CONTENT_TYPE
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import state_of
from pyoco_server.doors.http.v1.documents import TRACE_PARAMETER
from pyoco_server.doors.http.v1.limits import admit, priced_of
from pyoco_server.doors.http.v1.pieces import in_pieces
from pyoco_server.errors import Problem, Refused

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_priced_envelope(request: Request) -> Response:
    """PRICED-78, PRICED-80, PRICED-130: return the stored bytes, verified against the recorded hash."""
    visit, priced = await admit(request, "get"), priced_of(request)
    assert visit.tenant_id is not None
    owned = await find_owned(priced, request.path_params["run_id"], visit.tenant_id)
    # set first, error responses need the amounts too
    visit.costs = visit.costs.left_with(owned.balance_usd_micros).of_run(owned.run)
    result = owned.result
    if result is None:
        raise _no_envelope(owned.run)
    with contextlib.ExitStack() as held:
        # each result is held in memory completely
        held.enter_context(state_of(request).downloads.turn(visit.tenant_id))
        data = await stored_envelope(priced, owned.run, result, owned.now_us)
        return in_pieces(data, visit.headers() | _headers(result, data), held.pop_all().close)


def _headers(result: ResultPointer, data: bytes) -> dict[str, str]:
    return {
        "ETag": f'"{result.sha256}"',
        "Content-Length": str(len(data)),
        "Content-Type": ENVELOPE_CONTENT_TYPE,
        # The content comes from a pack and is meant for programs and our page; browsers must not render it as a page.
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
    }


def _no_envelope(run: PricedRun) -> Refused:
    """Build the error for a run without an envelope.

    The owner may see that the run exists, so it is not a 404; among the reasons of contract 10.2 it is an invalid
    request for this run: 422, with the status in `errors`.
    """
    message = f"the run is {run.status.value}; only a COMPLETED one has an envelope"
    return Refused(message, problems=(Problem((), message, "status"),))


_ARTIFACT = schemas.object_of(
    {"key": schemas.TEXT, "sha256": schemas.TEXT, "bytes": schemas.COUNT, "content_type": schemas.TEXT},
    ["key", "sha256", "bytes", "content_type"],
    "A file beside the envelope. `GET /v1/runs/{run_id}` returns its signed URL.",
)
_COST = ("reserved_usd", "used_usd", "minimum_fee_usd")
_LOGS = ("discard_log", "blocked_log")
_ENVELOPE: dict[str, Any] = {
    "schema_version": schemas.TEXT,
    "run_id": {"type": "string", "format": "uuid"},
    "pack_type": schemas.TEXT,
    "status": {"type": "string", "enum": ["COMPLETED"]},
    "generated_at": {"type": "string", "format": "date-time"},
    "cost": schemas.object_of(dict.fromkeys(_COST, schemas.TEXT), list(_COST), "US dollars, with four decimals."),
    "data": schemas.OBJECT | {"description": 'The pack\'s data. A member that was too large is `{"$artifact": name}`.'},
    "artifacts": {"type": "object", "additionalProperties": _ARTIFACT},
    "logs": schemas.object_of(
        dict.fromkeys(_LOGS, schemas.array_of(schemas.OBJECT)), list(_LOGS), "What was left out."
    ),
    "meta": schemas.OBJECT,
}

SCHEMAS: dict[str, Any] = {
    "PricedEnvelope": schemas.object_of(_ENVELOPE, list(_ENVELOPE), "The result document of a priced run.")
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/v1/runs/{run_id}/envelope",
        endpoint=get_priced_envelope,
        summary="Read the result of a priced run",
        description="The stored bytes, compared with the SHA-256 that was recorded when the run ended (it is the "
        "`ETag`), wherever results are stored. A run that is not COMPLETED has none: 422, with its status in `errors`.",
        parameters=(schemas.path_run_id, TRACE_PARAMETER),
        answer=schemas.json_response(schemas.ref("PricedEnvelope"), "The envelope."),
        errors=(404, 410, 422),
        problems=True,
        tags=("priced",),
    ),
)
