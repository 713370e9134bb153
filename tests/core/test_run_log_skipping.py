"""A page of a log is the same whether or not batches that do not matter for it are decoded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run_log.batch import Batch, Entry, decode_batch, encode_batch, encode_gap
from pyoco_server.core.run_log.line import Gap, Line, LineId, Why
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.selection import Selection, last_lines
from pyoco_server.core.run_log.skipping import Plan, plan_of, read_head

Stored = list[tuple[int, bytes]]


@st.composite
def stored_logs(draw: st.DrawFn) -> Stored:
    """Attempts with batches, of which some are missing, repeated, or gaps that a sender has told."""
    stored: Stored = []
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        first, before = 1, 0
        steps = draw(st.lists(st.sampled_from(["batch", "twice", "missing", "gap"]), max_size=6))
        for number, step in enumerate(steps, 1):
            count = draw(st.integers(1, 4))
            entries = [Entry(1.0, 0, -1, f"line {seq}") for seq in range(first, first + count)]
            is_last = number == len(steps) and draw(st.booleans())
            batch = Batch(first, before, (), entries, is_last=is_last, size=8 * count)
            first, before = first + count, before + 8 * count
            payload = encode_batch(batch)
            if step == "gap":
                stored.append((attempt, encode_gap(first, before, Gap(Why.BUFFER, count, 8 * count))))
            elif step != "missing":
                stored += [(attempt, payload)] * (2 if step == "twice" else 1)
    return stored


def shown(stored: Stored, selection: Selection, plan: Plan, tail: int | None, *, is_over: bool) -> list[object]:
    assembly = Assembly()
    lines: list[Line] = []
    for at, (attempt, payload) in enumerate(stored[: plan.end]):
        if at in plan.skipped:
            lines += assembly.skip(attempt, *plan.skipped[at], 5.0)
        else:
            lines += assembly.add(attempt, decode_batch(payload), 5.0)
    if not plan.is_cut and (is_over or plan.end < len(stored)):
        lines += assembly.end()
    wanted = [line for line in lines if selection.has(line)]
    kept = wanted if tail is None else last_lines(wanted, tail)
    return [(line.id, line.gap, line.text) for line in kept]


line_ids = st.none() | st.tuples(st.integers(1, 3), st.integers(0, 20))


@given(stored_logs(), line_ids, line_ids, st.none() | st.integers(1, 12), st.booleans())
def test_a_page_does_not_depend_on_what_is_skipped(
    stored: Stored, after: LineId | None, before: LineId | None, tail: int | None, is_over: bool
) -> None:
    """LOG-17, LOG-18"""
    selection = Selection(after=None if tail is not None else after, before=before)
    plan = plan_of(stored, selection, tail)
    everything = Plan({}, len(stored), is_cut=False)
    assert shown(stored, selection, plan, tail, is_over=is_over) == shown(
        stored, selection, everything, tail, is_over=is_over
    )


def test_only_batches_near_a_page_are_decoded() -> None:
    stored = [(1, encode_batch(batch_of(first))) for first in range(1, 1001, 10)]
    for selection, tail, decoded in (
        (Selection(), 25, [96, 97, 98, 99]),
        (Selection(before=(1, 500)), 25, [46, 47, 48, 49]),
        (Selection(after=(1, 905)), None, [90, *range(91, 100)]),
    ):
        plan = plan_of(stored, selection, tail)
        assert [at for at in range(plan.end) if at not in plan.skipped] == decoded
    assert plan_of(stored, Selection(search="7"), 25).skipped == {}
    assert read_head(b"x") is None


def batch_of(first: int) -> Batch:
    return Batch(first, first * 8, (), [Entry(1.0, 0, -1, f"line {seq}") for seq in range(first, first + 10)], size=80)
