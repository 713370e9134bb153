"""What a worker announces about its flows: as much as its registry record has room for (APP-10)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyoco_server.core.offered_flow import OfferedFlow

__all__ = ["BYTES_MAX", "NOTHING_ANNOUNCED", "Announcement", "Announcer", "announcement_of"]

#: The record is written at every heartbeat, and read by every gateway.
BYTES_MAX: Final = 262_144


@dataclass(frozen=True)
class Announcement:
    """The flows of a worker, as its record has them."""

    flows: tuple[OfferedFlow, ...] = ()
    #: These are all flows that it executes by name.
    complete: bool = False


NOTHING_ANNOUNCED: Final = Announcement()


class Announcer:
    """Keeps the announcement of the flows that were announced last: a record is built at every heartbeat."""

    def __init__(self) -> None:
        self._offered: tuple[OfferedFlow, ...] | None = None
        self._last = NOTHING_ANNOUNCED

    def of(self, offered: tuple[OfferedFlow, ...] | None) -> Announcement:
        if offered is not self._offered:
            self._offered, self._last = offered, announcement_of(offered)
        return self._last


def announcement_of(offered: Sequence[OfferedFlow] | None, bytes_max: int = BYTES_MAX) -> Announcement:
    """Return what fits into `bytes_max`. None: a resolver, which does not tell which flows it knows.

    First the longest docs are dropped, as many as necessary, then the largest schemas. What is left of a flow is its
    name and a few options; if even these are too much, flows are left out, and the announcement is not complete.
    """
    if offered is None:
        return NOTHING_ANNOUNCED
    flows = list(offered)
    for shortened in (_without_doc, _without_schemas):
        _shorten(flows, shortened, bytes_max)
    kept, left = [], bytes_max
    for flow in flows:
        left -= _size(flow)
        if left < 0:
            break
        kept.append(flow)
    return Announcement(tuple(kept), complete=len(kept) == len(flows))


def _shorten(flows: list[OfferedFlow], shortened: Callable[[OfferedFlow], OfferedFlow], bytes_max: int) -> None:
    sizes = [_size(flow) for flow in flows]
    short = [shortened(flow) for flow in flows]
    gains = [size - _size(flow) for size, flow in zip(sizes, short, strict=True)]
    excess = sum(sizes) - bytes_max
    for index in sorted(range(len(flows)), key=lambda at: -gains[at]):
        if excess <= 0:
            return
        flows[index] = short[index]
        excess -= gains[index]


def _without_doc(flow: OfferedFlow) -> OfferedFlow:
    return replace(flow, doc="")


def _without_schemas(flow: OfferedFlow) -> OfferedFlow:
    return replace(flow, params={}, returns=None if flow.returns is None else {})


def _size(flow: OfferedFlow) -> int:
    """Return its bytes in the record, with the comma after it."""
    text = json.dumps(flow.document(), ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace")) + 1
