"""Every way in which `/v1` says no: status, reason code, headers, and that nothing was reserved."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import uuid
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.api_key import make_key
from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason
from pyoco_server.core.priced.run import NewRun, TenantStatus
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.doors.http.v1 import runs
from pyoco_server.doors.http.v1.problems import REASONS
from pyoco_server.errors import DependencyUnavailable, OverBudget, Unavailable
from support.priced.gateways import BODY, Payer, PricedDoor, a_body, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = ("0.0000", "0.0000", "0.0000", "0")


class _Faulty:
    """A port whose calls of some names end in an error."""

    def __init__(self, port: Any, names: set[str], error: Exception) -> None:
        self._port, self._names, self._error = port, names, error

    def __getattr__(self, name: str) -> Any:
        return self._fail if name in self._names else getattr(self._port, name)

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise self._error


async def nothing_happened(door: PricedDoor, payer: Payer, balance: int = 10_000_000) -> None:
    assert await door.runs_of(payer) == 0
    assert await door.balance(payer) == balance


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": "Basic dXNlcjpwYXNz"},
            {"Authorization": "Bearer pyoco_0123456789abcdef_" + "x" * 43},
            {"X-API-Key": "pyoco_0123456789abcdef_" + "x" * 43},
        ],
    )
    @pytest.mark.parametrize(
        ("method", "path"), [("POST", "/v1/runs"), ("GET", f"/v1/runs/{uuid.UUID(int=0)}"), ("GET", "/v1/nothing")]
    )
    async def test_without_a_good_one_nobody_comes_in(
        self, priced_door: PricedDoor, headers: dict[str, str], method: str, path: str
    ) -> None:
        """PRICED-62, PRICED-83, PRICED-170: also while authentication is off, and it is not told what is wrong"""
        answer = await priced_door.client.request(method, path, headers=headers)
        body = check_problem(answer, Reason.AUTH_INVALID)
        assert body["detail"] == "A valid API key is needed: Authorization: Bearer <key>."
        assert answer.headers["www-authenticate"] == "Bearer"
        assert costs_of(answer) == UNKNOWN

    @pytest.mark.parametrize("tenant_id", ["x" * 65, "a.b", "a/b", "ten ant"])
    async def test_a_tenant_the_ledger_cannot_have_is_not_let_in(self, priced_door: PricedDoor, tenant_id: str) -> None:
        """PRICED-62"""
        headers = await priced_door.key(tenant_id)
        check_problem(await priced_door.client.get("/v1/runs/x", headers=headers), Reason.AUTH_INVALID)

    async def test_a_suspended_tenant_is_not_let_in(self, priced_door: PricedDoor) -> None:
        """PRICED-62, PRICED-83, PRICED-174"""
        payer = await priced_door.payer()
        await self._set(priced_door, payer, TenantStatus.SUSPENDED)
        for answer in (await priced_door.post(payer), await priced_door.get(payer, "x")):
            check_problem(answer, Reason.AUTH_INVALID)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert costs_of(answer) == UNKNOWN
            assert "x-ratelimit-limit" not in answer.headers
        await nothing_happened(priced_door, payer)
        await self._set(priced_door, payer, TenantStatus.ACTIVE)
        assert (await priced_door.post(payer)).status_code == 202

    @staticmethod
    async def _set(door: PricedDoor, payer: Payer, status: TenantStatus) -> None:
        assert await door.priced.ledger.transact(lambda tx: tx.tenants.set_status(payer.tenant_id, status))

    async def test_one_that_has_expired_opens_nothing(self, priced_door: PricedDoor) -> None:
        """PRICED-62"""
        pepper, now = priced_door.gateway.config.auth_pepper, time.time()
        plain, record = make_key(
            "team-x", pepper, now - 9, secrets.token_hex, secrets.token_urlsafe, expires_at=now - 1
        )
        assert await priced_door.gateway.backend.keys.add(record)
        answer = await priced_door.client.get("/v1/runs/x", headers={"Authorization": f"Bearer {plain}"})
        check_problem(answer, Reason.AUTH_INVALID)

    async def test_the_header_of_the_settings_is_as_good(self, priced_door: PricedDoor) -> None:
        """One key works at every door"""
        payer = await priced_door.payer()
        headers = {"X-API-Key": payer.headers["Authorization"].removeprefix("Bearer ")}
        assert (await priced_door.get(Payer(payer.tenant_id, headers), "x")).status_code == 404

    async def test_of_two_keys_that_differ_none_is_guessed(self, priced_door: PricedDoor) -> None:
        """PRICED-62"""
        anna, bert = (await priced_door.payer()).headers["Authorization"], "Basic dXNlcjpwYXNz"
        for two in ([anna, bert], [bert, anna]):
            headers = [("Authorization", each) for each in two]
            check_problem(await priced_door.client.get("/v1/runs/x", headers=headers), Reason.AUTH_INVALID)
        twice = [("Authorization", anna)] * 2  # some proxies say it again
        assert (await priced_door.client.get("/v1/runs/x", headers=twice)).status_code == 404

    async def test_keys_that_cannot_be_looked_up_are_neither_right_nor_wrong(self, priced_door: PricedDoor) -> None:
        """FLOW-264"""
        payer = await priced_door.payer()
        state = priced_door.gateway.app.state.gateway
        backend = state.backend
        state.backend = replace(backend, keys=_Faulty(backend.keys, {"find"}, Unavailable()))
        try:
            answer = await priced_door.get(payer, "x")
        finally:
            state.backend = backend
        check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
        assert costs_of(answer) == UNKNOWN


class TestMoney:
    async def test_a_budget_too_small_reserves_nothing_and_frees_the_key(self, priced_door: PricedDoor) -> None:
        """PRICED-67, PRICED-83, PRICED-89"""
        payer = await priced_door.payer("0.2499")
        answer = await priced_door.post(payer, key="same-key-1")
        assert "run_id" not in check_problem(answer, Reason.BUDGET_DRAINED)
        assert costs_of(answer) == ("0.0000", "0.0000", "0.2499", "0")
        await nothing_happened(priced_door, payer, 249_900)
        smaller = a_body(reservation={"max_cost_usd": "0.2499"})
        answer = await priced_door.post(payer, smaller, key="same-key-1")
        assert (answer.status_code, costs_of(answer)[2]) == (202, "0.0000")

    async def test_the_balance_is_the_one_that_was_too_small(
        self, priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-83: others may have spent since the entrance"""

        async def drained(*_: Any) -> Any:
            raise OverBudget(123_456)

        monkeypatch.setattr(runs, "submit", drained)
        answer = await priced_door.post(await priced_door.payer())
        check_problem(answer, Reason.BUDGET_DRAINED)
        assert costs_of(answer) == ("0.0000", "0.0000", "0.1234", "0")

    async def test_a_tenant_without_any_credit_has_nothing(self, priced_door: PricedDoor) -> None:
        """A key and no credit: 402, and a balance of 0.0000"""
        payer = await priced_door.payer(None)
        answer = await priced_door.post(payer)
        check_problem(answer, Reason.BUDGET_DRAINED)
        assert costs_of(answer) == UNKNOWN


