"""`/attention`: what a person should look at."""

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
    """Asks nobody but the stores of priced runs, every ten seconds, and NATS for the names of its streams. It answers
    while NATS is away: that is what it tells then."""
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
        "description": "`danger`: work is lost or stands still. `warning`: work goes on, but somebody should look.",
    },
    "count": {
        "type": "integer",
        "minimum": 1,
        "description": "How many runs, letters or workers it is about; 1 where there is nothing to count.",
    },
    "message": schemas.TEXT,
    "message_ja": schemas.TEXT,
    "facts": schemas.OBJECT | {"description": "What it was concluded from, by kind. Ids are ten at most."},
}

SCHEMAS: dict[str, Any] = {
    "AttentionItem": schemas.object_of(_ITEM, list(_ITEM), "One thing to look at. More kinds may follow."),
    "Attention": schemas.object_of(
        {"at": schemas.NUMBER, "items": schemas.array_of(schemas.ref("AttentionItem")) | {"maxItems": FINDINGS_MAX}},
        ["at", "items"],
        "What to look at, the most urgent first. Nothing: all is well, as far as this gateway can tell.",
    ),
}

_DESCRIPTION = """\
Dangers first; of each kind the seven worst. It answers while NATS is away, too, and says so. With authentication on,
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
        answer=schemas.json_response(schemas.ref("Attention"), "What to look at."),
        tags=("metrics",),
    ),
)
