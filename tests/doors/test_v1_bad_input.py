"""What is refused with 422, where it says what is wrong, and that nothing is reserved for any of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.strict_text import plain, read_object
from support.doors_support import call as call_by_piece
from support.doors_support import endless
from support.priced.gateways import BODY, Payer, PricedDoor, a_body, check_problem

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY_BYTES_MAX = 262_144


@pytest_asyncio.fixture(loop_scope="module")
async def payer(priced_door: PricedDoor) -> AsyncIterator[Payer]:
    """Whatever is refused leaves no reservation, no row and no message."""
    payer = await priced_door.payer()
    messages = await priced_door.priced.queue.depth()
    yield payer
    assert await priced_door.runs_of(payer) == 0
    assert await priced_door.balance(payer) == 10_000_000
    assert await priced_door.priced.queue.depth() == messages


async def pointers(door: PricedDoor, payer: Payer, body: Any, key: str | None = None) -> list[str]:
    document = check_problem(await door.post(payer, body, key), Reason.VALIDATION_FAILED)
    return [error["pointer"] for error in document["errors"]]


def reservation(**changes: Any) -> dict[str, Any]:
    return a_body(reservation=BODY["reservation"] | changes)


def written(place: str, text: str) -> bytes:
    """A body in which the value at `place` is exactly this text."""
    name = place.rpartition("/")[2]
    body = json.dumps(a_body() | {"options": {}, "meta": {}, "artifacts": {}})
    if place.startswith("/reservation/") and name != "max_cost_usd":
        return body.replace('"0.2500"', f'"0.2500", "{name}": {text}').encode()
    if name == "max_cost_usd":
        return body.replace('"0.2500"', text).encode()
    if place == "/options/inline":
        return body.replace('"options": {}', f'"options": {{"inline": {text}}}').encode()
    return body.replace('"question": "Ship on Friday?"', f'"question": "q", "{name}": {text}').encode()


class TestMoney:
    @pytest.mark.parametrize(
        "text",
        [
            *('"0.25"', '"0.25000"', '"1"', '"1."', '".2500"', '"00.2500"', '"01.0000"', '"1,0000"', '"1_0.0000"'),
            *('"-0.2500"', '"+0.2500"', '"-0.0001"', '"0.0000"', '"1e2"', '"1.0000e5"', '"1E400"', '"1e999999999"'),
            *('" 0.2500"', '"0.2500 "', '"0.2500\\n"', '"\\t0.2500"', '"0 .2500"', '""', '"NaN"', '"Infinity"'),
            *('"٠.٢٥٠٠"', '"０.２５００"', '"0.25０0"', '"$0.2500"', '"0.2500USD"', '"0x1.0000"'),
            *('"1000000000.0000"', '"9' + "9" * 400 + '.0000"', '"0.' + "0" * 5000 + '1"'),
            *("0.25", "0.2500", "1", "25", "1e2", "-1", "0", "true", "null", '["0.2500"]', '{"usd": "0.2500"}'),
        ],
    )
    async def test_an_amount_outside_the_grammar_is_refused(
        self, priced_door: PricedDoor, payer: Payer, text: str
    ) -> None:
        """PRICED-34"""
        assert await pointers(priced_door, payer, written("/reservation/max_cost_usd", text)) == [
            "/reservation/max_cost_usd"
        ]

    @pytest.mark.parametrize(("usd", "status"), [("0.0500", 202), ("999999999.9999", 402)])
    async def test_the_bounds_themselves_are_fine(self, priced_door: PricedDoor, usd: str, status: int) -> None:
        """PRICED-34"""
        mine = await priced_door.payer()
        assert (await priced_door.post(mine, reservation(max_cost_usd=usd))).status_code == status


class TestNumbers:
    @pytest.mark.parametrize(
        ("place", "text"),
        [
            *(
                ("/reservation/timebox_sec", text)
                for text in ("0", "91", "-1", "90.5", "90.00000000000000001", "1e2", "1e-5", "1e400", "true", '"90"')
            ),
            ("/reservation/timebox_sec", "null"),
            ("/reservation/timebox_sec", "9" * 4000),
            ("/reservation/timebox_sec", "1" + "0" * 200),
            *(
                ("/reservation/min_reliability_score", text)
                for text in ("-0.0001", "1.0001", "2", "0.80000", "0.12345", "0.80000000000000001", "1e-5", "1e400")
            ),
            *(("/reservation/min_reliability_score", text) for text in ("-1e-400", "true", '"0.8"', "null", "[]")),
            *(("/options/inline", text) for text in ("2", "-1", "0.5", "true", "false", '"1"', "null", "1e300")),
        ],
    )
    async def test_a_number_that_is_none_of_those_allowed_is_refused(
        self, priced_door: PricedDoor, payer: Payer, place: str, text: str
    ) -> None:
        """PRICED-69: four decimals are counted in the text"""
        assert await pointers(priced_door, payer, written(place, text)) == [place]

    @pytest.mark.parametrize("text", ["9007199254740992", "-9007199254740992", "1e400", "-1e999", "[[1e400]]"])
    async def test_a_number_in_the_inputs_that_others_would_change_is_refused(
        self, priced_door: PricedDoor, payer: Payer, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        """PRICED-85: whatever the pack itself thinks of it"""
        monkeypatch.setitem(PACKS, "decision", PackSpec(name="decision", inputs=lambda _: ()))
        [found] = await pointers(priced_door, payer, written("/inputs/more", text))
        assert found.startswith("/inputs/more")

    async def test_other_numbers_arrive_as_they_were_sent(
        self, priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-32, PRICED-85"""
        monkeypatch.setitem(PACKS, "decision", PackSpec(name="decision", inputs=lambda _: ()))
        mine, inputs = await priced_door.payer(), {"a": [0.1, 1e-7, 1.0, 9007199254740991, -5, {"b": 2.5}]}
        run_id = await priced_door.submitted(mine, inputs=inputs)
        kept = await priced_door.priced.ledger.read(lambda tx: tx.runs.inputs(run_id))
        assert kept == inputs

    async def test_what_is_kept_is_of_ordinary_types(self) -> None:
        """Some encoders take no others"""
        kept = plain(read_object(b'{"a": [{"b": 0.50}]}'), ())
        assert (kept, type(kept["a"][0]["b"])) == ({"a": [{"b": 0.5}]}, float)


