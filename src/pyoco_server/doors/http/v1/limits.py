"""Entry checks of a priced operation: the stores are available, the tenant is active, and the rate limit allows it."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request

from pyoco_server.actions.authenticate import check_payer
from pyoco_server.actions.priced.enter import enter
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.v1.visit import Visit, visit_of
from pyoco_server.errors import DependencyUnavailable, Problem, Refused, TenantRateLimited
from pyoco_server.ports.priced import Priced

__all__ = ["admit", "priced_of", "refuse_unknown_parameters"]


def priced_of(request: Request) -> Priced:
    """Return the stores of priced runs. Raises DependencyUnavailable if this gateway has no ledger."""
    priced = state_of(request).backend.priced
    if priced is None:
        raise DependencyUnavailable("this gateway has no ledger")
    return priced


async def admit(request: Request, bucket: Literal["get", "post"]) -> Visit:
    """Return the visit with tenant, budget and rate limit filled in. One round trip to the stores.

    Raises DependencyUnavailable, KeyRefused (the tenant is not active; its rate limit is not charged, PRICED-174),
    TenantRateLimited, Refused for unknown query parameters.
    """
    visit, tenant_id = visit_of(request.scope), caller_of(request).tenant_id
    assert tenant_id is not None  # guaranteed by the guard
    visit.tenant_id = tenant_id
    entry = await enter(priced_of(request), tenant_id, bucket)
    check_payer(entry.tenant)
    visit.rate = entry.rate
    visit.costs = visit.costs.left_with(entry.balance_usd_micros)
    if not entry.rate.allowed:
        raise TenantRateLimited
    refuse_unknown_parameters(request)
    return visit


def refuse_unknown_parameters(request: Request) -> None:
    """STRICT-1. A problem document locates problems in the body, so the text names the parameter, unless its name
    could contain hidden text. Raises Refused."""
    operation = request.scope.get("operation")
    if not request.scope.get("query_string") or operation is None:
        return
    problems = []
    for each in operation.unknown_parameters(request.query_params):
        name = str(each.loc[-1])
        what = f"the query parameter {name}" if name.isascii() and name.isidentifier() else "a query parameter"
        problems.append(Problem((), f"{what} {each.msg}", each.type, each.nearest))
    if problems:
        raise Refused(problems=tuple(problems))
