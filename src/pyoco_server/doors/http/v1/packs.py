"""`/v1/packs`: which packs can be submitted, and what is missing for the others."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.list_packs import list_packs
from pyoco_server.core.packs.ability import Offer
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Answer
from pyoco_server.doors.http.v1.documents import TRACE_PARAMETER
from pyoco_server.doors.http.v1.limits import admit, priced_of

__all__ = ["OPERATIONS"]


class PricedPack(msgspec.Struct):
    """A pack that is offered here. `available` false: no worker can execute it now, a submission is refused with 422,
    and `missing` says why. Null: unknown, because no worker takes priced runs now; a run waits for one. `missing` may
    list what some workers lack while others can execute the pack. `provides`: what inputs may ask for, such as the
    languages of ocr; null: anything."""

    pack_type: str
    available: bool | None
    missing: list[str]
    provides: list[str] | None


class PricedPacks(msgspec.Struct):
    """The packs that are offered here."""

    items: list[PricedPack]


async def get_packs(request: Request) -> Response:
    visit = await admit(request, "get")
    found = await list_packs(priced_of(request))
    return json_answer(PricedPacks([_shown(name, offer) for name, offer in found]), headers=visit.headers())


def _shown(name: str, offer: Offer) -> PricedPack:
    provides = None if offer.provides is None else list(offer.provides)
    return PricedPack(name, offer.is_executed, list(offer.missing), provides)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/v1/packs",
        endpoint=get_packs,
        summary="List the packs, and what is missing for them",
        description="As reported by the live workers.",
        parameters=(TRACE_PARAMETER,),
        answer=Answer(PricedPacks, "The packs that are offered here."),
        problems=True,
        tags=("priced",),
    ),
)