class TestIdempotency:
    async def test_a_key_whose_run_is_not_decided_yet_is_busy(self, priced_door: PricedDoor) -> None:
        """PRICED-88: hash equal, money NONE"""
        payer = await priced_door.payer()
        row = await priced_door.row(await priced_door.submitted(payer))
        half = NewRun(
            run_id=str(uuid.uuid4()),
            tenant_id=row.tenant_id,
            pack_type=row.pack_type,
            profile_version=row.profile_version,
            idempotency_key="half-done-1",
            payload_hash=row.payload_hash,
            reserved_usd_micros=row.reserved_usd_micros,
            minimum_fee_usd_micros=row.minimum_fee_usd_micros,
            timebox_sec=row.timebox_sec,
            min_reliability_e4=row.min_reliability_e4,
            inline=0,
            artifacts={},
            inputs=BODY["inputs"],
            trace_id="t",
        )
        await priced_door.priced.ledger.transact(lambda tx: tx.runs.create(half))
        answer = await priced_door.post(payer, key="half-done-1")
        check_problem(answer, Reason.IDEMPOTENCY_IN_PROGRESS)
        assert answer.headers["retry-after"] == "1"
        check_problem(
            await priced_door.post(payer, a_body(inputs={"question": "?"}), key="half-done-1"),
            Reason.IDEMPOTENCY_CONFLICT,
        )


