"""Which lines are wanted, and how they look."""

from __future__ import annotations

import pytest

from pyoco_server.core.run_log import selection as selections
from pyoco_server.core.run_log.line import Gap, Line, Stream, Why, gap_line, read_line_id
from pyoco_server.core.run_log.selection import LastLines, Selection
from pyoco_server.core.run_log.text import line_text, plain, with_colours


def a_line(seq: int = 1, text: str = "Half way", **more: object) -> Line:
    values: dict[str, object] = {"attempt": 1, "ts": 10.0, "stream": Stream.STDOUT, "task": "load"} | more
    return Line(seq=seq, text=text, **values)  # type: ignore[arg-type]  # any of its fields


@pytest.mark.parametrize(
    ("selection", "is_wanted"),
    [
        (Selection(), True),
        (Selection(tasks=frozenset({"load"})), True),
        (Selection(tasks=frozenset({"Load"})), False),
        (Selection(tasks=frozenset({"-"})), False),
        (Selection(attempt=1), True),
        (Selection(attempt=2), False),
        (Selection(streams=frozenset({Stream.STDOUT})), True),
        (Selection(streams=frozenset({Stream.STDERR})), False),
        (Selection(level="INFO"), True),
        (Selection(level="WARNING"), False),
        (Selection(since=10.0), True),
        (Selection(since=10.1), False),
        (Selection(until=10.0), False),
        (Selection(until=10.1), True),
        (Selection(search="HALF W"), True),
        (Selection(search="x"), False),
        (Selection(after=(1, 0)), True),
        (Selection(after=(1, 1)), False),
        (Selection(before=(1, 2)), True),
        (Selection(before=(1, 1)), False),
    ],
)
def test_every_criterion_must_match(selection: Selection, is_wanted: bool) -> None:
    """LOG-11 to LOG-18"""
    assert selection.has(a_line()) is is_wanted


def test_lines_without_a_level_count_by_their_stream() -> None:
    """LOG-14"""
    at_warning = Selection(level="WARNING")
    assert at_warning.has(a_line(stream=Stream.STDERR))
    assert not at_warning.has(a_line(stream=Stream.LOG, level="INFO"))
    assert at_warning.has(a_line(stream=Stream.LOG, level="CRITICAL"))


def test_a_search_looks_into_exceptions() -> None:
    """LOG-16"""
    assert Selection(search="zerodivision").has(a_line(exc="ZeroDivisionError: x"))


@pytest.mark.parametrize(
    ("selection", "is_wanted"),
    [
        (Selection(tasks=frozenset({"other"}), level="ERROR", since=99.0, until=1.0, search="x"), True),
        (Selection(streams=frozenset({Stream.STDOUT})), False),
        (Selection(streams=frozenset({Stream.SYSTEM})), True),
    ],
)
def test_only_a_filter_by_stream_removes_gaps(selection: Selection, is_wanted: bool) -> None:
    """LOG-9"""
    assert selection.has(gap_line(1, 5, 2.0, Gap(Why.LIMIT, 3, 30))) is is_wanted


def last_of(count: int, *lines: Line) -> tuple[list[int], bool]:
    last = LastLines(count)
    for line in lines:
        last.add(line)
    return [line.seq for line in last.lines()], last.is_cut


def test_the_last_lines_come_with_all_gaps() -> None:
    """LOG-9, LOG-17"""
    lines = a_line(1), a_line(2), gap_line(1, 3, 2.0, Gap(Why.LIMIT, 1, 10)), a_line(4), a_line(5)
    assert last_of(1, *lines) == ([3, 5], False)
    assert last_of(3, *lines) == ([2, 3, 4, 5], False)


def test_the_last_lines_are_as_many_as_fit_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-17: one at least; it is known whether more were wanted"""
    monkeypatch.setattr(selections, "PAGE_CHARACTERS_MAX", 100)
    gap, long = gap_line(1, 0, 2.0, Gap(Why.LIMIT, 1, 10)), [a_line(seq, "x" * 40) for seq in (1, 2, 3)]
    assert last_of(3, gap, *long) == ([0, 2, 3], True)
    assert last_of(2, gap, *long) == ([0, 2, 3], False)
    assert last_of(2, *long, a_line(4, "y"), a_line(5, "y")) == ([4, 5], False)
    assert last_of(9, a_line(1), a_line(2, "x" * 500)) == ([2], True)


@pytest.mark.parametrize(
    ("text", "shown", "coloured"),
    [
        ("plain\ttext", "plain\ttext", "plain\ttext"),
        ("\x1b[1;31mred\x1b[0m", "red", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("\x1b[2Jclear\x07", r"\x1b[2Jclear\x07", r"\x1b[2Jclear\x07"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\nc\x7f\x9b31m", r"a\x0db\x0ac\x7f\x9b31m", r"a\x0db\x0ac\x7f\x9b31m"),
        ("\x1b[31mred\x1b[H", r"red\x1b[H", "\x1b[31mred" + r"\x1b[H" + "\x1b[0m"),
    ],
)
def test_control_characters_are_shown_and_not_executed(text: str, shown: str, coloured: str) -> None:
    """LOG-4"""
    assert plain(text) == shown
    assert with_colours(text) == coloured


def test_a_line_as_text_has_its_time_task_and_stream() -> None:
    """LOG-10"""
    assert line_text(a_line(text="Half\nway", ts=1796101200.0714)) == (
        r"2026-12-01T05:00:00.071Z load stdout Half\x0away"
    )
    failed = a_line(task=None, stream=Stream.LOG, ts=0.0, exc="Traceback:\n  E", cut_bytes=7)
    front = "1970-01-01T00:00:00.000Z - log"
    assert line_text(failed) == f"{front} Half way [7 bytes cut]\n{front} Traceback:\n{front}   E"


@pytest.mark.parametrize(
    ("text", "line_id"),
    [("1.17", (1, 17)), ("2.0", (2, 0)), *((text, None) for text in ("1", "end", "a.1", "-1.2", "1.2.3", ""))],
)
def test_the_id_of_a_line_is_its_attempt_and_sequence(text: str, line_id: object) -> None:
    assert read_line_id(text) == line_id
