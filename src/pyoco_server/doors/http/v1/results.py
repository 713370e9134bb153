"""`/v1/results/{token}`: the bytes of a result, for holders of a signed URL (contract 10.6)."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.core.priced.result_key import tenant_of
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import state_of
from pyoco_server.doors.http.v1.limits import priced_of, refuse_unknown_parameters
from pyoco_server.doors.http.v1.pieces import in_pieces
from pyoco_server.doors.http.v1.visit import visit_of
from pyoco_server.errors import ObjectNotFound
from pyoco_server.ports.results.port import ResultHead

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_priced_result(request: Request) -> Response:
    """PRICED-81: a bad signature, an expired token and a missing object get the same response.

    One round trip to the store.
    """
    refuse_unknown_parameters(request)
    state, priced = state_of(request), priced_of(request)
    key = priced.results.opens(request.path_params["token"], int(state.backend.clock()))
    if key is None:
        raise ObjectNotFound
    if request.method == "HEAD":
        head = await priced.results.head(key)
        if head is None:
            raise ObjectNotFound
        return Response(headers=_headers(request, head))
    with contextlib.ExitStack() as held:
        held.enter_context(state.downloads.turn(tenant_of(key)))  # each result is held in memory completely
        found = await priced.results.get(key)
        if found is None:
            raise ObjectNotFound
        data, head = found
        return in_pieces(data, _headers(request, head), held.pop_all().close)


def _headers(request: Request, head: ResultHead) -> dict[str, str]:
    """Headers for a download: a browser must not render or run what a pack wrote under our origin."""
    return {
        **visit_of(request.scope).headers(),
        "ETag": f'"{head.sha256}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "Content-Length": str(head.size_bytes),
        # The stored type, reduced to valid header characters. Set explicitly, as the framework would add its own.
        "Content-Type": head.content_type.encode("latin-1", "replace").decode("latin-1"),
    }


SCHEMAS: dict[str, Any] = {}

_BYTES = {"type": "string", "format": "binary"}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/v1/results/{token}",
        endpoint=get_priced_result,
        summary="Fetch a result of a priced run",
        description="The address is `result.presigned_url` of a run that has completed. It needs no key, and is "
        "invalid after its expiry. If results are stored in S3, the URLs point there.",
        parameters=(
            {
                "name": "token",
                "in": "path",
                "required": True,
                "schema": schemas.TEXT,
                "description": "From a signed address.",
            },
        ),
        answer={
            "description": "The stored bytes, of the stored type.",
            "content": {"application/json": {"schema": _BYTES}, "application/octet-stream": {"schema": _BYTES}},
        },
        errors=(404,),
        problems=True,
        open=True,
        tail=True,
        tags=("priced",),
    ),
)
