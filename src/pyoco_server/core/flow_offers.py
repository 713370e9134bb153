"""Which flows the live workers offer together, and whether a submission by name can succeed (APP-11, APP-12)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["Finding", "FlowOffer", "Wanted", "find_offer", "judge_name", "nearest_name", "offers_of"]

#: Longer names are cut where they are repeated.
_SHOWN_LENGTH_MAX = 128


@dataclass(frozen=True, kw_only=True)
class FlowOffer:
    """A flow, and who offers it."""

    flow: OfferedFlow
    #: The routing tag to submit it with.
    tag: str
    #: The ids of the live workers that offer it.
    workers: tuple[str, ...]
    #: Their signatures differ.
    conflict: bool


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which flows to list."""

    #: Flows of workers that serve this tag.
    tag: str | None = None
    #: All of these words in name, app or doc, in lower case.
    words: tuple[str, ...] = ()


@dataclass
class _Found:
    """What the workers announce under one name."""

    first: OfferedFlow
    #: Those that the workers serve.
    tags: dict[str, None] = field(default_factory=dict)
    workers: list[str] = field(default_factory=list)
    conflict: bool = False


def offers_of(live: Iterable[WorkerRecord], wanted: Wanted, default_tag: str) -> list[FlowOffer]:
    """Return the flows that these workers announce, by name. O(workers x flows).

    The tag of each is its own, if a worker that offers it serves that tag; else the default tag, or any other tag that
    such a worker serves. Where announcements differ, that of the first worker by id is returned; an announcement whose
    schemas were dropped for lack of room gives way to a complete one.
    """
    found: dict[str, _Found] = {}
    for worker in sorted(live, key=lambda each: each.worker_id):
        if wanted.tag is None or wanted.tag in worker.tags:
            for flow in worker.flows:
                _add(found, worker, flow)
    offers = [
        FlowOffer(
            flow=each.first,
            tag=_tag_of(each, default_tag),
            workers=tuple(each.workers),
            conflict=each.conflict,
        )
        for _, each in sorted(found.items())
    ]
    return [each for each in offers if _has_words(each.flow, wanted.words)] if wanted.words else offers


def _tag_of(found: _Found, default_tag: str) -> str:
    preferred = [*found.first.tags[:1], default_tag, *found.tags]
    return next((tag for tag in preferred if tag in found.tags), default_tag)


def find_offer(live: Iterable[WorkerRecord], name: str, default_tag: str) -> FlowOffer | None:
    """Return one flow. None: no worker announces it."""
    offers = offers_of((each for each in live if each.offers(name)), Wanted(), default_tag)
    return next((each for each in offers if each.flow.name == name), None)


def _add(found: dict[str, _Found], worker: WorkerRecord, flow: OfferedFlow) -> None:
    entry = found.setdefault(flow.name, _Found(flow))
    if not entry.first.params:
        entry.first = flow
    elif flow.params and _signature(flow) != _signature(entry.first):
        entry.conflict = True
    entry.tags |= dict.fromkeys(worker.tags)
    if worker.worker_id not in entry.workers[-1:]:
        entry.workers.append(worker.worker_id)


def _signature(flow: OfferedFlow) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    return flow.params, flow.returns


def _has_words(flow: OfferedFlow, words: Collection[str]) -> bool:
    text = f"{flow.name}\n{flow.app}\n{flow.doc}".lower()
    return all(word in text for word in words)


@dataclass(frozen=True)
class Finding:
    """No live worker that would take a run offers its flow."""

    message: str
    #: No worker that would take the run can execute it.
    refused: bool


def judge_name(name: str, tag: str, workers: Sequence[WorkerRecord], now: float, silence: float) -> Finding | None:
    """Return why a submission of this flow cannot succeed, or perhaps cannot. None: nothing is known against it.

    Only the workers of the tag count. While it has none, the run waits for one: then all workers count, which may show
    a wrong name, but nothing is refused. The usual case ends at the first worker that offers the flow; without apps it
    is one look at each record. O(workers), and O(flows) more for a finding.
    """
    if not any(each.announces for each in workers):
        return None
    if any(each.offers(name) and tag in each.tags and each.is_alive(now, silence) for each in workers):
        return None
    live = [each for each in workers if each.takes_flows and each.is_alive(now, silence)]
    own = [each for each in live if tag in each.tags]
    asked = own or live
    if any(each.offers(name) for each in asked) or not any(each.announces for each in asked):
        return None
    offered = {flow.name for each in asked for flow in each.flows}
    return Finding(
        _message(name, tag if own else None, offered), bool(own) and all(each.flows_complete for each in own)
    )


def _message(name: str, tag: str | None, offered: Collection[str]) -> str:
    who = "no live worker" if tag is None else f"no live worker with the tag {tag}"
    nearest = nearest_name(name, offered)
    rest = "; no flow is offered there" if nearest is None else f"; did you mean {nearest[:_SHOWN_LENGTH_MAX]}?"
    return f"{who} announces a flow {name[:_SHOWN_LENGTH_MAX]}{rest}"


def nearest_name(name: str, offered: Collection[str]) -> str | None:
    """Return the most similar name, the first of equally similar ones. None: there are no names. O(names).

    Similarity is the share of common pairs of letters, which is cheap: there may be a thousand names, and a batch may
    ask a thousand times.
    """
    given = _pairs(name.lower())

    def likeness(other: str) -> float:
        pairs = _pairs(other.lower())
        return 2 * len(given & pairs) / (len(given) + len(pairs))

    return max(sorted(offered), key=likeness, default=None)


@lru_cache(maxsize=4096)
def _pairs(name: str) -> frozenset[str]:
    """Return the pairs of adjacent letters, the edges included."""
    text = f"\n{name}\n"
    return frozenset(text[at : at + 2] for at in range(len(text) - 1))
