"""`/health` and `/ready`: liveness and readiness of the gateway."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.doors.http.answers import RESOURCE_RETRY_SECONDS, error_body, json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Absent, Answer
from pyoco_server.doors.http.state import State, state_of
from pyoco_server.errors import NoRoom, PyocoError, ResourceMissing, Unavailable
from pyoco_server.ports.runs.port import NO_RUN
from pyoco_server.ports.store_state import StoreState

__all__ = ["OPERATIONS", "Health"]

_READY_SECONDS = 2.0


class Health(msgspec.Struct):
    """The state of the gateway."""

    status: str


class Ready(msgspec.Struct):
    """Whether this gateway can take work."""

    status: str
    nats: bool | Absent = UNSET
    index: bool | Absent = UNSET
    store: bool | Absent = UNSET
    stuck: bool | Absent = UNSET
    missing: list[str] | Absent = UNSET


async def get_health(_: Request) -> Response:
    """FLOW-63: responds whenever the process serves HTTP; checks nothing else."""
    return json_answer(Health("ok"))


async def get_ready(request: Request) -> Response:
    """Check NATS, the streams, the lists, and the disk space of NATS.

    Ready means: NATS answers, no stream is missing, lists are current, and the last write was not refused for lack of
    space. Costs one read from the leader of the runs' stream and one listing of the streams. It does not write, so a
    full disk shows at the first submission; a gateway that writes nothing cannot detect it.
    """
    state = state_of(request)
    usable, missing = await asyncio.gather(_answers(state), _missing(state))
    indexed = await state.feeder.caught_up(0)
    store = state.backend.store_state()
    stores = store is StoreState.TAKES
    facts = {"nats": usable, "index": indexed, "store": stores}
    if missing:
        error = ResourceMissing(missing[0])
        body = error_body(error) | {"status": "not ready", **facts, "missing": missing}
        return json_answer(body, 503, {"Retry-After": str(RESOURCE_RETRY_SECONDS)})
    if all(facts.values()):
        return json_answer(Ready("ready", nats=True, index=True, store=True))
    if not stores:
        facts["stuck"] = store is StoreState.STUCK
    reason = Unavailable() if stores else NoRoom()
    return json_answer(error_body(reason) | {"status": "not ready", **facts}, 503, {"Retry-After": "1"})


async def _answers(state: State) -> bool:
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await state.backend.runs.find(NO_RUN)
    except ResourceMissing:  # NATS answers; `missing` reports the resource
        return True
    except (PyocoError, TimeoutError):
        return False
    return True


async def _missing(state: State) -> list[str]:
    """SAFE-14. One round trip shared by all concurrent callers; returns nothing while NATS does not answer."""
    try:
        async with asyncio.timeout(_READY_SECONDS):
            return [each.name for each in await state.missing()]
    except (PyocoError, TimeoutError):
        return []


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/health",
        endpoint=get_health,
        any_query=True,
        summary="Is the gateway alive?",
        answer=Answer(Health, "The process serves HTTP. NATS is not checked."),
        open=True,
        tags=("health",),
    ),
    Operation(
        method="GET",
        path="/ready",
        endpoint=get_ready,
        any_query=True,
        summary="Can the gateway take work?",
        answer=Answer(Ready, "NATS accepts writes, no stream is missing, and lists are current."),
        open=True,
        tags=("health",),
    ),
)