class TestOutages:
    async def test_a_run_that_cannot_be_queued_is_refunded_and_its_key_freed(self, priced_door: PricedDoor) -> None:
        """PRICED-67, PRICED-99: 503 with the run's id; the same key again works"""
        payer = await priced_door.payer()
        away = _Faulty(priced_door.priced.queue, {"send"}, DependencyUnavailable("away"))
        with priced_door.with_priced(replace(priced_door.priced, queue=away)):
            answer = await priced_door.post(payer, key="same-key-1")
        run_id = check_problem(answer, Reason.QUEUE_ENQUEUE_FAILED)["run_id"]
        assert costs_of(answer) == ("0.2500", "0.0000", "10.0000", "0")
        row = await priced_door.row(run_id)
        assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "QUEUE_ENQUEUE_FAILED")
        assert await priced_door.balance(payer) == 10_000_000
        shown = (await priced_door.get(payer, run_id)).json()
        assert shown["result"]["reason_code"] == "QUEUE_ENQUEUE_FAILED"
        again = await priced_door.post(payer, key="same-key-1")
        assert again.status_code == 202
        assert again.json()["run_id"] != run_id

    @pytest.mark.parametrize("calls", [{"transact_softly"}, {"transact", "read"}])
    async def test_a_ledger_that_does_not_answer_is_told(self, priced_door: PricedDoor, calls: set[str]) -> None:
        """PRICED-67, PRICED-83: unknown values where no budget could be read"""
        payer = await priced_door.payer()
        away = _Faulty(priced_door.priced.ledger, calls, DependencyUnavailable("at db.internal:5432"))
        with priced_door.with_priced(replace(priced_door.priced, ledger=away)):
            answers = [await priced_door.post(payer), await priced_door.get(payer, str(uuid.uuid4()))]
        remaining = "0.0000" if "transact_softly" in calls else "10.0000"
        for answer in answers:
            check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
            assert answer.headers["retry-after"] == "5"
            assert "db.internal" not in answer.text
            assert costs_of(answer) == ("0.0000", "0.0000", remaining, "0")
        await nothing_happened(priced_door, payer)

    async def test_a_gateway_without_a_ledger_says_so(self, priced_door: PricedDoor) -> None:
        payer = await priced_door.payer()
        with priced_door.with_priced(None):
            for answer in (await priced_door.post(payer), await priced_door.get(payer, "x")):
                check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
                assert costs_of(answer) == UNKNOWN

    async def test_a_defect_is_told_in_the_log_and_not_to_the_caller(
        self, priced_door: PricedDoor, caplog: pytest.LogCaptureFixture
    ) -> None:
        """PRICED-82: with its cost headers, like every answer"""
        payer = await priced_door.payer()
        broken = _Faulty(priced_door.priced.ledger, {"transact", "read"}, ZeroDivisionError("what went wrong"))
        with priced_door.with_priced(replace(priced_door.priced, ledger=broken)):
            answers = [await priced_door.post(payer), await priced_door.get(payer, str(uuid.uuid4()))]
        for answer in answers:
            check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE, 500)
            assert "what went wrong" not in answer.text
            assert costs_of(answer) == ("0.0000", "0.0000", "10.0000", "0")
        assert "what went wrong" in caplog.text


class TestOddRequests:
    @pytest.mark.parametrize(
        ("method", "path", "allow"),
        [
            ("GET", "/v1/runs", "POST"),
            ("DELETE", "/v1/runs", "POST"),
            ("PUT", "/v1/runs/x", "GET, HEAD"),
            ("OPTIONS", "/v1/runs/x", "GET, HEAD"),
        ],
    )
    async def test_a_wrong_method_is_a_problem(
        self, priced_door: PricedDoor, method: str, path: str, allow: str
    ) -> None:
        """PRICED-63, PRICED-67"""
        payer = await priced_door.payer()
        answer = await priced_door.client.request(method, path, headers=payer.headers)
        check_problem(answer, Reason.VALIDATION_FAILED, 405)
        assert answer.headers["allow"] == allow

    @pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing", "/v1/runs/", "/v1/runs/a/b", "/v1/RUNS"])
    async def test_an_unknown_path_is_a_problem(self, priced_door: PricedDoor, path: str) -> None:
        """PRICED-67"""
        payer = await priced_door.payer()
        check_problem(await priced_door.client.get(path, headers=payer.headers), Reason.RUN_NOT_FOUND)

    async def test_a_page_of_another_site_may_not_submit(self, priced_door: PricedDoor) -> None:
        payer = await priced_door.payer()
        answer = await priced_door.post(payer, headers={"Sec-Fetch-Site": "cross-site"})
        check_problem(answer, Reason.AUTH_INVALID, 403)
        assert "www-authenticate" not in answer.headers
        await nothing_happened(priced_door, payer)

    async def test_a_name_that_is_not_ours_is_not_answered(self, priced_door: PricedDoor) -> None:
        payer = await priced_door.payer()
        with priced_door.with_settings(http_hosts=("runs.example",)):
            answer = await priced_door.post(payer, headers={"Host": "elsewhere.example"})
            check_problem(answer, Reason.VALIDATION_FAILED, 421)
            assert "PYOCO_HTTP_HOSTS" in answer.json()["detail"]
        await nothing_happened(priced_door, payer)

    async def test_a_path_that_only_looks_like_it_is_not_v1(self, priced_door: PricedDoor) -> None:
        answer = await priced_door.client.get("/v10/runs")
        assert answer.headers["content-type"] == "application/json"

    async def test_a_gateway_that_stops_says_so(self, priced_door: PricedDoor) -> None:
        payer = await priced_door.payer()
        held = _Held()
        app = priced_door.gateway.app
        with priced_door.with_priced(replace(priced_door.priced, ledger=held)):  # type: ignore[arg-type]
            asking = asyncio.create_task(priced_door.get(payer, "x"))
            await asyncio.wait_for(held.asked.wait(), 120)
            app.state.stopping = True
            try:
                asking.cancel()
                check_problem(await asking, Reason.DEPENDENCY_UNAVAILABLE)
            finally:
                app.state.stopping = False


