"""What tasks leave behind, as strict and bounded JSON."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections import OrderedDict, namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.outcome import Progress
from pyoco_server.executors.flow.records import PARTS_MAX, TEXT_LENGTH_MAX, plain, plain_records
from pyoco_server.executors.host import wire


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no")


class Endless(list[int]):
    def __iter__(self) -> Any:
        while True:
            yield 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ("日本", "日本"),
        ({"a": [1, (2,)]}, {"a": [1, [2]]}),
        ({1: 2, None: 3, 1.5: 4}, {"1": 2, "None": 3, "1.5": 4}),
        (math.nan, "nan"),
        ([math.inf, -math.inf], ["inf", "-inf"]),
        (2**63 - 1, 2**63 - 1),
        (2**63, str(2**63)),
        (10**5000, "<int that cannot be shown>"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), [1, 2]),
        (Text("t"), "t"),
        (Endless([1, 2]), [1, 2]),
        (b"\xff", "b'\\xff'"),
        ({1}, "{1}"),
        (Decimal("1.5"), "Decimal('1.5')"),
        (Path("/x"), "PosixPath('/x')"),
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"),
        (Nasty(), "<Nasty that cannot be shown>"),
        ({Nasty(): 1}, "<dict that cannot be shown>"),
        ([1, Nasty()], [1, "<Nasty that cannot be shown>"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_what_json_makes_of_it_and_otherwise_text(value: Any, shown: Any) -> None:
    """FLOW-345"""
    found = plain(value)
    assert found == shown
    assert type(found) is type(shown)


def test_what_is_too_deep_too_large_or_its_own_part_becomes_text() -> None:
    """FLOW-345: in bounded time."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    itself: dict[str, Any] = {}
    itself["me"] = itself
    many = list(range(PARTS_MAX + 1))
    for value in (deep, itself, many):
        assert isinstance(plain(value), str)
        assert len(plain(value)) <= TEXT_LENGTH_MAX
    assert plain(many[:1000]) == many[:1000]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5) | st.builds(Nasty),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=20,
)


@given(anything)
def test_whatever_it_was_it_is_strict_json_afterwards(value: Any) -> None:
    """FLOW-345"""
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == plain(value)


records_of_tasks = st.dictionaries(
    st.text(max_size=5), st.fixed_dictionaries({"state": st.just("RUNNING"), "output": anything}), max_size=5
)


@given(records_of_tasks, st.dictionaries(st.text(max_size=5), st.just("RUNNING"), max_size=5))
def test_progress_reaches_the_worker_as_it_was_and_within_its_bound(
    records: dict[str, Any], tasks: dict[str, str]
) -> None:
    """FLOW-358 to FLOW-361: done where the tasks ran, so that a huge output costs its own process."""
    progress = Progress(tasks, plain_records(records))
    assert wire.unpack_progress(wire.pack_progress(progress, 10_000_000)) == progress
    body = wire.pack_progress(progress, 400)
    found = wire.unpack_progress(body)
    assert found.tasks == tasks
    assert found.truncated == (found.task_records != progress.task_records) or not found.task_records
    assert len(body) <= 400 or found.task_records == {}


def test_the_bulky_members_go_first() -> None:
    """FLOW-360"""
    record = {"state": "FAILED", "error": "e", "output": "x" * 500, "inputs": {}, "artifacts": {}, "traceback": "t"}
    progress = Progress({"a": "FAILED"}, {"a": record})
    slim = wire.unpack_progress(wire.pack_progress(progress, 400))
    assert slim == Progress({"a": "FAILED"}, {"a": {"state": "FAILED", "error": "e"}}, truncated=True)
    assert wire.unpack_progress(wire.pack_progress(progress, 10)) == Progress({"a": "FAILED"}, {}, truncated=True)


@pytest.mark.parametrize("text", ["x", "é", "日", "\U0001f600", "\ud800"])
def test_a_text_counts_as_many_bytes_as_in_the_snapshot_whatever_its_language(text: str) -> None:
    """FLOW-359: cut only when it would not fit."""
    output = text * (3000 // len(text.encode("utf-8", "replace")))
    progress = Progress({"a": "SUCCEEDED"}, {"a": {"state": "SUCCEEDED", "output": output}})
    assert wire.unpack_progress(wire.pack_progress(progress, 9200 if text == "\ud800" else 3200)) == progress


def test_large_bytes_are_shown_without_a_text_of_all_of_them() -> None:
    """RES-7, FLOW-345: as text they take four times the memory of the host."""
    for value in (b"\x00" * 20_000_000, bytearray(20_000_000)):
        tracemalloc.start()
        try:
            shown = plain(value)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert shown == repr(value[:TEXT_LENGTH_MAX])[:TEXT_LENGTH_MAX]
        assert peak < 10_000_000
