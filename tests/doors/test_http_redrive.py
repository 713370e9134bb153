"""`/dlq`: dead letters redriven and deleted over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.dead_letters import a_letter
from pyoco_server.core.dead_letter import dead_letter_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.ports.nats.link import Link
from support.burials import bury_letter, bury_letters, died, run_died
from support.dead_letters_http import NOT_FOUND, ask, ids
from support.doors_support import check_refusal
from support.gateways import Gateway, error, stock_of, stored, submit_yaml
from support.waiting import eventually


class TestRedrive:
    async def test_makes_a_new_run_and_takes_the_letter_away(self, gateway: Gateway) -> None:
        letter_id, old = await died(gateway.backend, params={"n": 1})
        answer = await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")
        assert answer.status_code == 200
        run_id = answer.json()["run_id"]
        assert answer.json() == {
            "id": str(letter_id),
            "run_id": run_id,
            "rerun_of": old.run_id,
            "status": "PENDING",
        }
        assert "idempotency-replayed" not in answer.headers
        assert await ids(gateway) == []
        assert run_id in [run["run_id"] for run in (await gateway.client.get("/runs")).json()]
        run = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert (run["status"], run["params"], run["rerun_of"]) == ("PENDING", {"n": 1}, old.run_id)
        assert (await gateway.client.get(f"/runs/{old.run_id}")).json()["status"] == "FAILED"
        again = await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")
        assert (again.status_code, again.json()) == (404, NOT_FOUND)

    async def test_a_failed_run_names_its_letter_and_the_runs_that_repeat_it(self, gateway: Gateway) -> None:
        """CLI-18"""
        letter_id, old = await died(gateway.backend)
        path = f"/runs/{old.run_id}"

        async def told() -> tuple[Any, Any]:
            run = (await gateway.client.get(path)).json()
            return run.get("letter_id"), run.get("rerun_ids")

        async def is_told(expected: tuple[Any, Any]) -> bool:
            return await told() == expected

        await eventually(lambda: is_told((str(letter_id), [])))
        first = (await gateway.client.post(f"{path}/rerun")).json()["run_id"]
        await eventually(lambda: is_told((str(letter_id), [first])))
        second = (await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")).json()["run_id"]
        await eventually(lambda: is_told((None, [second, first])))
        assert "rerun_ids" not in (await gateway.client.get(f"/runs/{first}")).json()

    async def test_a_double_click_redrives_once(self, gateway: Gateway, link: Link) -> None:
        letter_id, _ = await died(gateway.backend)
        before = (await stock_of(gateway.config, link))[gateway.config.work_stream]
        answers = await asyncio.gather(*(ask(gateway, "POST", f"/dlq/{letter_id}/redrive") for _ in range(10)))
        assert {answer.status_code for answer in answers} <= {200, 404}
        assert len({answer.json()["run_id"] for answer in answers if answer.status_code == 200}) == 1
        assert (await stock_of(gateway.config, link))[gateway.config.work_stream] == before + 1

    async def test_with_other_params(self, gateway: Gateway) -> None:
        letter_id, _ = await died(gateway.backend, params={"a": 1, "b": 2})
        answer = await ask(gateway, "POST", f"/dlq/{letter_id}/redrive", {"params": {"b": 3}})
        run = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
        assert run["params"] == {"a": 1, "b": 3}

    async def test_a_bad_body_is_refused_and_nothing_happens(self, gateway: Gateway) -> None:
        letter_id, _ = await died(gateway.backend)
        for body in [b"{", b"[]", b'{"params": 1}', b'{"tag": "no tag"}']:
            answer = await gateway.client.post(f"/dlq/{letter_id}/redrive", content=body)
            assert answer.status_code == 422, body
            check_refusal(answer)
            assert await ids(gateway) == [letter_id], body

    async def test_an_uploaded_flow_runs_from_the_kept_file(self, gateway: Gateway) -> None:
        run_id = (await submit_yaml(gateway)).json()["run_id"]
        found = await stored(gateway, run_id)
        run = replace(found.run, status=(await run_died(gateway.backend)).status)
        await gateway.backend.runs.replace(run, found.revision)
        letter_id = await bury_letter(gateway.backend, dead_letter_of(run, DeadReason.TIMEOUT, 1.0))
        answer = await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")
        again = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
        assert again["workflow_yaml_sha256"] == run.workflow_yaml_sha256
        assert again["params"]["mode"] == "バッチ"

    async def test_what_cannot_be_repeated_is_409(self, gateway: Gateway) -> None:
        letter_id = await bury_letter(gateway.backend, a_letter())
        answer = await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")
        assert answer.status_code == 409
        body = answer.json()
        assert [problem["type"] for problem in body.pop("errors")] == ["run_gone"]
        assert body == error(28, "run cannot be repeated")
        assert await ids(gateway) == [letter_id]

    async def test_by_filter(self, gateway: Gateway) -> None:
        for _ in range(3):
            await died(gateway.backend, flow_name="f")
        bad = await bury_letter(gateway.backend, a_letter(flow_name="f"))
        other, _ = await died(gateway.backend, flow_name="g")
        answer = (await ask(gateway, "POST", "/dlq/redrive", {"flow": "f"})).json()
        problem = {
            "id": str(bad),
            "err_id": "ERR-PYOCO-0028",
            "detail": "the letter names a run that is no longer stored",
        }
        assert answer == {
            "matched": 4,
            "redriven": 3,
            "failed": 1,
            "more": False,
            "next_cursor": None,
            "problems": [problem],
        }
        assert await ids(gateway) == [other, bad]
        assert len((await gateway.client.get("/runs?status=PENDING")).json()) == 3

    async def test_by_filter_in_steps(self, gateway: Gateway) -> None:
        old, _ = await died(gateway.backend)
        bad = await bury_letters(gateway.backend, *[a_letter()] * 2)
        first = (await ask(gateway, "POST", "/dlq/redrive", {"all": True, "limit": 2})).json()
        assert (first["matched"], first["failed"], first["more"]) == (2, 2, True)
        # Without the cursor those that cannot be redriven would be met again and again.
        body = {"all": True, "limit": 2, "cursor": first["next_cursor"]}
        second = (await ask(gateway, "POST", "/dlq/redrive", body)).json()
        assert (second["matched"], second["redriven"], second["more"]) == (1, 1, False)
        assert await ids(gateway) == bad[::-1]
        assert old not in bad

    async def test_a_selection_that_is_not_clear_redrives_nothing(self, gateway: Gateway) -> None:
        cases: list[tuple[bytes, list[str]]] = [
            (b"", ["body"]),
            (b"{}", ["body"]),
            (b'{"all": false}', ["body"]),
            (b'{"limit": 5}', ["body"]),
            (b'{"all": 1}', ["body", "all"]),
            (b'{"reson": "timeout", "all": true}', ["body", "reson"]),
            (b'{"reason": 1}', ["body", "reason"]),
            (b'{"all": true, "limit": 0}', ["body", "limit"]),
            (b'{"all": true, "limit": 10001}', ["body", "limit"]),
            (b'{"all": true, "cursor": "x"}', ["body", "cursor"]),
            (b'{"flow": "' + b"x" * 513 + b'"}', ["body", "flow"]),
            (b'{"flow": "\\ud800"}', ["body"]),
            (b'{"up_to": "9"}', ["body"]),
            (b'{"all": true, "up_to": 9}', ["body", "up_to"]),
            (b'{"all": true, "up_to": "0"}', ["body", "up_to"]),
            (b'{"all": true, "up_to": "1000000000000000000"}', ["body", "up_to"]),
        ]
        letter_id, _ = await died(gateway.backend)
        for body, loc in cases:
            answer = await gateway.client.post("/dlq/redrive", content=body)
            assert answer.status_code == 422, body
            assert [problem["loc"] for problem in check_refusal(answer)] == [loc], body
            assert await ids(gateway) == [letter_id], body

    async def test_what_came_in_after_the_look_stays_where_it_is(self, gateway: Gateway) -> None:
        """However many steps it takes, and however far a cursor would reach."""
        seen = [(await died(gateway.backend, flow_name="f"))[0] for _ in range(3)]
        late, _ = await died(gateway.backend, flow_name="f")
        body = {"flow": "f", "limit": 2, "up_to": str(seen[-1])}
        first = (await ask(gateway, "POST", "/dlq/redrive", body)).json()
        assert (first["matched"], first["redriven"], first["more"]) == (2, 2, True)
        second = (await ask(gateway, "POST", "/dlq/redrive", body | {"cursor": first["next_cursor"]})).json()
        assert (second["matched"], second["redriven"], second["more"]) == (1, 1, False)
        latest, _ = await died(gateway.backend, flow_name="f")
        far = (await gateway.client.get("/dlq?limit=1")).json()["next_cursor"]  # `late` lies below it
        assert (await ask(gateway, "POST", "/dlq/redrive", body | {"cursor": far})).json()["matched"] == 0
        assert await ids(gateway) == [latest, late]


class TestDelete:
    async def test_one(self, gateway: Gateway) -> None:
        letter_id, run = await died(gateway.backend)
        answer = await ask(gateway, "DELETE", f"/dlq/{letter_id}")
        assert (answer.status_code, answer.json()) == (200, {"id": str(letter_id), "deleted": True})
        assert await ids(gateway) == []
        assert (await ask(gateway, "DELETE", f"/dlq/{letter_id}")).status_code == 404
        assert (await gateway.client.get(f"/runs/{run.run_id}")).json()["status"] == "FAILED"

    async def test_by_filter(self, gateway: Gateway) -> None:
        there = await bury_letters(gateway.backend, *[a_letter(flow_name=name) for name in "ffffgg"])
        answer = await ask(gateway, "DELETE", "/dlq?flow=f&limit=3")
        assert answer.json() == {"matched": 3, "deleted": 3, "more": True}
        assert (await ask(gateway, "DELETE", "/dlq?flow=f&all=false")).json()["deleted"] == 1
        assert await ids(gateway) == there[:3:-1]
        assert (await ask(gateway, "DELETE", "/dlq?all=true")).json() == {"matched": 2, "deleted": 2, "more": False}
        assert (await ask(gateway, "DELETE", "/dlq?all=true")).json() == {"matched": 0, "deleted": 0, "more": False}

    async def test_what_came_in_after_the_look_stays_where_it_is(self, gateway: Gateway) -> None:
        *seen, late = await bury_letters(gateway.backend, *[a_letter()] * 4)
        asked = f"/dlq?all=true&limit=2&up_to={seen[-1]}"
        assert (await ask(gateway, "DELETE", asked)).json() == {"matched": 2, "deleted": 2, "more": True}
        assert (await ask(gateway, "DELETE", asked)).json() == {"matched": 1, "deleted": 1, "more": False}
        assert (await ask(gateway, "DELETE", asked)).json() == {"matched": 0, "deleted": 0, "more": False}
        assert await ids(gateway) == [late]

    async def test_a_selection_that_is_not_clear_deletes_nothing(self, gateway: Gateway) -> None:
        cases: list[str] = [
            *("", "?all=false", "?all=1&flow=f", "?all=", "?limit=5", "?all=true&limit=0"),
            *("?all=true&limit=10001", "?flow=a&flow=b", f"?tag={'x' * 513}"),
            *("?up_to=9", "?all=true&up_to=", "?all=true&up_to=0", "?all=true&up_to=9&up_to=9", "?all=true&up_to=x"),
        ]
        letter_id = await bury_letter(gateway.backend, a_letter(flow_name="f"))
        for query in cases:
            answer = await gateway.client.delete(f"/dlq{query}")
            assert answer.status_code == 422, query[:80]
            check_refusal(answer, 17)
            assert await ids(gateway) == [letter_id], query[:80]


ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.sampled_from(["reason", "flow", "tag", "run_id", "limit", "cursor", "all", "up_to"]) | st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


class TestAnything:
    @pytest.fixture
    async def stocked(self, gateway: Gateway) -> Gateway:
        await died(gateway.backend)
        return gateway

    @ANY
    @given(query=st.dictionaries(words, st.text(max_size=10), max_size=4), segment=st.text(max_size=8))
    async def test_any_query_and_id_is_answered(self, stocked: Gateway, query: dict[str, str], segment: str) -> None:
        asked = urlencode(query, errors="replace")
        path = quote(segment.encode("utf-8", "replace"), safe="")
        for answer in (
            await stocked.client.get(f"/dlq?{asked}"),
            await stocked.client.delete(f"/dlq?{asked}&limit=0"),
            await stocked.client.get(f"/dlq/{path}"),
        ):
            assert answer.status_code < 500

    @ANY
    @given(body=st.dictionaries(words, json_values, max_size=4) | json_values)
    async def test_any_selection_is_answered(self, stocked: Gateway, body: Any) -> None:
        answer = await stocked.client.post("/dlq/redrive", json=body)
        assert answer.status_code in {200, 422}
        answer = await stocked.client.post("/dlq/1/redrive", json=body)
        assert answer.status_code in {200, 404, 409, 422}
