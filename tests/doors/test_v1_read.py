"""`GET /v1/runs/{run_id}`: each state of a run as its owner sees it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from pyoco_server.core.priced.envelope import Artifact
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.errors import DependencyUnavailable
from support.priced.gateways import PricedDoor, a_body, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = 86_400


async def test_a_run_that_waits_shows_what_is_set_aside(priced_door: PricedDoor) -> None:
    """PRICED-74, PRICED-75, PRICED-83: exactly these members, and the headers say the same"""
    payer = await priced_door.payer("10.0000")
    run_id = await priced_door.submitted(payer, meta={"trace_id": "of-the-run"})
    answer = await priced_door.get(payer, run_id, {"X-Trace-Id": "of-the-request"})
    assert answer.status_code == 200
    body = answer.json()
    meta = body.pop("meta")
    assert body == {
        "run_id": run_id,
        "status": "QUEUED",
        "money_state": "RESERVED",
        "cost": {
            "reserved_usd": "0.2500",
            "used_usd": "0.0000",
            "minimum_fee_usd": "0.0050",
            "budget_remaining_usd": "9.7500",
        },
        "result": None,
    }
    assert meta.keys() == {"created_at", "updated_at", "trace_id"}
    assert meta["trace_id"] == "of-the-run"
    assert meta["created_at"].endswith("Z")
    assert datetime.fromisoformat(meta["created_at"]) <= datetime.fromisoformat(meta["updated_at"])
    assert answer.headers["x-trace-id"] == "of-the-request"
    assert answer.headers["cache-control"] == "no-store"
    assert costs_of(answer) == ("0.2500", "0.0000", "9.7500", "0")


async def test_a_run_under_way_has_no_result_yet(priced_door: PricedDoor) -> None:
    """PRICED-74, PRICED-75"""
    payer = await priced_door.payer("10.0000")
    run_id = await priced_door.submitted(payer)
    await priced_door._started(run_id)
    body = (await priced_door.get(payer, run_id)).json()
    assert (body["status"], body["money_state"], body["result"]) == ("PROCESSING", "RESERVED", None)
    assert body["cost"]["used_usd"] == "0.0000"


async def test_a_completed_run_shows_its_charge_and_where_its_result_is(priced_door: PricedDoor) -> None:
    """PRICED-74, PRICED-77, PRICED-81, PRICED-82"""
    payer = await priced_door.payer("10.0000")
    run_id = await priced_door.submitted(payer)
    run = await priced_door.completed(run_id, {"answer_text": "yes"}, tokens=12)
    answer = await priced_door.get(payer, run_id)
    body = answer.json()
    assert (body["status"], body["money_state"]) == ("COMPLETED", "SETTLED")
    assert body["cost"] == {
        "reserved_usd": "0.2500",
        "used_usd": "0.0500",
        "minimum_fee_usd": "0.0050",
        "budget_remaining_usd": "9.9500",
    }
    assert costs_of(answer) == ("0.2500", "0.0500", "9.9500", "12")
    result = body["result"]
    assert result.keys() == {"presigned_url", "sha256", "expires_at", "artifacts"}
    assert run.result is not None
    assert (result["sha256"], result["artifacts"]) == (run.result.sha256, [])
    stored = await priced_door.client.get(result["presigned_url"])
    assert hashlib.sha256(stored.content).hexdigest() == result["sha256"]
    assert stored.json()["data"] == {"answer_text": "yes"}


async def test_where_a_charge_shows_the_budget_shows_it_too(priced_door: PricedDoor) -> None:
    """PRICED-83: the run may end while it is being asked for; its budget is then read after it"""
    payer = await priced_door.payer("10.0000")
    run_id = await priced_door.submitted(payer)
    ending = _EndsFirst(priced_door, run_id)
    with priced_door.with_priced(replace(priced_door.priced, ledger=ending)):
        answer = await priced_door.get(payer, run_id)
    assert answer.json()["status"] == "COMPLETED"
    assert costs_of(answer) == ("0.2500", "0.0500", "9.9500", "0")
    assert answer.json()["cost"]["budget_remaining_usd"] == "9.9500"


class _EndsFirst:
    """A ledger in which the run ends between the entrance and the look at its row."""

    def __init__(self, door: PricedDoor, run_id: str) -> None:
        self._door, self._run_id, self._ledger = door, run_id, door.priced.ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read(self, question: Any) -> Any:
        run_id, self._run_id = self._run_id, ""
        if run_id:
            with self._door.with_priced(replace(self._door.priced, ledger=self._ledger)):
                await self._door.completed(run_id, {"answer_text": "yes"})
        return await self._ledger.read(question)


async def test_artifacts_have_addresses_of_their_own(priced_door: PricedDoor) -> None:
    """PRICED-74: name, presigned_url, sha256, bytes, content_type, expires_at"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    await priced_door.completed(
        run_id, {"answer_text": "yes"}, [Artifact(name="notes.md", content_type="text/markdown", data=b"# Notes\n")]
    )
    result = (await priced_door.get(payer, run_id)).json()["result"]
    [artifact] = result["artifacts"]
    stored = await priced_door.client.get(artifact.pop("presigned_url"))
    assert stored.content == b"# Notes\n"
    assert stored.headers["content-type"] == "text/markdown"
    assert artifact == {
        "name": "notes.md",
        "sha256": hashlib.sha256(b"# Notes\n").hexdigest(),
        "bytes": 8,
        "content_type": "text/markdown",
        "expires_at": result["expires_at"],
    }


