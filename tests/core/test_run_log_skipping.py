"""A page of a log is the same whether or not batches that do not matter for it are decoded."""

from __future__ import annotations

import json
import re
import zlib

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run_log.batch import Batch, Entry, decode_batch, encode_batch, encode_gap
from pyoco_server.core.run_log.line import LEVELS, Gap, Line, LineId, Why
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.selection import LastLines, Selection
from pyoco_server.core.run_log.skipping import Plan, may_match, plan_of, read_head

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
        if at in plan.skipped or (at in plan.joined and not may_match(payload, selection)):
            lines += assembly.skip(attempt, *plan.joined[at], 5.0)
        else:
            lines += assembly.add(attempt, decode_batch(payload), 5.0)
    if not plan.is_cut and (is_over or plan.end < len(stored)):
        lines += assembly.end()
    last = LastLines(tail or len(lines) + 1)
    for line in filter(selection.has, lines):
        last.add(line)
    return [(line.id, line.gap, line.text) for line in last.lines()]


line_ids = st.none() | st.tuples(st.integers(1, 3), st.integers(0, 20))


searches = st.none() | st.sampled_from(["1", "LINE 2", "12", "x"])


@given(stored_logs(), line_ids, line_ids, st.none() | st.integers(1, 12), searches, st.booleans())
def test_a_page_does_not_depend_on_what_is_skipped(
    stored: Stored, after: LineId | None, before: LineId | None, tail: int | None, search: str | None, is_over: bool
) -> None:
    """LOG-16 to LOG-18"""
    selection = Selection(after=None if tail is not None else after, before=before, search=search)
    plan = plan_of(stored, selection, tail)
    everything = Plan({}, frozenset(), len(stored), is_cut=False)
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
    for selection, tail, first in (
        (Selection(search="line"), 25, 96),
        (Selection(search="LINE 90"), 5, 90),
        (Selection(since=1.0), 250, 74),
        (Selection(search="7"), 200, 0),
        (Selection(since=2.0), 5, 0),
    ):
        assert plan_of(stored, selection, tail).skipped == frozenset(range(first))
    assert read_head(b"x") is None


texts = st.text(st.sampled_from('aAß"\\/\t\x1b\0\x7f Straße日ſK'), max_size=12)


@given(texts, texts, texts.filter(bool), st.booleans())
def test_a_batch_is_only_passed_over_if_it_lacks_the_text(text: str, exc: str, search: str, is_foreign: bool) -> None:
    """LOG-16: also if another program has encoded it"""
    batch = Batch(1, 0, (), [Entry(1.0, 2, -1, text, 0, "INFO", "app", exc)])
    payload = encode_batch(batch)
    if is_foreign:
        document = json.dumps(json.loads(zlib.decompress(payload))).replace("/", "\\/")
        document = re.sub(r"\\.", lambda escape: {"\\t": "\\u0009"}.get(escape[0], escape[0]), document)
        payload = zlib.compress(document.encode())
        assert list(decode_batch(payload).lines(1)) == list(batch.lines(1))
    if any(map(Selection(search=search).has, batch.lines(1))):
        assert may_match(payload, Selection(search=search))


def test_a_batch_without_the_text_is_passed_over() -> None:
    payload = encode_batch(Batch(1, 0, (), [Entry(1.0, 0, -1, 'say "HALLO" \x1b[0m C:\\dir')]))
    contained = {
        search: may_match(payload, Selection(search=search))
        for search in ("hallo", 'y "h', "c:\\D", "hullo", '"hallo\\')
    }
    assert contained == {"hallo": True, 'y "h': True, "c:\\D": True, "hullo": False, '"hallo\\': False}
    assert may_match(b"unreadable", Selection(search="x"))


def test_a_batch_without_the_task_or_the_level_is_passed_over() -> None:
    """LOG-11, LOG-14"""
    entries = [Entry(1.0, 0, 0, "one"), Entry(1.0, 1, -1, "two"), Entry(1.0, 2, 0, "three", 0, "ERROR", "app")]
    payload = encode_batch(Batch(1, 0, ("load",), entries))
    assert [may_match(payload, Selection(tasks=frozenset(names))) for names in (["x", "load"], ["x"], ["x", "-"])] == [
        True,
        False,
        True,
    ]
    levels = {level: may_match(payload, Selection(level=level)) for level in LEVELS}
    assert levels == {level: level != "CRITICAL" for level in LEVELS}


def batch_of(first: int) -> Batch:
    return Batch(first, first * 8, (), [Entry(1.0, 0, -1, f"line {seq}") for seq in range(first, first + 10)], size=80)