class _Held:
    """A ledger that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._for_ever = asyncio.Event()

    async def transact_softly(self, _: Any) -> Any:
        self.asked.set()
        await self._for_ever.wait()


def _fields(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = node.items() if isinstance(node, dict) else ()
    return [path, *(found for name, value in inner for found in _fields(value, (*path, name)))]


FULL: dict[str, Any] = {
    "pack_type": "decision",
    "inputs": {"question": "q", "context": "c", "mode": "brief"},
    "reservation": {"max_cost_usd": "0.2500", "timebox_sec": 90, "min_reliability_score": 0.8},
    "options": {"inline": 0},
    "artifacts": {"include_markdown": False, "include_docx": False},
    "meta": {"trace_id": "t", "client_version": "1", "profile_version": "PROFILE_DPP_0_4_2_2"},
}
MARKER = "the marker 7f3a"
#: What may be any text.
FREE = {("inputs", "question"), ("inputs", "context"), ("meta", "client_version")}


class TestMarker:
    @pytest.mark.parametrize("path", _fields(FULL), ids=".".join)
    @pytest.mark.parametrize("value", [MARKER, [MARKER], {MARKER: MARKER}], ids=["text", "list", "name"])
    async def test_nothing_that_was_sent_is_repeated_or_logged(
        self, priced_door: PricedDoor, caplog: pytest.LogCaptureFixture, path: tuple[str, ...], value: Any
    ) -> None:
        """PRICED-67, PRICED-171: in no log line and in no problem"""
        caplog.set_level(logging.DEBUG, "pyoco_server")
        payer = await priced_door.payer()
        body = json.loads(json.dumps(FULL))
        node = body
        for step in path[:-1]:
            node = node[step]
        if path:
            node[path[-1]] = value
        else:
            body = value
        answer = await priced_door.post(payer, body, headers={"User-Agent": MARKER})
        assert answer.status_code == (202 if path in FREE and value == MARKER else 422), answer.text
        assert MARKER not in answer.text
        assert not [line for line in _lines(caplog) if MARKER in line]

    @pytest.mark.parametrize("key", [MARKER, "the-marker-7f3a" * 9])
    async def test_nor_is_a_key(self, priced_door: PricedDoor, caplog: pytest.LogCaptureFixture, key: str) -> None:
        """PRICED-171"""
        caplog.set_level(logging.DEBUG, "pyoco_server")
        payer = await priced_door.payer()
        answer = await priced_door.post(payer, key=key)
        check_problem(answer, Reason.VALIDATION_FAILED)
        plain = payer.headers["Authorization"].removeprefix("Bearer ")
        for text in (answer.text, *_lines(caplog)):
            assert key not in text
            assert plain not in text


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.getMessage()} {vars(record)}" for record in caplog.records]


async def test_one_line_about_each_problem(priced_door: PricedDoor, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-176"""
    caplog.set_level(logging.INFO, "pyoco_server")
    payer = await priced_door.payer("0.0001")
    answer = await priced_door.post(payer)
    [fields] = [
        vars(record)["pyoco_fields"]
        for record in caplog.records
        if record.getMessage() == "a priced request was answered with a problem"
    ]
    assert fields["trace_id"] == answer.headers["x-trace-id"]
    assert (fields["tenant_id"], fields["status"], fields["reason_code"]) == (payer.tenant_id, 402, "BUDGET_DRAINED")


async def test_every_reason_of_a_request_belongs_to_an_error() -> None:
    """PRICED-67"""
    assert set(REASONS.values()) == set(HTTP_STATUS)