async def test_a_failed_run_says_why_and_costs_the_minimum_fee(priced_door: PricedDoor) -> None:
    """PRICED-13, PRICED-74: never an address"""
    payer = await priced_door.payer("10.0000")
    run_id = await priced_door.submitted(payer)
    await priced_door.failed(run_id, Reason.PACK_FAILED, "MODEL_REFUSED")
    answer = await priced_door.get(payer, run_id)
    body = answer.json()
    assert (body["status"], body["money_state"]) == ("FAILED", "SETTLED")
    assert body["result"] == {
        "reason_code": "PACK_FAILED",
        "problem": {
            "type": "urn:dpp:problem:pack-failed",
            "title": "The pack failed",
            "detail": "MODEL_REFUSED",
            "reason_code": "PACK_FAILED",
        },
    }
    assert costs_of(answer) == ("0.2500", "0.0050", "9.9950", "0")


class TestInline:
    async def test_a_small_result_comes_along_when_it_was_asked_for(self, priced_door: PricedDoor) -> None:
        """PRICED-76"""
        payer = await priced_door.payer()
        data: dict[str, Any] = {"answer_text": "ü" * 100, "confidence": 0.5, "nested": [{"a": None}]}
        run_id = await priced_door.submitted(payer, options={"inline": 1})
        await priced_door.completed(run_id, data)
        result = (await priced_door.get(payer, run_id)).json()["result"]
        assert result["inline"] == {"data": data}
        assert "inline_omitted" not in result

    async def test_a_large_one_is_left_out_whole(self, priced_door: PricedDoor) -> None:
        """PRICED-76: JSON is never cut"""
        payer = await priced_door.payer()
        run_id = await priced_door.submitted(payer, options={"inline": 1})
        await priced_door.completed(run_id, {"answer_text": "x" * 262_144})
        result = (await priced_door.get(payer, run_id)).json()["result"]
        assert result["inline_omitted"] == "TOO_LARGE"
        assert "inline" not in result

    async def test_a_store_that_cannot_be_read_does_not_hide_the_run(self, priced_door: PricedDoor) -> None:
        """PRICED-76"""
        payer = await priced_door.payer()
        run_id = await priced_door.submitted(payer, options={"inline": 1})
        await priced_door.completed(run_id, {"answer_text": "yes"})
        with priced_door.with_priced(replace(priced_door.priced, results=_Unreadable(priced_door.priced.results))):
            answer = await priced_door.get(payer, run_id)
        assert answer.status_code == 200
        assert answer.json()["result"]["inline_omitted"] == "UNAVAILABLE"