class TestText:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b" \n",
            b"{",
            b"null",
            b"[]",
            b'"text"',
            b"5",
            b"{}}",
            b"\xff\xfe{}",
            b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
            json.dumps(BODY).encode("utf-16"),
            b"{'pack_type': 'decision'}",
            b'{"a": 1,}',
            b'{"a": NaN}',
            b'{"a": Infinity}',
            b'{"a": -Infinity}',
            b'{"a": 01}',
            b'{"a": ' + b"9" * 5000 + b"}",
            b'{"a": ' + b"[" * 100_000,
            b'{"a": ' + b'{"a":' * 20_000,
            b'{"a": "\x01"}',
        ],
    )
    async def test_what_is_no_strict_json_object_is_refused(
        self, priced_door: PricedDoor, payer: Payer, body: bytes
    ) -> None:
        """PRICED-63"""
        assert await pointers(priced_door, payer, body) == [""]

    @pytest.mark.parametrize(
        "text",
        [
            '{"pack_type": "decision", "pack_type": "decision"}',
            '{"inputs": {"question": "a", "question": "b"}}',
            '{"inputs": {"a": [{"b": 1, "b": 1}]}}',
            '{"inputs": {"a": 1, "\\u0061": 2}}',
        ],
    )
    async def test_two_members_of_one_name_are_refused(self, priced_door: PricedDoor, payer: Payer, text: str) -> None:
        """PRICED-63: at every level"""
        document = check_problem(await priced_door.post(payer, text.encode()), Reason.VALIDATION_FAILED)
        assert document["errors"] == [{"pointer": "", "message": "an object has two members of the same name"}]

    async def test_half_of_a_surrogate_pair_is_no_text(self, priced_door: PricedDoor, payer: Payer) -> None:
        """PRICED-85"""
        body = json.dumps(BODY).replace("Ship", "\\ud800").encode()
        assert await pointers(priced_door, payer, body) == ["/inputs/question"]

    @pytest.mark.parametrize("depth", [65, 500, 5000])
    async def test_inputs_too_deep_are_refused(
        self, priced_door: PricedDoor, payer: Payer, monkeypatch: pytest.MonkeyPatch, depth: int
    ) -> None:
        """PRICED-85"""
        monkeypatch.setitem(PACKS, "decision", PackSpec(name="decision", inputs=lambda _: ()))
        assert await pointers(priced_door, payer, written("/inputs/more", "[" * depth + "]" * depth))


