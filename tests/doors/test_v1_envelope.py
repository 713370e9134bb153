"""`GET /v1/runs/{run_id}/envelope`: the result itself, for its owner alone, as it was published."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import Any

import httpx
import jsonschema_rs
import pytest

from pyoco_server.actions.priced import owned
from pyoco_server.core.priced.envelope import Artifact
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.priced import Priced
from support.priced.gateways import Payer, PricedDoor, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = 86_400
MALFORMED = ["not-a-uuid", "{}", "..", "%00", "%FF", "a%2Fb", "x" * 2000]
COUNTERS = {"x-trace-id", "x-ratelimit-remaining", "x-ratelimit-reset", "content-length"}


async def ask(door: PricedDoor, payer: Payer, run_id: str) -> httpx.Response:
    return await door.client.get(f"/v1/runs/{run_id}/envelope", headers=payer.headers)


async def ended(door: PricedDoor) -> tuple[Payer, str]:
    payer = await door.payer()
    run_id = await door.submitted(payer)
    file = Artifact(name="ocr.md", content_type="text/markdown", data=b"# page")
    await door.completed(run_id, {"answer_text": "yes \u202e\x01", "confidence": 0.5}, [file], tokens=12)
    return payer, run_id


def told(answer: httpx.Response) -> tuple[int, dict[str, str], dict[str, Any]]:
    """What a stranger can see, apart from what may differ (PRICED-79)."""
    headers = {name: value for name, value in answer.headers.items() if name not in COUNTERS}
    body = {name: value for name, value in answer.json().items() if name not in {"instance", "trace_id"}}
    return answer.status_code, headers, body


async def test_its_owner_gets_the_stored_bytes(priced_door: PricedDoor) -> None:
    """PRICED-66, PRICED-82, PRICED-130"""
    payer, run_id = await ended(priced_door)
    answer = await ask(priced_door, payer, run_id)
    run = await priced_door.row(run_id)
    assert run.result is not None
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).hexdigest() == run.result.sha256
    assert answer.headers["etag"] == f'"{run.result.sha256}"'
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert costs_of(answer) == ("0.2500", "0.0500", "9.9500", "12")
    body = answer.json()
    assert body["data"] == {"answer_text": "yes \u202e\x01", "confidence": 0.5}
    assert body["artifacts"].keys() == {"ocr.md"}
    components = priced_door.gateway.app.openapi()["components"]
    jsonschema_rs.validate({"$ref": "#/components/schemas/PricedEnvelope", "components": components}, body)


async def test_a_foreign_run_a_missing_one_and_a_malformed_id_look_alike(priced_door: PricedDoor) -> None:
    """PRICED-78, PRICED-79"""
    _, run_id = await ended(priced_door)
    stranger = await priced_door.payer("3.0000")
    missing = await ask(priced_door, stranger, str(uuid.uuid4()))
    check_problem(missing, Reason.RUN_NOT_FOUND)
    assert costs_of(missing) == ("0.0000", "0.0000", "3.0000", "0")
    for other in (run_id, *MALFORMED):
        found = await ask(priced_door, stranger, other)
        assert told(found) == told(missing), other
    without = await priced_door.client.get(f"/v1/runs/{run_id}/envelope")
    check_problem(without, Reason.AUTH_INVALID)


@pytest.mark.parametrize("status", ["QUEUED", "PROCESSING", "FAILED"])
async def test_a_run_that_published_nothing_is_told_with_its_status(priced_door: PricedDoor, status: str) -> None:
    """PRICED-12, PRICED-67, PRICED-83: the owner may know of it, so it is no 404"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    if status == "PROCESSING":
        await priced_door._started(run_id)
    if status == "FAILED":
        await priced_door.failed(run_id, Reason.PACK_FAILED, "a secret detail")
    answer = await ask(priced_door, payer, run_id)
    [error] = check_problem(answer, Reason.VALIDATION_FAILED)["errors"]
    assert error == {"pointer": "", "message": f"the run is {status}; only a COMPLETED one has an envelope"}
    assert costs_of(answer)[0] == "0.2500"
    assert "secret" not in answer.text


