"""The state of one `/v1` request, which every response shows, whatever its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from pyoco_server.core.priced.submission import TRACE_ID
from pyoco_server.doors.http.state import State
from pyoco_server.doors.http.v1.costs import UNKNOWN, Costs
from pyoco_server.ports.ledger.port import Rate

__all__ = ["MCP", "ROOT", "Visit", "is_of_payers", "is_v1", "logged_path", "visit_of"]

ROOT = "/v1"
#: The endpoint for agents. It leads to `/v1`, and its entry checks respond with problem documents, too.
MCP = "/mcp/"

_RESULTS = f"{ROOT}/results/"
_INPUTS = f"{ROOT}/inputs"


def is_v1(path: str) -> bool:
    """Includes paths below `/v1` that do not exist."""
    return path.startswith(f"{ROOT}/") or path == ROOT


def is_of_payers(path: str) -> bool:
    """Return whether the path always requires a key, whatever the settings, because money is at stake (PRICED-170)."""
    return is_v1(path) or path in {MCP, MCP.rstrip("/")}


def logged_path(path: str) -> str:
    """Return the path for the log: the path of a result works as a credential and is redacted (PRICED-171)."""
    return _RESULTS if path.startswith(_RESULTS) else path


@dataclass
class Visit:
    """Filled in while the request passes the checks."""

    path: str
    trace_id: str
    tenant_id: str | None = None
    costs: Costs = UNKNOWN
    #: The amount that a submission asks to reserve.
    asked_usd_micros: int = 0
    #: None until the rate limit was checked.
    rate: Rate | None = None

    def headers(self) -> dict[str, str]:
        """Headers of every response (PRICED-64, PRICED-66, PRICED-82, PRICED-173)."""
        headers = {"X-Trace-Id": self.trace_id, "Cache-Control": "no-store"}
        if self.rate is not None:
            headers["X-RateLimit-Limit"] = str(self.rate.limit)
            headers["X-RateLimit-Remaining"] = str(self.rate.remaining)
            headers["X-RateLimit-Reset"] = str(self.rate.reset_at)
        if not self.is_of_result:
            headers |= self.costs.headers()
        return headers

    @property
    def is_of_result(self) -> bool:
        """Whether the path works as a credential for a result."""
        return self.path.startswith(_RESULTS)

    @property
    def is_of_inputs(self) -> bool:
        return self.path == _INPUTS

    @property
    def logged_path(self) -> str:
        return logged_path(self.path)


def visit_of(scope: Scope) -> Visit:
    """Return the visit of this request, created on first use."""
    visit = scope.get("visit")
    if visit is None:
        state: State = scope["app"].state.gateway
        given = _given_trace_id(scope)
        trace_id = given or f"t_{state.backend.new_id().replace('-', '')}"
        visit = scope["visit"] = Visit(path=scope["path"], trace_id=trace_id)
    return cast(Visit, visit)


def _given_trace_id(scope: Scope) -> str | None:
    """Return the trace id header, or None if it is not a valid trace id (PRICED-64)."""
    for name, value in scope["headers"]:
        if name == b"x-trace-id":
            text: str = value.decode("latin-1")
            return text if TRACE_ID.fullmatch(text) else None
    return None
