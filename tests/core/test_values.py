"""Values as stored bytes: what is encoded comes back, and what cannot be encoded is named."""

from __future__ import annotations

import base64
import enum
import json
import math
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.core.values.decode import Undecodable, decode_value
from pyoco_server.core.values.encode import NotEncodable, encode_value
from pyoco_server.core.values.kept import InRecord
from pyoco_server.core.values.shown import output_of, result_of, shown_records, shown_result, shown_value

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Person:
    name: str
    ages: tuple[int, ...]


class Place(msgspec.Struct):
    city: str


def encoded(value: Any) -> bytes:
    pieces: list[bytes] = []
    encode_value(value, pieces.append)
    return b"".join(pieces)


def back(value: Any) -> Any:
    pieces: list[bytes] = []
    content_type = encode_value(value, pieces.append)
    return decode_value(b"".join(pieces), content_type)


KEYS = st.text() | st.integers() | st.none() | st.booleans() | st.binary()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(st.characters(categories=["Cs", "Lu"]))
    | st.binary()
    | st.datetimes(timezones=st.just(UTC) | st.none())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda some: (
        st.lists(some, max_size=4)
        | st.lists(some, max_size=4).map(tuple)
        | st.dictionaries(KEYS | st.just("$pyoco"), some, max_size=4)
        | st.frozensets(st.integers() | st.text(), max_size=4)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_encoded_comes_back_with_its_types(value: Any) -> None:
    """RES-20, RES-21"""
    result = back(value)
    assert result == value
    assert repr(result) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)
    if not isinstance(value, bytes):
        json.loads(encoded(value))


