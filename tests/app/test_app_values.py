"""Params and results between Python and JSON: by type hint, and never guessed."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import numpy as np
import pytest

from pyoco_server.app.failures import ResultUnavailable, RunCancelled, RunFailed
from pyoco_server.app.outcomes import FETCH, failure_of, inline_value, value_of
from pyoco_server.app.schema import schema_of
from pyoco_server.app.signature import FlowSignature
from pyoco_server.app.values import Decoder, params_document, revived
from pyoco_server.core.offered_flow import OfferedFlow, read_offered_flow
from pyoco_server.core.values.decode import Undecodable
from pyoco_server.core.values.encode import NotEncodable, encode_value
from pyoco_server.errors import ParamsRefused
from pyoco_server.executors.flow.exception_text import exception_form
from pyoco_server.executors.flow.rich_values import RichForms


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    at: datetime
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: Decimal


class Options(TypedDict, total=False):
    points: list[Point]


class Struct(msgspec.Struct):
    pair: Pair
    ids: set[UUID]


POINT = Point(1, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
SOME_ID = UUID(int=7)
VALUES: list[tuple[Any, Any]] = [
    (POINT, Point),
    ([POINT], list[Point]),
    (Pair(1, Decimal("1.10")), Pair),
    (Struct(Pair(1, Decimal(2)), {SOME_ID}), Struct),
    ({"points": [POINT]}, Options),
    (Colour.RED, Colour),
    ({Colour.RED: (1, 2)}, dict[Colour, tuple[int, ...]]),
    (None, Point | None),
    (b"\x00\xff", bytes),
    ({"raw": b"\x00"}, dict[str, bytes]),
    ((timedelta(1, 2, 3), date(2026, 1, 1), time(1, 2)), tuple[timedelta, date, time]),
    (frozenset({1, 2}), frozenset[int]),
    (10**30, int),
    ({1: "one", "$pyoco": "two"}, Any),
    ("2026-01-01", str),
    ([1, "a", None, 1.5], Any),
]


def stored(value: Any) -> tuple[bytes, str]:
    pieces: list[bytes] = []
    content_type = encode_value(value, pieces.append)
    return b"".join(pieces), content_type


@pytest.mark.parametrize(("value", "hint"), VALUES, ids=[str(hint) for _, hint in VALUES])
def test_a_value_comes_back_as_its_hint_says(value: Any, hint: Any) -> None:
    """RES-20, RES-21, RES-22: as a result, and as a param."""
    data, content_type = stored(value)
    assert Decoder(hint).of_bytes(data, content_type) == value

    def flow(value):  # type: ignore[no-untyped-def]
        ...

    flow.__annotations__ = {"value": hint}
    document = json.loads(json.dumps(params_document({"value": value})))
    read = FlowSignature("flow", flow).read(document)["value"]
    assert read == value
    assert type(read) is type(value)


def kept(value: Any, *, pickles: bool = False) -> tuple[bytes, str]:
    """As a worker stores it."""
    pieces: list[bytes] = []
    content_type = encode_value(value, pieces.append, RichForms(pickles=pickles))
    return b"".join(pieces), content_type


def test_arrays_come_back_alone_and_inside_of_others() -> None:
    """RES-20, RES-21"""
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    data, content_type = kept(array)
    assert content_type == "application/x-npy"
    for value, read in (
        (array, Decoder().of_bytes(data, content_type)),
        ([array], Decoder(list[np.ndarray[Any, Any]]).of_bytes(*kept([array]))),
    ):
        assert type(read) is type(value)
        assert np.array_equal(np.asarray(read), np.asarray(value))
    assert Decoder().of_bytes(*kept({"a": np.int64(7)})) == {"a": np.int64(7)}
    assert np.array_equal(revived(params_document({"array": array}))["array"], array)
    with pytest.raises(NotEncodable, match=r"ndarray at \$"):
        kept(np.array([object()]))
    with pytest.raises(Undecodable, match="cannot be read"):
        Decoder().of_bytes(b"\x93NUMPY", "application/x-npy")


def test_only_handles_of_an_app_that_allows_it_unpickle() -> None:
    """RES-23"""
    with pytest.raises(NotEncodable, match="complex at"):
        kept([1j])
    data, content_type = kept([1j, {1, 2}, POINT], pickles=True)
    assert content_type == "application/json"
    assert data.count(b'"pickle"') == 1, "only what nothing else can encode"
    assert Decoder(pickles=True).of_bytes(data, content_type)[:2] == [1j, {1, 2}]
    with pytest.raises(ResultUnavailable, match="a value of kind 'pickle' is unknown"):
        value_of("1", data, content_type, Decoder())
    with pytest.raises(TypeError, match=r"the params cannot be encoded: complex at \$\['value'\]"):
        params_document({"value": 1j})
    with pytest.raises(NotEncodable):
        kept(lambda: 1, pickles=True)


def test_a_value_that_does_not_fit_its_hint_is_what_the_flow_returned() -> None:
    """APP-8"""
    for value, hint in ((["a"], int), ("abc", bytes), ("2026-01-01", date), ({"x": "a"}, Point), (1.5, int)):
        assert Decoder(hint).of_bytes(*stored(value)) == value


def test_an_unknown_form_is_never_guessed() -> None:
    """RES-22"""
    for document in ({"$pyoco": "later", "value": 1}, [{"$pyoco": "pickle", "value": "gASV"}], {"$pyoco": "date"}):
        with pytest.raises(Undecodable):
            revived(document)
        with pytest.raises(ResultUnavailable) as raised:
            inline_value("1", {"status": "COMPLETED", "result": {"value": document}}, Decoder())
        assert raised.value.err_id == "ERR-PYOCO-0054"
        with pytest.raises(ResultUnavailable):
            value_of("1", json.dumps(document).encode(), "application/json", Decoder())
    with pytest.raises(ResultUnavailable):
        value_of("1", b"", "application/x-later", Decoder())


def test_texts_of_other_clients_become_what_the_signature_says() -> None:
    """A form and `curl` send JSON."""

    def flow(
        at: datetime, price: Decimal, raw: bytes, kind: Colour = Colour.RED, limit: Annotated[int, "most"] = 3
    ) -> None: ...

    read = FlowSignature("flow", flow).read
    params = {"at": "2026-01-02T03:04:05Z", "price": "1.5", "raw": "AP8=", "kind": "red"}
    assert read(params) == {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("1.5"),
        "raw": b"\x00\xff",
        "kind": Colour.RED,
        "limit": 3,
    }
    for change, says in (
        ({"at": "soon"}, "param 'at' of flow flow: Invalid RFC3339"),
        ({"kind": "blue"}, "Invalid enum value 'blue'"),
        ({"limit": "3"}, "Expected `int`, got `str`"),
        ({"limits": 3}, "has no param 'limits'; did you mean limit?"),
        ({"price": {"$pyoco": "later", "value": 1}}, "is unknown to this version"),
    ):
        with pytest.raises(ParamsRefused, match=says):
            read({**params, **change})
    with pytest.raises(ParamsRefused, match="flow flow needs param 'raw'"):
        read({"at": "2026-01-02T03:04:05Z", "price": "1"})


def test_hints_are_described_for_forms() -> None:
    """APP-11"""
    assert schema_of(Literal["a", "b"]) == {"type": "string", "enum": ["a", "b"]}
    assert schema_of(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert schema_of(list[dict[str, float]]) == {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "number"}},
    }
    assert schema_of(Point) == {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "colour": {"type": "string", "enum": ["red"]},
        },
        "required": ["x", "at"],
    }
    assert schema_of(Struct)["required"] == ["pair", "ids"]
    assert schema_of(Options)["properties"]["points"]["items"]["type"] == "object"
    assert schema_of(Pair)["properties"]["right"] == {"type": "string", "format": "decimal"}
    assert schema_of(set[int]) == {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
    assert schema_of(tuple[int, str])["maxItems"] == 2
    for anything in (Any, object, Mapping, "Later", type):
        assert schema_of(anything) == {}


def test_an_offer_comes_as_it_went() -> None:
    """APP-10"""
    offer = OfferedFlow(name="a", app="b", tags=("x",), params={"type": "object"}, returns={}, timeout=1.5, tool=True)
    assert read_offered_flow(json.loads(json.dumps(offer.document()))) == offer
    assert read_offered_flow({"name": "a", "app": "b", "later": 1}) == OfferedFlow(name="a", app="b")
    for bad in (None, {}, {"name": "", "app": "b"}, {"name": "a", "app": 1}, {"name": "a", "app": "b", "tags": "x"}):
        with pytest.raises(ValueError):
            read_offered_flow(bad)


class Own(Exception):
    def __init__(self, code: int, when: date) -> None:
        super().__init__(code, when)
        self.code = code


class Picky(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def failed(error: BaseException) -> RunFailed:
    record = {"state": "FAILED", "ended_at": 2.0, "traceback": "Traceback", "exception": exception_form(error)}
    snapshot = {
        "status": "FAILED",
        "reason": "execution_error",
        "error": "Own: (7, …)",
        "tries": [{"try": 1}],
        "task_records": {
            "first": {"state": "SUCCEEDED", "ended_at": 1.0},
            "broken": json.loads(json.dumps(record)),
            "later": {"state": "FAILED", "ended_at": 3.0},
        },
    }
    found = failure_of("r-1", snapshot)
    assert isinstance(found, RunFailed)
    return found


def test_a_failed_run_is_raised_with_its_cause() -> None:
    """APP-8"""
    error = failed(Own(7, date(2026, 1, 1)))
    assert (error.run_id, error.task, error.reason, error.error) == ("r-1", "broken", "execution_error", "Own: (7, …)")
    assert (error.remote_traceback, error.tries) == ("Traceback", [{"try": 1}])
    assert str(error) == "ERR-PYOCO-0053: run r-1 is FAILED (execution_error) in task broken: Own: (7, …)"
    cause = error.__cause__
    assert isinstance(cause, Own)
    assert (cause.code, cause.args) == (7, (7, date(2026, 1, 1)))


def test_a_cause_that_cannot_be_rebuilt_is_left_out() -> None:
    """APP-8"""

    class Local(Exception):
        pass

    for error in (Picky(code=1), Local(), ValueError(object()), ValueError("x" * 5000), SystemExit(1)):
        assert failed(error).__cause__ is None
    nowhere = {"module": "no.such.module", "name": "Error", "args": []}
    assert (
        failure_of(
            "1", {"status": "FAILED", "task_records": {"a": {"state": "FAILED", "exception": nowhere}}}
        ).__cause__
        is None
    )
    bare = failure_of("1", {"status": "FAILED"})
    assert str(bare) == "ERR-PYOCO-0053: run 1 is FAILED: without an error text"


def test_what_has_no_value_says_why() -> None:
    """APP-8"""
    cancelled = failure_of("1", {"status": "CANCELLED", "cancel_reason": "a typo"})
    assert isinstance(cancelled, RunCancelled)
    assert (cancelled.run_id, cancelled.reason) == ("1", "a typo")
    error = {"err_id": "ERR-PYOCO-0055", "message": "The value is too large to be kept."}
    with pytest.raises(ResultUnavailable, match="ERR-PYOCO-0055: The value is too large") as raised:
        inline_value("1", {"status": "COMPLETED", "result": {"error": error}}, Decoder())
    assert raised.value.err_id == "ERR-PYOCO-0055"
    assert inline_value("1", {"status": "COMPLETED", "result": {"preview": "[1"}}, Decoder()) is FETCH


def test_a_module_that_ends_the_program_when_it_is_imported_does_not_end_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APP-8: a script without a main guard may name the class of an exception"""
    (tmp_path / "ends_the_program.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    exception = {"module": "ends_the_program", "name": "Error", "args": []}
    snapshot = {"status": "FAILED", "task_records": {"a": {"state": "FAILED", "exception": exception}}}
    assert failure_of("1", snapshot).__cause__ is None