class TestSize:
    async def test_a_body_as_large_as_it_may_be_is_taken(self, priced_door: PricedDoor) -> None:
        """PRICED-71"""
        mine = await priced_door.payer()
        body = json.dumps(a_body(inputs={"question": "q", "context": "c" * 100_000})).encode()
        padded = body + b" " * (BODY_BYTES_MAX - len(body))
        assert (await priced_door.post(mine, padded)).status_code == 202
        large = await priced_door.post(mine, padded + b" ")
        document = check_problem(large, Reason.VALIDATION_FAILED)
        assert document["errors"] == [{"pointer": "", "message": "the body has more than 262144 bytes"}]
        assert large.headers["connection"] == "close"

    async def test_a_body_without_an_end_is_not_read_to_it(self, priced_door: PricedDoor, payer: Payer) -> None:
        """PRICED-71: no more is taken than is needed to know"""
        headers = {name.lower(): value for name, value in payer.headers.items()} | {"idempotency-key": "some-key-1"}
        status, body, taken = await call_by_piece(
            priced_door.gateway.app, "/v1/runs", endless(b'{"a": "', b"x" * 65_536), headers
        )
        assert (status, body["reason_code"]) == (422, "VALIDATION_FAILED")
        assert taken <= BODY_BYTES_MAX + 2 * 65_536

    async def test_a_declared_length_is_believed_at_once(self, priced_door: PricedDoor, payer: Payer) -> None:
        """PRICED-71"""
        headers = {name.lower(): value for name, value in payer.headers.items()}
        headers |= {"idempotency-key": "some-key-1", "content-length": str(BODY_BYTES_MAX + 1)}
        status, _, taken = await call_by_piece(priced_door.gateway.app, "/v1/runs", endless(b"{", b" "), headers)
        assert (status, taken) == (422, 0)


class TestKey:
    @pytest.mark.parametrize(
        "key", [b"1234567", b"x" * 65, b"with space", b"tab\there", b"\x7f" * 8, b"schl\xc3\xbcssel", b"", b"\xff" * 8]
    )
    async def test_a_key_of_the_wrong_form_is_refused(self, priced_door: PricedDoor, payer: Payer, key: bytes) -> None:
        """PRICED-68"""
        headers = [(name.encode(), value.encode()) for name, value in payer.headers.items()]
        answer = await priced_door.client.post("/v1/runs", json=BODY, headers=[*headers, (b"idempotency-key", key)])
        document = check_problem(answer, Reason.VALIDATION_FAILED)
        assert [error["pointer"] for error in document["errors"]] == [""]
        assert "Idempotency-Key" in document["errors"][0]["message"]

    @pytest.mark.parametrize("key", ["12345678", "!" * 64, "~" * 64])
    async def test_the_bounds_themselves_are_fine(self, priced_door: PricedDoor, key: str) -> None:
        """PRICED-68"""
        mine = await priced_door.payer()
        assert (await priced_door.post(mine, key=key)).status_code == 202

    async def test_it_is_required_and_once(self, priced_door: PricedDoor, payer: Payer) -> None:
        """PRICED-68"""
        headers = [(name.encode(), value.encode()) for name, value in payer.headers.items()]
        for more in ([], [(b"idempotency-key", b"some-key-1"), (b"idempotency-key", b"some-key-2")]):
            answer = await priced_door.client.post("/v1/runs", json=BODY, headers=[*headers, *more])
            check_problem(answer, Reason.VALIDATION_FAILED)


