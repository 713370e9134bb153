"""Formats the state of the grid as a few short tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["lines_of"]

#: How many running jobs and workers of a group are shown. The JSON output has all of them.
_SHOWN_MAX = 20


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    for name, group in document["groups"].items():
        yield f"group {name}"
        yield from _indented(_group(group, float(document["at"])))
    groups = list(document["groups"].values())
    if groups:
        yield "workers"
        yield from _indented(_table(("worker", "state", "programs", "running", "credits"), _workers(groups[0])))
        yield "streams"
        yield from _indented(_table(("stream", "leader", "copies"), _streams(groups[0]["replicas"])))


def _group(group: Mapping[str, Any], now: float) -> Iterator[str]:
    queues = [
        (name, each["queued"], each["inflight"], _age(each["oldest_age_seconds"]))
        for name, each in group["queues"].items()
    ]
    yield from _table(("program", "queued", "running", "oldest"), queues)
    jobs = list(group["inflight"].values())
    rows = [
        (
            each["job_id"],
            each.get("exec"),
            each.get("client"),
            each.get("worker"),
            each.get("attempt"),
            _since(each, now),
        )
        for each in jobs[:_SHOWN_MAX]
    ]
    yield from _table(("job", "program", "client", "worker", "attempt", "for"), rows)
    if len(jobs) > _SHOWN_MAX:
        yield f"and {len(jobs) - _SHOWN_MAX} more that run"
    clients = sorted({*group["client_cap"], *group["client_inflight"]})
    caps = [(name, group["client_inflight"].get(name, 0), group["client_cap"].get(name, "default")) for name in clients]
    yield from _table(("client", "in flight", "cap"), caps)
    doors = [(each["addr"], each["state"], each["connections"], each["door_id"]) for each in group["doors"]]
    yield from _table(("door", "state", "connections", "id"), doors)
    last = group["dlq"]["last_sequence"]
    yield f"dead letters: {group['dlq']['count']}" + (f", the newest is {last}" if last is not None else "")


def _workers(group: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            each["worker_id"],
            each["state"],
            " ".join(each.get("patterns", ())),
            f"{each.get('busy', len(each['running']))}/{each.get('max_parallel', '-')}",
            each.get("credits", "-"),
        )
        for each in group["workers"][:_SHOWN_MAX]
    ]


def _streams(replicas: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[Any, ...]]:
    for stream, members in replicas.items():
        leader = next((each["name"] for each in members if each["leader"]), "none")
        current = sum(bool(each["current"]) for each in members)
        yield stream, leader, f"{current} of {len(members)} current"


def _since(job: Mapping[str, Any], now: float) -> str:
    return _age(max(0.0, now - job["since"])) if "since" in job else "-"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Format rows under a header. Yields nothing if there are no rows."""
    lines = [[str("-" if cell is None else cell) for cell in row] for row in rows]
    if not lines:
        return
    widths = [max(len(line[place]) for line in [list(head), *lines]) for place in range(len(head))]
    for line in [list(head), *lines]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