async def test_past_its_retention_it_is_gone_for_its_owner_and_was_never_there_for_others(
    priced_door: PricedDoor,
) -> None:
    """PRICED-80, PRICED-83"""
    payer, run_id = await ended(priced_door)
    stranger = await priced_door.payer()
    with priced_door.later(31 * DAY):
        gone = await ask(priced_door, payer, run_id)
        check_problem(gone, Reason.RUN_RETENTION_EXPIRED)
        assert costs_of(gone)[:2] == ("0.2500", "0.0500")
        check_problem(await ask(priced_door, stranger, run_id), Reason.RUN_NOT_FOUND)


class _Store:
    """The store of results, with another answer to `get`."""

    def __init__(self, results: Any, answer: Any) -> None:
        self._results, self._answer = results, answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    async def get(self, key: str) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        found = await self._results.get(key)
        return self._answer and (self._answer, found[1])


@pytest.mark.parametrize("answer", [DependencyUnavailable("away"), None, b'{"data": {"answer_text": "no"}}'])
async def test_what_cannot_be_read_or_is_not_what_was_published_is_never_shown(
    priced_door: PricedDoor, answer: Any
) -> None:
    """PRICED-83, PRICED-211: an outage, a missing object, and other bytes under the key; what it cost is known"""
    payer, run_id = await ended(priced_door)
    stores: Any = {"results": _Store(priced_door.priced.results, answer)}
    changed: Priced = replace(priced_door.priced, **stores)
    with priced_door.with_priced(changed):
        found = await ask(priced_door, payer, run_id)
    check_problem(found, Reason.DEPENDENCY_UNAVAILABLE)
    assert found.headers["retry-after"] == "5"
    assert costs_of(found) == ("0.2500", "0.0500", "9.9500", "12")
    assert "answer_text" not in found.text


async def test_what_its_store_has_lost_is_gone_and_not_to_be_asked_for_again(
    priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-83: not while a node may only lag behind; what it cost is known"""
    monkeypatch.setattr(owned, "_SECOND_LOOK_SECONDS", 0.0)
    payer, run_id = await ended(priced_door)
    stores: Any = {"results": _Store(priced_door.priced.results, None)}
    with priced_door.with_priced(replace(priced_door.priced, **stores)), priced_door.later(11):
        gone = await ask(priced_door, payer, run_id)
    assert check_problem(gone, Reason.RUN_RETENTION_EXPIRED)["run_id"] == run_id
    assert "retry-after" not in gone.headers
    assert costs_of(gone)[:2] == ("0.2500", "0.0500")


class _LateStore(_Store):
    """A node that stood still answers the first question."""

    async def get(self, key: str) -> Any:
        answer, self._answer = self._answer, await self._results.get(key)
        return answer


async def test_a_node_that_stood_still_does_not_make_a_result_gone(
    priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-83"""
    monkeypatch.setattr(owned, "_SECOND_LOOK_SECONDS", 0.0)
    payer, run_id = await ended(priced_door)
    stores: Any = {"results": _LateStore(priced_door.priced.results, None)}
    with priced_door.with_priced(replace(priced_door.priced, **stores)), priced_door.later(11):
        assert (await ask(priced_door, payer, run_id)).status_code == 200


async def test_it_takes_a_token_of_the_bucket_for_reading(priced_door: PricedDoor) -> None:
    """PRICED-172, PRICED-173"""
    payer, run_id = await ended(priced_door)
    await priced_door.priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit(payer.tenant_id, 1))
    assert (await ask(priced_door, payer, run_id)).status_code == 200
    check_problem(await ask(priced_door, payer, run_id), Reason.RATE_LIMITED)
    assert (await priced_door.get(payer, run_id)).status_code == 429, "it is the same bucket"