class _Unreadable:
    """A store of results that signs, and reads nothing."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    async def get(self, key: str) -> Any:
        raise DependencyUnavailable("cannot read")


class TestAddresses:
    @pytest.mark.parametrize(
        ("headers", "begin"),
        [
            ({"Host": "api.example.com"}, "http://api.example.com/v1/results/"),
            ({"Host": "127.0.0.1:8080"}, "http://127.0.0.1:8080/v1/results/"),
            ({"Host": "[::1]:8080"}, "http://[::1]:8080/v1/results/"),
            (
                {"Host": "inner", "X-Forwarded-Host": "api.example.com, inner", "X-Forwarded-Proto": "https"},
                "https://api.example.com/v1/results/",
            ),
            ({"Host": "a", "X-Forwarded-Proto": "javascript"}, "http://a/v1/results/"),
            ({"Host": "evil/path"}, "/v1/results/"),
            ({"Host": "user@evil"}, "/v1/results/"),
            ({"Host": ""}, "/v1/results/"),
        ],
    )
    async def test_they_lead_to_where_the_caller_asked(
        self, priced_door: PricedDoor, headers: dict[str, str], begin: str
    ) -> None:
        """PRICED-81: a client follows them as they are"""
        payer = await priced_door.payer()
        run_id = await priced_door.submitted(payer)
        await priced_door.completed(run_id, {"answer_text": "yes"})
        result = (await priced_door.get(payer, run_id, headers)).json()["result"]
        assert result["presigned_url"].startswith(begin)

    async def test_they_expire_in_ten_minutes_and_never_after_the_retention(self, priced_door: PricedDoor) -> None:
        """PRICED-77, PRICED-168"""
        payer = await priced_door.payer()
        run_id = await priced_door.submitted(payer)
        run = await priced_door.completed(run_id, {"answer_text": "yes"})
        now_us = await priced_door.priced.ledger.read(lambda tx: tx.now_us())
        result = (await priced_door.get(payer, run_id)).json()["result"]
        ahead = datetime.fromisoformat(result["expires_at"]).timestamp() - now_us // 1_000_000
        assert 600 <= ahead <= 605
        with priced_door.later(30 * DAY - 60):
            result = (await priced_door.get(payer, run_id)).json()["result"]
        assert datetime.fromisoformat(result["expires_at"]).timestamp() == run.retention_until // 1_000_000


class TestRetention:
    async def test_the_owner_is_told_that_it_is_gone(self, priced_door: PricedDoor) -> None:
        """PRICED-80, PRICED-83: with what it had cost"""
        payer = await priced_door.payer("10.0000")
        run_id = await priced_door.submitted(payer)
        await priced_door.completed(run_id, {"answer_text": "yes"}, tokens=3)
        with priced_door.later(30 * DAY + 1):
            answer = await priced_door.get(payer, run_id)
        assert check_problem(answer, Reason.RUN_RETENTION_EXPIRED)["run_id"] == run_id
        assert costs_of(answer) == ("0.2500", "0.0500", "9.9500", "3")

    async def test_also_when_it_never_ended(self, priced_door: PricedDoor) -> None:
        """PRICED-80: whatever the status column says"""
        payer = await priced_door.payer("10.0000")
        run_id = await priced_door.submitted(payer)
        with priced_door.later(30 * DAY + 1):
            answer = await priced_door.get(payer, run_id)
        check_problem(answer, Reason.RUN_RETENTION_EXPIRED)
        assert costs_of(answer)[:2] == ("0.2500", "0.0000")

    async def test_also_after_its_content_was_removed(self, priced_door: PricedDoor) -> None:
        """PRICED-31, PRICED-80: the row stays as a tombstone"""
        payer = await priced_door.payer("10.0000")
        run_id = await priced_door.submitted(payer)
        run = await priced_door.completed(run_id, {"answer_text": "yes"})
        with priced_door.later(30 * DAY + 1):
            await priced_door.priced.ledger.transact(lambda tx: tx.ends.expire(run_id, run.version))
            answer = await priced_door.get(payer, run_id)
        check_problem(answer, Reason.RUN_RETENTION_EXPIRED)
        assert costs_of(answer) == ("0.2500", "0.0500", "9.9500", "0")

    async def test_anybody_else_is_told_what_is_told_of_every_run_that_is_not_there(
        self, priced_door: PricedDoor
    ) -> None:
        """PRICED-80"""
        payer, other = await priced_door.payer(), await priced_door.payer()
        run_id = await priced_door.submitted(payer)
        with priced_door.later(30 * DAY + 1):
            check_problem(await priced_door.get(other, run_id), Reason.RUN_NOT_FOUND)


async def test_what_is_internal_is_never_shown(priced_door: PricedDoor) -> None:
    """PRICED-29, PRICED-32: nor are the inputs"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer, inputs={"question": "the-marker?"})
    texts = [(await priced_door.get(payer, run_id)).text]
    run = await priced_door.completed(run_id, {"answer_text": "yes"})
    texts.append((await priced_door.get(payer, run_id)).text)
    hidden = [run.payload_hash, run.lease_token, run.finalize_token, "the-marker", "version", "lease", "finalize"]
    for text in texts:
        assert [word for word in hidden if word is not None and word in text] == []


async def test_head_is_answered_like_get(priced_door: PricedDoor) -> None:
    """PRICED-82"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    answer = await priced_door.client.head(f"/v1/runs/{run_id}", headers=payer.headers)
    assert answer.status_code == 200
    assert costs_of(answer)[0] == "0.2500"


async def test_a_receipt_and_a_run_are_strict_json(priced_door: PricedDoor) -> None:
    payer = await priced_door.payer()
    answer = await priced_door.post(payer, a_body(reservation={"max_cost_usd": "0.2500", "min_reliability_score": 1}))
    assert b'"min_reliability_score":1.0' in answer.content
    json.loads(answer.content)
