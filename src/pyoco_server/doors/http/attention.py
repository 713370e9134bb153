"""`/attention`: conditions that need a person's attention."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.attend import attend
from pyoco_server.core.attention import FINDINGS_MAX, FindingKind, Severity
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Answer, one_of
from pyoco_server.doors.http.state import caller_of, state_of

__all__ = ["OPERATIONS"]


class AttentionItem(msgspec.Struct):
    """One finding. More kinds may be added."""

    kind: Annotated[str, one_of(FindingKind)]
    level: Annotated[
        str,
        one_of(
            Severity,
            description="`danger`: work is lost or has stopped. `warning`: work continues, but needs attention.",
        ),
    ]
    count: Annotated[
        int,
        Meta(ge=1, description="Number of affected runs, letters or workers; 1 if there is nothing to count."),
    ]
    message: str
    message_ja: str
    facts: Annotated[dict[str, Any], Meta(description="The facts behind the finding, by kind. At most ten ids.")]


class Attention(msgspec.Struct):
    """Findings, the most urgent first. Empty: this gateway sees no problem."""

    at: float
    items: Annotated[list[AttentionItem], Meta(max_length=FINDINGS_MAX)]


async def get_attention(request: Request) -> Response:
    """Read the stores of priced runs (every ten seconds) and the stream names from NATS, nothing else.

    Works while NATS is down: it then reports the outage.
    """
    state = state_of(request)
    found = await attend(
        state.backend,
        state.trend,
        caller_of(request),
        runs_listed=await state.feeder.caught_up(0),
        dead_letters_listed=await state.dead_letter_feeder.caught_up(0),
        outlook=state.outlook,
        lost=state.lost,
    )
    items = [msgspec.convert(each, AttentionItem, from_attributes=True) for each in found]
    return json_answer(Attention(state.backend.clock(), items))


_DESCRIPTION = """\
Dangers first; of each kind the seven worst. It works while NATS is down, and reports that. With authentication on,
flows, run ids, dead letters and money are those of the caller's tenant; queues, stores and workers are shared by all.

| `kind` | `facts` |
|---|---|
| `nats_down` | |
| `store_full` | `stuck`: only a restart of NATS helps |
| `resource_lost` | `resource`: the stream's name; `lost` |
| `index_behind` | |
| `priced_stores_silent` | `stores`: of `ledger`, `budget`, `queue` and `results` |
| `money_differs` | `audited_at` |
| `disputed_runs` | `run_ids`, `oldest_at`: when the first of them became one |
| `record_unreadable` | `run_ids` |
| `tag_without_worker` | `tag`, `depth`, `oldest_at` |
| `packs_without_worker` | `depth`, `oldest_at` |
| `workers_lost` | `worker_id`, `run_ids` |
| `failing_flow` | `flow`, `failed`, `ended`, of the last 15 minutes |
| `growing_queue` | `tag`, `depth`, `depth_before`: ten minutes ago |
| `dead_letters` | `count`, `new`: of the last hour, counted up to 1,000 |
| `pack_letters` | |
| `stale_runs` | `run_ids` |
| `schedule_overdue` | `schedules`: their names; `oldest_at`: since when the first tick is due |
| `wheel_failures` | `worker_ids` |"""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/attention",
        endpoint=get_attention,
        summary="Read what needs attention",
        description=_DESCRIPTION,
        answer=Answer(Attention, "The findings."),
        tags=("metrics",),
    ),
)
