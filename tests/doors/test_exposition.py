"""How metrics are written: in pieces, and as if it were one."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from pyoco_server.actions.measure import Crowd, Figures
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.doors.http import families
from pyoco_server.doors.http.exposition import METRICS, PROCESS_METRICS, Moment, render
from pyoco_server.doors.http.operations import Operation
from pyoco_server.loops.tally import Tally
from pyoco_server.ports.index.port import Waiting
from pyoco_server.ports.runs.port import Changes, Stored

ENDS = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
REVISIONS = count(1)


def say_ended(tally: Tally, flow_name: str, end: RunState) -> None:
    instants = {"submitted_at": 1.0, "updated_at": 1.0, "heartbeat_at": 1.0, "start_time": 2.0, "end_time": 3.0}
    run = Run(run_id="r", flow_name=flow_name, status=end, tag="t", **instants)  # type: ignore[arg-type]  # floats all
    tally.on_changes(Changes((Stored(run, next(REVISIONS)),), True, "a"))


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The samples of this name. The parser is slow: it need not read the other lines each time."""
    own = [line for line in text.split("\n") if line.startswith(name)]
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families("\n".join([*own, ""]))
        for sample in family.samples
        if sample.name == name
    }


async def nothing(_: Any) -> Any: ...


@pytest.fixture
def crowded() -> Moment:
    """As much as there can be: 200 flows and more with three ends each, and 1,000 tags."""
    tally = Tally()
    tally.on_changes(Changes((), True, "a"))
    for number in range(250):
        for end in ENDS:
            say_ended(tally, f"flow {number}", end)
    operation = Operation(method="GET", path="/x", endpoint=nothing, summary="", answer={})
    operation.meter.answered(200, 0.1)
    figures = Figures(
        at=100.0,
        runs=dict.fromkeys(RunState, 1),
        waiting={f"tag {number}": Waiting(number, 1.0) for number in range(1000)},
        workers=Crowd(1, 1, 1, 0),
        dead_letters=0,
        reasons={},
        index_lag_seconds=0.0,
    )
    return Moment(figures=figures, tally=tally, operations=(operation,), watchers=0, version="1")


async def test_a_text_in_pieces_is_one_text(crowded: Moment) -> None:
    text = (await render(crowded)).decode()
    lines = text.splitlines()
    samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    heads = [line for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == len(METRICS) + len(PROCESS_METRICS)
    counts = values(text, "pyoco_run_duration_seconds_count")
    assert len(counts) == 201 * 3
    assert counts["(other)", "FAILED"] == 50
    assert values(text, "pyoco_queue_depth") == {(f"tag {n}",): n for n in range(1000)}


async def test_others_are_served_while_it_is_written(crowded: Moment) -> None:
    """20,000 lines take a tenth of a second; other requests do not wait for all of it"""
    gaps: list[float] = []
    done = asyncio.Event()

    async def ticks() -> None:
        while not done.is_set():
            began = time.process_time()
            await asyncio.sleep(0)
            gaps.append(time.process_time() - began)

    families._histogram.cache_clear()  # nothing has been written before
    ticking = asyncio.create_task(ticks())
    await asyncio.sleep(0)
    began = time.process_time()
    await render(crowded)
    took = time.process_time() - began
    done.set()
    await ticking
    assert len(gaps) > 100
    assert max(gaps) < took / 5


async def test_runs_and_requests_may_go_on_meanwhile(crowded: Moment) -> None:
    """Each histogram is read at one moment: its buckets add up to its count"""
    ends, operation = crowded.tally.ends, crowded.operations[0]
    missing = [key for key in ends if key[1] == "FAILED"]
    for key in missing:
        del ends[key]
    for status in range(100, 150):
        operation.meter.answered(status, 0.1)
    rendering = asyncio.create_task(render(crowded))
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0)
        say_ended(crowded.tally, missing[turns % len(missing)][0], RunState.FAILED)
        operation.meter.answered(150 + turns, 0.1)
        turns += 1
    assert turns > 100
    text = rendering.result().decode()
    counts = values(text, "pyoco_run_duration_seconds_count")
    buckets = values(text, "pyoco_run_duration_seconds_bucket")
    assert counts == {(flow, end): many for (flow, le, end), many in buckets.items() if le == "+Inf"}
    assert {end for _, end in counts} == {"COMPLETED", "CANCELLED", "FAILED"}


async def test_nothing_is_registered_with_the_library(crowded: Moment) -> None:
    await render(crowded)
    assert [family.name for family in REGISTRY.collect() if family.name.startswith("pyoco_")] == []


def test_names_follow_the_customs() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert each.name.startswith("pyoco_")
        assert each.help.endswith(".")
        assert "\n" not in each.help
        assert (each.kind == "counter") <= each.name.endswith("_total")
        assert (each.kind == "histogram") <= each.name.endswith("_seconds")
