"""`/budgets`: each tenant's money and the journal behind it, for people and dashboards."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.show_budget import (
    BudgetView,
    list_budgets,
    show_budget,
    show_journal,
    show_spend,
)
from pyoco_server.core.names import TAG_LENGTH_MAX, TAG_PATTERN, is_tag
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.journal import Kind
from pyoco_server.core.priced.money import usd_down, usd_up
from pyoco_server.core.priced.run import TenantStatus
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import MalformedQuery
from pyoco_server.doors.http.state import caller_of
from pyoco_server.doors.http.v1.limits import priced_of
from pyoco_server.errors import Problem
from pyoco_server.ports.ledger.port import JournalLine, Spend

__all__ = ["OPERATIONS", "SCHEMAS"]

_LIMIT_DEFAULT, _LIMIT_MAX = 50, 500
_TXN_MAX = 2**63 - 1
_DAY_SECONDS = 86_400
_SPAN_DEFAULT, _SPAN_MAX = 30 * _DAY_SECONDS, 400 * _DAY_SECONDS
_STEP_MIN = 60
#: More steps than a chart can show.
_STEPS_MAX = 1_000

_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)


async def get_budgets(request: Request) -> Response:
    asked = request.query_params
    limit, after = _integer_in(asked, "limit", _LIMIT_DEFAULT, 1, _LIMIT_MAX), _after(asked)
    views = await list_budgets(priced_of(request), caller_of(request), after)
    next_after = views[-1].tenant_id if len(views) == limit else None
    return json_answer({"budgets": [_budget(view) for view in views], "next_after": next_after})


async def get_budget(request: Request) -> Response:
    tenant_id = request.path_params["tenant_id"]
    return json_answer(_budget(await show_budget(priced_of(request), caller_of(request), tenant_id)))


async def get_budget_journal(request: Request) -> Response:
    tenant_id, asked = request.path_params["tenant_id"], request.query_params
    limit = _integer_in(asked, "limit", _LIMIT_DEFAULT, 1, _LIMIT_MAX)
    before = _integer_in(asked, "before", _TXN_MAX, 1, _TXN_MAX) if "before" in asked else None
    lines = await show_journal(priced_of(request), caller_of(request), tenant_id, before, limit)
    next_before = lines[-1].txn_id if len(lines) == limit else None
    return json_answer({"lines": [_line(line) for line in lines], "next_before": next_before})


async def get_budget_spend(request: Request) -> Response:
    tenant_id, asked = request.path_params["tenant_id"], request.query_params
    seconds = _integer_in(asked, "seconds", _SPAN_DEFAULT, _STEP_MIN, _SPAN_MAX)
    step = _integer_in(asked, "step", _DAY_SECONDS, _STEP_MIN, _SPAN_MAX)
    if seconds > step * _STEPS_MAX:
        raise _malformed("step", f"gives more than {_STEPS_MAX} steps")
    view = await show_spend(priced_of(request), caller_of(request), tenant_id, seconds, step)
    return json_answer(
        {
            "tenant_id": tenant_id,
            "now": _seconds(view.now_us),
            "from": _seconds(view.since_us),
            "step_seconds": step,
            "steps": [_spend(each) for each in view.steps],
        }
    )


def _malformed(name: str, message: str) -> MalformedQuery:
    return MalformedQuery(message, problems=(Problem(("query", name), message, "value"),))


def _integer_in(query: QueryParams, name: str, default: int, at_least: int, at_most: int) -> int:
    """Raises MalformedQuery."""
    given = query.getlist(name)
    if not given:
        return default
    number = int(given[0]) if len(given) == 1 and _WHOLE.fullmatch(given[0]) else -1
    if not at_least <= number <= at_most:
        raise _malformed(name, f"must be one integer from {at_least} to {at_most}")
    return number


def _after(query: QueryParams) -> str:
    """Raises MalformedQuery."""
    given = query.getlist("after")
    if not given:
        return ""
    if len(given) > 1 or not is_tag(given[0]):
        raise _malformed("after", "must be one tenant id")
    return given[0]


def _budget(view: BudgetView) -> dict[str, Any]:
    """Render every amount twice: exact micros for programs, and dollars in the common format for people."""
    return {
        "tenant_id": view.tenant_id,
        "display_name": view.display_name,
        "status": view.status.value,
        "balance_usd_micros": view.balance_usd_micros,
        "balance_usd": usd_down(view.balance_usd_micros),
        "held_usd_micros": view.held_usd_micros,
        "held_usd": usd_up(view.held_usd_micros),
        "charged_usd_micros": view.charged_usd_micros,
        "charged_usd": usd_up(view.charged_usd_micros),
        "credited_usd_micros": view.credited_usd_micros,
        "credited_usd": usd_down(view.credited_usd_micros),
    }


def _line(line: JournalLine) -> dict[str, Any]:
    return {
        "txn_id": line.txn_id,
        "op_key": line.op_key,
        "kind": line.kind,
        "run_id": line.run_id,
        "actor": line.actor,
        "memo": line.memo,
        "created_at": _seconds(line.created_at),
        "available_usd_micros": line.available_usd_micros,
        "available_usd": usd_down(line.available_usd_micros),
        "held_usd_micros": line.held_usd_micros,
        "held_usd": usd_down(line.held_usd_micros),
        "charged_usd_micros": line.charged_usd_micros,
        "charged_usd": usd_up(line.charged_usd_micros),
    }


def _spend(spend: Spend) -> dict[str, Any]:
    return {
        "start_at": _seconds(spend.start_at),
        "charged_usd_micros": spend.charged_usd_micros,
        "charged_usd": usd_up(spend.charged_usd_micros),
        "runs": spend.runs,
    }


def _seconds(at_us: int) -> msgspec.Raw:
    """Return Unix seconds, as everywhere outside `/v1`; formatted from the integer, so nothing is rounded."""
    seconds, rest = divmod(at_us, SECOND_US)
    return msgspec.Raw(f"{seconds}.{rest:06d}".encode())


_MICROS = schemas.COUNT | {"description": "Micros of a US dollar, exactly."}
_USD = schemas.TEXT | {"description": "US dollars with four decimals: balances are rounded down, charges up."}


def _amounts(*names: str) -> dict[str, Any]:
    return {key: shape for name in names for key, shape in ((f"{name}_usd_micros", _MICROS), (f"{name}_usd", _USD))}


_BUDGET: dict[str, Any] = {
    "tenant_id": schemas.TEXT,
    "display_name": schemas.TEXT,
    "status": {"type": "string", "enum": list(TenantStatus)},
    **_amounts("balance", "held", "charged", "credited"),
}
_LINE: dict[str, Any] = {
    "txn_id": schemas.COUNT,
    "op_key": schemas.TEXT,
    "kind": {"type": "string", "enum": list(Kind)},
    "run_id": schemas.or_null(schemas.TEXT),
    "actor": schemas.TEXT,
    "memo": schemas.or_null(schemas.TEXT),
    "created_at": schemas.NUMBER,
    **_amounts("available", "held", "charged"),
}
_STEP: dict[str, Any] = {"start_at": schemas.NUMBER, **_amounts("charged"), "runs": schemas.COUNT}
_SPEND: dict[str, Any] = {
    "tenant_id": schemas.TEXT,
    "now": schemas.NUMBER | {"description": "The ledger's clock."},
    "from": schemas.NUMBER | {"description": "When the first step began."},
    "step_seconds": schemas.COUNT,
    "steps": schemas.array_of(schemas.ref("BudgetSpendStep")),
}

SCHEMAS: dict[str, Any] = {
    "Budget": schemas.object_of(
        _BUDGET,
        list(_BUDGET),
        "A tenant's money: what is left to spend, what is set aside for runs under way, what was charged, and what "
        "was put in.",
    ),
    "BudgetList": schemas.object_of(
        {"budgets": schemas.array_of(schemas.ref("Budget")), "next_after": schemas.or_null(schemas.TEXT)},
        ["budgets", "next_after"],
        "By tenant id. There may be more tenants after `next_after`.",
    ),
    "BudgetJournalLine": schemas.object_of(
        _LINE, list(_LINE), "One money fact and its effect on the tenant's accounts. Facts never change."
    ),
    "BudgetJournal": schemas.object_of(
        {"lines": schemas.array_of(schemas.ref("BudgetJournalLine")), "next_before": schemas.or_null(schemas.COUNT)},
        ["lines", "next_before"],
        "The newest first. There may be more entries before `next_before`.",
    ),
    "BudgetSpendStep": schemas.object_of(_STEP, list(_STEP), "What was charged in one step, and for how many runs."),
    "BudgetSpend": schemas.object_of(_SPEND, list(_SPEND), "Steps without a charge are left out."),
}

_TENANT_ID = {"type": "string", "pattern": TAG_PATTERN, "maxLength": TAG_LENGTH_MAX}
_TENANT: dict[str, Any] = {
    "name": "tenant_id",
    "in": "path",
    "required": True,
    "schema": schemas.TEXT,
    "description": "The tenant. Only the tenant of the API key is visible, even with authentication off.",
}


def _integer(name: str, default: int | None, at_least: int, at_most: int, text: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": at_least, "maximum": at_most}
    return schemas.query(name, schema if default is None else schema | {"default": default}, text)


_LIMIT = _integer("limit", _LIMIT_DEFAULT, 1, _LIMIT_MAX, "Maximum number of entries.")


def _operation(path: str, endpoint: Any, summary: str, schema: str, *parameters: dict[str, Any]) -> Operation:
    of_one = "{tenant_id}" in path
    return Operation(
        method="GET",
        path=path,
        endpoint=endpoint,
        summary=summary,
        parameters=(_TENANT, *parameters) if of_one else parameters,
        answer=schemas.json_response(schemas.ref(schema), "The current data of the ledger."),
        errors=((404,) if of_one else ()) + ((422,) if parameters else ()),
        tags=("budgets",),
    )


OPERATIONS: tuple[Operation, ...] = (
    _operation(
        "/budgets",
        get_budgets,
        "List the tenants' budgets",
        "BudgetList",
        _LIMIT,
        schemas.query("after", _TENANT_ID, "Only tenants with a greater id."),
    ),
    _operation("/budgets/{tenant_id}", get_budget, "Read a tenant's budget", "Budget"),
    _operation(
        "/budgets/{tenant_id}/journal",
        get_budget_journal,
        "Read a tenant's journal",
        "BudgetJournal",
        _LIMIT,
        _integer("before", None, 1, _TXN_MAX, "Only facts older than this `txn_id`."),
    ),
    _operation(
        "/budgets/{tenant_id}/spend",
        get_budget_spend,
        "Read a tenant's spending over time",
        "BudgetSpend",
        _integer("seconds", _SPAN_DEFAULT, _STEP_MIN, _SPAN_MAX, "Length of the period, in seconds."),
        _integer("step", _DAY_SECONDS, _STEP_MIN, _SPAN_MAX, f"Seconds in a step; at most {_STEPS_MAX} steps."),
    ),
)
