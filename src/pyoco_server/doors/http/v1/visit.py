"""One request to `/v1`, as far as it is known: its answer shows that, whatever the answer turns out to be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from pyoco_server.doors.http.state import State
from pyoco_server.doors.http.v1.costs import UNKNOWN, Costs
from pyoco_server.ports.ledger.port import Rate

__all__ = ["MCP", "ROOT", "TRACE_ID", "Visit", "is_of_payers", "is_v1", "logged_path", "visit_of"]

ROOT = "/v1"
#: Where agents ask. It leads to `/v1`, and answers with problems at its entrance, too.
MCP = "/mcp/"
#: PRICED-64
TRACE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_RESULTS = f"{ROOT}/results/"
_INPUTS = f"{ROOT}/inputs"


def is_v1(path: str) -> bool:
    """Also for paths below it that nobody serves."""
    return path.startswith(f"{ROOT}/") or path == ROOT


def is_of_payers(path: str) -> bool:
    """Where a key is needed whatever the settings say: behind it money is at stake (PRICED-170)."""
    return is_v1(path) or path in {MCP, MCP.rstrip("/")}


def logged_path(path: str) -> str:
    """As it may be told in the log: that of a result opens it to whoever reads it (PRICED-171)."""
    return _RESULTS if path.startswith(_RESULTS) else path


@dataclass
class Visit:
    """Filled in on the way through the checks."""

    path: str
    trace_id: str
    tenant_id: str | None = None
    costs: Costs = UNKNOWN
    #: What a submission wants to be set aside.
    asked_usd_micros: int = 0
    #: None: nobody has asked for a token yet.
    rate: Rate | None = None

    def headers(self) -> dict[str, str]:
        """What every answer carries (PRICED-64, PRICED-66, PRICED-82, PRICED-173)."""
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
        """Its path opens a result to whoever reads it."""
        return self.path.startswith(_RESULTS)

    @property
    def is_of_inputs(self) -> bool:
        return self.path == _INPUTS

    @property
    def logged_path(self) -> str:
        return logged_path(self.path)


def visit_of(scope: Scope) -> Visit:
    """The one of this request; it begins with whoever asks first."""
    visit = scope.get("visit")
    if visit is None:
        state: State = scope["app"].state.gateway
        told = _told(scope)
        trace_id = told or f"t_{state.backend.new_id().replace('-', '')}"
        visit = scope["visit"] = Visit(path=scope["path"], trace_id=trace_id)
    return cast(Visit, visit)


def _told(scope: Scope) -> str | None:
    """A header that cannot be a trace id is passed over (PRICED-64)."""
    for name, value in scope["headers"]:
        if name == b"x-trace-id":
            text: str = value.decode("latin-1")
            return text if TRACE_ID.fullmatch(text) else None
    return None
