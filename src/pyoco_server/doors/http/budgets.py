"""`/budgets`: each tenant's money and the journal behind it, for people and dashboards."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.show_budget import (
    BudgetView,
    list_budgets,
    show_budget,
    show_journal,
    show_spend,
)
from pyoco_server.core.names import TAG_LENGTH_MAX, TAG_PATTERN
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.journal import Kind
from pyoco_server.core.priced.money import usd_down, usd_up
from pyoco_server.core.priced.run import TenantStatus
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Endpoint, Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import Malformed, MalformedQuery
from pyoco_server.doors.http.shapes import Answer, one_of, pattern
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of
from pyoco_server.doors.http.v1.limits import priced_of
from pyoco_server.ports.ledger.port import JournalLine, Spend

__all__ = ["OPERATIONS"]

_LIMIT_DEFAULT, _LIMIT_MAX = 50, 500
_TXN_MAX = 2**63 - 1
_DAY_SECONDS = 86_400
_SPAN_DEFAULT, _SPAN_MAX = 30 * _DAY_SECONDS, 400 * _DAY_SECONDS
_STEP_MIN = 60
#: More steps than a chart can show.
_STEPS_MAX = 1_000


Micros = Annotated[int, Meta(description="Micros of a US dollar, exactly.")]
Usd = Annotated[str, Meta(description="US dollars with four decimals: balances are rounded down, charges up.")]
#: Unix seconds, formatted from an integer, so nothing is rounded.
Seconds = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "number"})]

Limit = Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="Maximum number of entries.")]


class BudgetsQuery(Shape):
    limit: Limit = _LIMIT_DEFAULT
    after: Annotated[
        str,
        pattern(
            TAG_PATTERN,
            "must be one tenant id",
            max_length=TAG_LENGTH_MAX,
            description="Only tenants with a greater id.",
        ),
    ] = ""


class JournalQuery(Shape):
    limit: Limit = _LIMIT_DEFAULT
    before: Annotated[int, Meta(ge=1, le=_TXN_MAX, description="Only facts older than this `txn_id`.")] | None = None


class SpendQuery(Shape):
    seconds: Annotated[int, Meta(ge=_STEP_MIN, le=_SPAN_MAX, description="Length of the period, in seconds.")] = (
        _SPAN_DEFAULT
    )
    step: Annotated[
        int,
        Meta(ge=_STEP_MIN, le=_SPAN_MAX, description=f"Seconds in a step; at most {_STEPS_MAX} steps."),
    ] = _DAY_SECONDS


class Budget(msgspec.Struct):
    """A tenant's money: what is left to spend, what is set aside for runs under way, what was charged, and what was put
    in. Every amount is given twice: exact micros for programs, and dollars for people."""

    tenant_id: str
    display_name: str
    status: Annotated[str, one_of(TenantStatus)]
    balance_usd_micros: Micros
    balance_usd: Usd
    held_usd_micros: Micros
    held_usd: Usd
    charged_usd_micros: Micros
    charged_usd: Usd
    credited_usd_micros: Micros
    credited_usd: Usd


class BudgetList(msgspec.Struct):
    """By tenant id. There may be more tenants after `next_after`."""

    budgets: list[Budget]
    next_after: str | None


class BudgetJournalLine(msgspec.Struct):
    """One money fact and its effect on the tenant's accounts. Facts never change."""

    txn_id: int
    op_key: str
    kind: Annotated[str, one_of(Kind)]
    run_id: str | None
    actor: str
    memo: str | None
    created_at: Seconds
    available_usd_micros: Micros
    available_usd: Usd
    held_usd_micros: Micros
    held_usd: Usd
    charged_usd_micros: Micros
    charged_usd: Usd


class BudgetJournal(msgspec.Struct):
    """The newest first. There may be more entries before `next_before`."""

    lines: list[BudgetJournalLine]
    next_before: int | None


class BudgetSpendStep(msgspec.Struct):
    """What was charged in one step, and for how many runs."""

    start_at: Seconds
    charged_usd_micros: Micros
    charged_usd: Usd
    runs: int


class BudgetSpend(msgspec.Struct):
    """Steps without a charge are left out."""

    tenant_id: str
    now: Annotated[Seconds, Meta(description="The ledger's clock.")]
    from_: Annotated[Seconds, Meta(description="When the first step began.")] = msgspec.field(name="from")
    step_seconds: int
    steps: list[BudgetSpendStep]


async def get_budgets(request: Request) -> Response:
    asked = read_query(BudgetsQuery, request.query_params).checked(MalformedQuery, unknown=Malformed)
    views = await list_budgets(priced_of(request), caller_of(request), asked.after)
    next_after = views[-1].tenant_id if len(views) == asked.limit else None
    return json_answer(BudgetList([_budget(view) for view in views], next_after))


