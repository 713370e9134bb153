"""What counts as a legal story of a job, and what does not: the checker of the other tests is checked here."""

from __future__ import annotations

import pytest

from pyoco_server.ports.program_events.port import Event, EventName
from support.grid.story import story_problems


def told(story: str) -> list[Event]:
    """`enqueue assign1 ack1`: each event with the number of its attempt."""
    events = []
    for word in story.split():
        name = word.rstrip("0123456789")
        number = int(word.removeprefix(name) or 0)
        events.append(Event(ts=1.0, event=EventName(name), group="g", run_id="r", attempt=number))
    return events


@pytest.mark.parametrize(
    "story",
    [
        "enqueue assign1 ack1",
        "enqueue cancel",
        "enqueue enqueue assign1 ack1 enqueue",
        "enqueue assign1 timeout_requeue1 assign2 ack2",
        "enqueue assign1 worker_down_requeue1 ack1",
        "enqueue assign1 worker_down_requeue1 cancel1",
        "enqueue assign1 worker_down_requeue1 reattach1 timeout_requeue1 assign2 dlq2",
        "enqueue assign1 reattach1 reattach1 ack1 stale_result1",
        "enqueue ack1",
        "enqueue worker_down_requeue1 assign2 ack2 stale_result1",
        "enqueue assign1 assign1 ack1",
    ],
)
def test_a_legal_story_has_no_problem(story: str) -> None:
    """GRID-174"""
    assert story_problems(told(story)) == []


@pytest.mark.parametrize(
    ("story", "problem"),
    [
        ("", "nothing"),
        ("assign1 ack1", "begins with"),
        ("assign1 enqueue ack1", "begins with"),
        ("enqueue assign1", "0 ends"),
        ("enqueue assign1 ack1 cancel1", "2 ends"),
        ("enqueue assign1 ack1 assign2", "follows its end"),
        ("enqueue ack1 assign1", "before it is assigned"),
        ("enqueue assign1 timeout_requeue1 worker_down_requeue1 assign2 ack2", "put back twice"),
        ("enqueue assign2 assign1 ack2", "out of turn"),
    ],
)
def test_an_illegal_story_is_found_out(story: str, problem: str) -> None:
    """GRID-174"""
    assert any(problem in found for found in story_problems(told(story)))
