"""`/attention`: conditions that need a person's attention."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.attend import attend
from pyoco_server.core.attention import FINDINGS_MAX, Kind, Level
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import caller_of, state_of

__all__ = ["OPERATIONS", "SCHEMAS"]


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
        letters_listed=await state.letter_feeder.caught_up(0),
        outlook=state.outlook,
        lost=state.lost,
    )
    return json_answer({"at": state.backend.clock(), "items": [vars(each) for each in found]})


_ITEM: dict[str, Any] = {
    "kind": {"type": "string", "enum": list(Kind)},
    "level": {
        "type": "string",
        "enum": list(Level),
        "description": "`danger`: work is lost or has stopped. `warning`: work continues, but needs attention.",
    },
    "count": {
        "type": "integer",
        "minimum": 1,
        "description": "Number of affected runs, letters or workers; 1 if there is nothing to count.",
    },
    "message": schemas.TEXT,
    "message_ja": schemas.TEXT,
    "facts": schemas.OBJECT | {"description": "The facts behind the finding, by kind. At most ten ids."},
}

SCHEMAS: dict[str, Any] = {
    "AttentionItem": schemas.object_of(_ITEM, list(_ITEM), "One finding. More kinds may be added."),
    "Attention": schemas.object_of(
        {"at": schemas.NUMBER, "items": schemas.array_of(schemas.ref("AttentionItem")) | {"maxItems": FINDINGS_MAX}},
        ["at", "items"],
        "Findings, the most urgent first. Empty: this gateway sees no problem.",
    ),
}

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
| `wheel_failures` | `worker_ids` |"""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/attention",
        endpoint=get_attention,
        summary="Read what needs attention",
        description=_DESCRIPTION,
        answer=schemas.json_response(schemas.ref("Attention"), "The findings."),
        tags=("metrics",),
    ),
)