async def get_budget(request: Request) -> Response:
    tenant_id = request.path_params["tenant_id"]
    return json_answer(_budget(await show_budget(priced_of(request), caller_of(request), tenant_id)))


async def get_budget_journal(request: Request) -> Response:
    tenant_id = request.path_params["tenant_id"]
    asked = read_query(JournalQuery, request.query_params).checked(MalformedQuery, unknown=Malformed)
    lines = await show_journal(priced_of(request), caller_of(request), tenant_id, asked.before, asked.limit)
    next_before = lines[-1].txn_id if len(lines) == asked.limit else None
    return json_answer(BudgetJournal([_line(line) for line in lines], next_before))


async def get_budget_spend(request: Request) -> Response:
    tenant_id, reading = request.path_params["tenant_id"], read_query(SpendQuery, request.query_params)
    asked = reading.value
    if asked.seconds > asked.step * _STEPS_MAX:
        reading.wrong("step", f"gives more than {_STEPS_MAX} steps")
    reading.checked(MalformedQuery, unknown=Malformed)
    view = await show_spend(priced_of(request), caller_of(request), tenant_id, asked.seconds, asked.step)
    answer = BudgetSpend(
        tenant_id=tenant_id,
        now=_seconds(view.now_us),
        from_=_seconds(view.since_us),
        step_seconds=asked.step,
        steps=[_spend(each) for each in view.steps],
    )
    return json_answer(answer)


def _budget(view: BudgetView) -> Budget:
    """Render every amount twice: exact micros for programs, and dollars in the common format for people."""
    return Budget(
        tenant_id=view.tenant_id,
        display_name=view.display_name,
        status=view.status.value,
        balance_usd_micros=view.balance_usd_micros,
        balance_usd=usd_down(view.balance_usd_micros),
        held_usd_micros=view.held_usd_micros,
        held_usd=usd_up(view.held_usd_micros),
        charged_usd_micros=view.charged_usd_micros,
        charged_usd=usd_up(view.charged_usd_micros),
        credited_usd_micros=view.credited_usd_micros,
        credited_usd=usd_down(view.credited_usd_micros),
    )


def _line(line: JournalLine) -> BudgetJournalLine:
    return BudgetJournalLine(
        txn_id=line.txn_id,
        op_key=line.op_key,
        kind=line.kind,
        run_id=line.run_id,
        actor=line.actor,
        memo=line.memo,
        created_at=_seconds(line.created_at),
        available_usd_micros=line.available_usd_micros,
        available_usd=usd_down(line.available_usd_micros),
        held_usd_micros=line.held_usd_micros,
        held_usd=usd_down(line.held_usd_micros),
        charged_usd_micros=line.charged_usd_micros,
        charged_usd=usd_up(line.charged_usd_micros),
    )


def _spend(spend: Spend) -> BudgetSpendStep:
    return BudgetSpendStep(
        start_at=_seconds(spend.start_at),
        charged_usd_micros=spend.charged_usd_micros,
        charged_usd=usd_up(spend.charged_usd_micros),
        runs=spend.runs,
    )


def _seconds(at_us: int) -> msgspec.Raw:
    """Return Unix seconds, as everywhere outside `/v1`; formatted from the integer, so nothing is rounded."""
    seconds, rest = divmod(at_us, SECOND_US)
    return msgspec.Raw(f"{seconds}.{rest:06d}".encode())


_TENANT: dict[str, Any] = {
    "name": "tenant_id",
    "in": "path",
    "required": True,
    "schema": schemas.TEXT,
    "description": "The tenant. Only the tenant of the API key is visible, even with authentication off.",
}


def _operation(
    path: str, endpoint: Endpoint, summary: str, shape: type[msgspec.Struct], query: type[Shape] | None = None
) -> Operation:
    of_one = "{tenant_id}" in path
    return Operation(
        method="GET",
        path=path,
        endpoint=endpoint,
        summary=summary,
        parameters=(_TENANT,) if of_one else (),
        query=query,
        answer=Answer(shape, "The current data of the ledger."),
        errors=(404,) if of_one else (),
        tags=("budgets",),
    )


_ONE = "/budgets/{tenant_id}"

OPERATIONS: tuple[Operation, ...] = (
    _operation("/budgets", get_budgets, "List the tenants' budgets", BudgetList, BudgetsQuery),
    _operation(_ONE, get_budget, "Read a tenant's budget", Budget),
    _operation(f"{_ONE}/journal", get_budget_journal, "Read a tenant's journal", BudgetJournal, JournalQuery),
    _operation(f"{_ONE}/spend", get_budget_spend, "Read a tenant's spending over time", BudgetSpend, SpendQuery),
)