class TestMembers:
    @pytest.mark.parametrize(
        ("body", "wrong"),
        [
            ({}, ["/pack_type", "/inputs", "/reservation"]),
            (a_body(surprise=1), ["/surprise"]),
            (reservation(surprise=1), ["/reservation/surprise"]),
            (a_body(options={"inline": 0, "surprise": 1}), ["/options/surprise"]),
            (a_body(meta={"surprise": 1}), ["/meta/surprise"]),
            (a_body(artifacts={"surprise": True}), ["/artifacts/surprise"]),
            (a_body(**{"with space": 1}), [""]),
            (a_body(inputs={"question": "q", "surprise": 1}), ["/inputs"]),
            (a_body(inputs={}), ["/inputs/question"]),
            (a_body(inputs={"question": ""}), ["/inputs/question"]),
            (a_body(inputs={"question": "q" * 8001}), ["/inputs/question"]),
            (a_body(inputs={"question": "q", "context": "c" * 100_001}), ["/inputs/context"]),
            (a_body(inputs={"question": 5, "mode": "long"}), ["/inputs/question", "/inputs/mode"]),
            (a_body(inputs=[]), ["/inputs"]),
            (a_body(inputs=None), ["/inputs"]),
            (a_body(reservation=None), ["/reservation"]),
            (a_body(reservation={}), ["/reservation/max_cost_usd"]),
            (a_body(options=None), ["/options"]),
            (a_body(options=[]), ["/options"]),
            (a_body(meta="x"), ["/meta"]),
            (a_body(artifacts={"include_markdown": 1}), ["/artifacts/include_markdown"]),
            (a_body(artifacts={"include_docx": "yes"}), ["/artifacts/include_docx"]),
            (a_body(pack_type="dezision"), ["/pack_type"]),
            (a_body(pack_type="Decision"), ["/pack_type"]),
            (a_body(pack_type=None), ["/pack_type"]),
            (a_body(pack_type=["decision"]), ["/pack_type"]),
            (a_body(meta={"trace_id": "a b"}), ["/meta/trace_id"]),
            (a_body(meta={"trace_id": ""}), ["/meta/trace_id"]),
            (a_body(meta={"trace_id": "x" * 65}), ["/meta/trace_id"]),
            (a_body(meta={"trace_id": "t\n"}), ["/meta/trace_id"]),
            (a_body(meta={"trace_id": 5}), ["/meta/trace_id"]),
            (a_body(meta={"client_version": "x" * 65}), ["/meta/client_version"]),
            (a_body(meta={"client_version": None}), ["/meta/client_version"]),
            (a_body(meta={"profile_version": "v0.4.2.2"}), ["/meta/profile_version"]),
        ],
    )
    async def test_it_is_said_where_it_is_wrong(
        self, priced_door: PricedDoor, payer: Payer, body: dict[str, Any], wrong: list[str]
    ) -> None:
        """PRICED-64, PRICED-69, PRICED-70, PRICED-129"""
        assert await pointers(priced_door, payer, body) == wrong

    async def test_everything_that_is_wrong_is_said_at_once(self, priced_door: PricedDoor, payer: Payer) -> None:
        """PRICED-67"""
        body = {"pack_type": "X", "inputs": 5, "reservation": {"max_cost_usd": 1, "timebox_sec": 0}, "more": 1}
        found = await pointers(priced_door, payer, body, key="short")
        assert found == ["", "/pack_type", "/inputs", "/reservation/max_cost_usd", "/reservation/timebox_sec", "/more"]

    @pytest.mark.parametrize("pack_type", ["ocr", "words", "decision"])
    async def test_a_pack_that_is_not_offered_is_refused(
        self, priced_door: PricedDoor, payer: Payer, pack_type: str
    ) -> None:
        """PRICED-69: before any money moves"""
        with priced_door.with_priced(replace(priced_door.priced, packs={"other": PACKS["decision"]})):
            answer = await priced_door.post(payer, a_body(pack_type=pack_type))
            (error,) = check_problem(answer, Reason.VALIDATION_FAILED)["errors"]
        assert error["pointer"] == "/pack_type"
        assert error["message"].endswith("there are: other")


class TestForm:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "application/jsonp"},
            {"Content-Encoding": "gzip"},
            {"Content-Encoding": "identity, br"},
        ],
    )
    async def test_a_body_that_is_said_to_be_something_else_is_refused(
        self, priced_door: PricedDoor, payer: Payer, headers: dict[str, str]
    ) -> None:
        """PRICED-63"""
        answer = await priced_door.post(payer, headers=headers)
        (error,) = check_problem(answer, Reason.VALIDATION_FAILED)["errors"]
        assert (error["pointer"], next(iter(headers)) in error["message"]) == ("", True)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": ""},
            {"Content-Type": "Application/JSON; charset=utf-8"},
            {"Content-Type": "application/vnd.dpp+json"},
            {"Content-Encoding": "identity"},
        ],
    )
    async def test_a_body_that_is_said_to_be_json_is_looked_at(
        self, priced_door: PricedDoor, payer: Payer, headers: dict[str, str]
    ) -> None:
        answer = await priced_door.post(payer, a_body(pack_type="none"), headers=headers)
        assert "/pack_type" in answer.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "pack_type": st.just("decision") | json_values,
        "inputs": st.just({"question": "q"}) | json_values,
        "reservation": st.just({"max_cost_usd": "99.0000"}) | json_values,
        "options": json_values,
        "artifacts": json_values,
        "meta": json_values,
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies | st.binary(max_size=100))
async def test_whatever_hypothesis_can_think_of_is_answered(
    priced_door: PricedDoor, payer: Payer, body: dict[str, Any] | bytes
) -> None:
    """PRICED-67: never a 5xx; what is valid by chance costs more than there is"""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await priced_door.post(payer, sent)
    check_problem(answer, Reason.BUDGET_DRAINED if answer.status_code == 402 else Reason.VALIDATION_FAILED)


@pytest.mark.parametrize("given", [{"retry": {"tries": 2}}, {"retry": None}, {"timeout": 5}])
async def test_a_pack_takes_no_policy_and_no_timeout(priced_door: PricedDoor, payer: Payer, given: Any) -> None:
    """RETRY-19"""
    document = check_problem(await priced_door.post(payer, a_body() | given), Reason.VALIDATION_FAILED)
    assert [error["pointer"] for error in document["errors"]] == [f"/{next(iter(given))}"]
    assert "executed once at most" in json.dumps(document)