FORMS: list[tuple[Any, Any]] = [
    (
        datetime.fromisoformat("2026-01-02T03:04:05.000006"),
        {"$pyoco": "datetime", "value": "2026-01-02T03:04:05.000006"},
    ),
    (
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=9))),
        {"$pyoco": "datetime", "value": "2026-01-02T00:00:00+09:00"},
    ),
    (date(2026, 1, 2), {"$pyoco": "date", "value": "2026-01-02"}),
    (time(3, 4), {"$pyoco": "time", "value": "03:04:00"}),
    (timedelta(-1, 2, 3), {"$pyoco": "timedelta", "value": [-1, 2, 3]}),
    (Decimal("1.50"), {"$pyoco": "decimal", "value": "1.50"}),
    (uuid.UUID(int=1), {"$pyoco": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
    ([b"\xff\x00"], [{"$pyoco": "bytes", "value": base64.b64encode(b"\xff\x00").decode()}]),
    ([bytearray(b"a")], [{"$pyoco": "bytes", "value": "YQ=="}]),
    (math.inf, {"$pyoco": "float", "value": "Infinity"}),
    ([-math.inf], [{"$pyoco": "float", "value": "-Infinity"}]),
    ((1, "a"), {"$pyoco": "tuple", "value": [1, "a"]}),
    ({10, 9}, {"$pyoco": "set", "value": [10, 9]}),
    (frozenset({"b", "a"}), {"$pyoco": "frozenset", "value": ["a", "b"]}),
    (Colour.RED, {"$pyoco": "enum", "value": "red"}),
    (Level.HIGH, {"$pyoco": "enum", "value": 3}),
    ({1: "a"}, {"$pyoco": "map", "value": [[1, "a"]]}),
    ({"$pyoco": 1}, {"$pyoco": "map", "value": [["$pyoco", 1]]}),
    (Person("Anna", (1,)), {"name": "Anna", "ages": {"$pyoco": "tuple", "value": [1]}}),
    (Place("Kobe"), {"city": "Kobe"}),
    (Point(1, 2), {"x": 1, "y": 2}),
    (OrderedDict(a=1), {"a": 1}),
    ([], []),
    ({}, {}),
]


@pytest.mark.parametrize(("value", "form"), FORMS, ids=lambda value: type(value).__name__)
def test_each_type_has_its_form(value: Any, form: Any) -> None:
    """RES-20; sets are sorted by encoding"""
    assert json.loads(encoded(value)) == form


def test_not_a_number_stays_one() -> None:
    assert math.isnan(back([math.nan])[0])


def test_integers_are_exact_at_any_size() -> None:
    """RES-22: Python itself refuses to convert more than 4300 digits."""
    for number in (10**4000 - 1, 10**4000, -(10**9000) + 7, 3**30_000):
        assert back([number]) == [number]


def test_long_lists_are_encoded_in_slices() -> None:
    value = [*range(10_000), None, "x", *([(1,)] * 5000)]
    pieces: list[bytes] = []
    encode_value(value, pieces.append)
    assert max(map(len, pieces)) < 50_000
    assert decode_value(b"".join(pieces), "application/json") == value


class Hostile:
    @property
    def __struct_fields__(self) -> Any:
        raise ValueError("on purpose")


@dataclass
class Broken:
    value: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise OSError("on purpose")
        return super().__getattribute__(name)


def test_what_cannot_be_encoded_is_named_with_its_place() -> None:
    """RES-10"""
    loop: list[Any] = []
    loop.append(loop)
    for value, words in [
        ({"a": [1, object()]}, ["object at $['a'][1]"]),
        ([len], ["builtin_function_or_method at $[0]"]),
        ({(1, 2): {1: object()}}, ["object at $"]),
        ([Broken()], ["Broken at $[0]", "OSError: on purpose"]),
        (loop, ["list at $[0][0]", "nested deeper"]),
    ]:
        with pytest.raises(NotEncodable) as caught:
            encoded(value)
        for word in words:
            assert word in str(caught.value)


def test_a_decoder_never_guesses() -> None:
    """RES-22, RES-23"""
    for text in (
        '{"$pyoco": "what", "value": 1}',
        '{"$pyoco": "pickle", "value": "gASVAQ=="}',
        '{"$pyoco": "npy", "value": ""}',
        '{"$pyoco": "tuple", "value": [], "more": 1}',
        '{"$pyoco": "date"}',
        '{"$pyoco": 1, "value": 1}',
        '{"$pyoco": "date", "value": "yesterday"}',
        '{"$pyoco": "bytes", "value": "?"}',
        '{"$pyoco": "timedelta", "value": [1]}',
        '{"$pyoco": "set", "value": [[]]}',
        "NaN",
        "[1",
    ):
        with pytest.raises(Undecodable):
            decode_value(text.encode(), "application/json")
    with pytest.raises(Undecodable, match="image/png"):
        decode_value(b"", "image/png")


RUN = Run(
    run_id="r",
    flow_name="f",
    tag="t",
    submitted_at=1.0,
    updated_at=2.0,
    heartbeat_at=2.0,
    status=RunState.COMPLETED,
    tasks={"a/b": "SUCCEEDED", "c": "SUCCEEDED", "d": "SUCCEEDED", "e": "SUCCEEDED"},
    task_records={
        "a/b": {"state": "SUCCEEDED", "output": {"x": 1}},
        "c": {"state": "SUCCEEDED", "output": "(1,)", "output_truncated": True},
        "d": {"state": "SUCCEEDED", "output": "?", "output_truncated": True},
        "e": {"state": "SUCCEEDED"},
    },
    attempt_id="1",
    kept_values={
        "result": {"task": "a/b"},
        "outputs": {
            "c": {
                "content_type": "application/json",
                "bytes": 32,
                "sha256": "0" * 64,
                "text": '{"$pyoco":"tuple","value":[1]}',
            },
            "d": {"error": 54, "detail": "object at $ cannot be encoded"},
        },
    },
)


def test_outputs_are_whole_or_marked() -> None:
    """RES-4: the value, a reference, or the reason why there is neither."""
    shown = shown_records(RUN)
    assert shown["a/b"] == RUN.task_records["a/b"]
    assert shown["c"]["output_ref"]["href"] == "/runs/r/outputs/c"
    assert shown["d"]["output_error"]["err_id"] == "ERR-PYOCO-0054"
    assert "object at $" in shown["d"]["output_error"]["message"]
    assert shown["e"] == {"state": "SUCCEEDED", "output_truncated": True, "output_error": shown["e"]["output_error"]}
    assert shown["e"]["output_error"]["err_id"] == "ERR-PYOCO-0055"


def test_a_result_is_inline_while_it_is_small() -> None:
    """RES-3"""
    small = shown_result(RUN, 100)
    assert small is not None
    assert (small["href"], small["value"], small["bytes"], small["truncated"]) == ("/runs/r/result", {"x": 1}, 7, False)
    large = shown_result(RUN, 6)
    assert large is not None
    assert (large["preview"], large["truncated"], "value" in large) == ('{"x":1}', True, False)
    missing = shown_result(replace(RUN, kept_values={"result": {"task": "d"}}), 100)
    assert missing is not None
    assert (missing["truncated"], missing["error"]["err_id"]) == (True, "ERR-PYOCO-0055")
    assert shown_result(replace(RUN, status=RunState.FAILED), 100) is None
    assert result_of(replace(RUN, kept_values={})) is None  # of an earlier version


def test_half_of_a_surrogate_pair_is_not_shown_as_another_text() -> None:
    """RES-3: what a snapshot cannot contain is left to the route of the result, and marked"""
    for text, is_exact in (("\\ud83d\\ude00", True), ("\\\\ud83d", True), ("\\udcff", False)):
        shown = shown_value("/r", InRecord("application/json", f'"{text}"'.encode()), 100)
        assert ("value" in shown, shown["truncated"]) == (is_exact, not is_exact)
    assert shown["preview"] == '"\\udcff"'


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=5))
def test_a_foreign_entry_breaks_nothing(entry: dict[str, Any]) -> None:
    run = replace(RUN, kept_values={"result": entry, "outputs": {"c": entry}})
    shown_result(run, 10)
    shown_records(run)
    output_of(run, "c")
