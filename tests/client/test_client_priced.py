"""Both clients and priced runs: one key per submission, patience that ends, and results that nobody has touched."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.client.pack_waiting import PackWaiting
from pyoco_server.client.priced_calls import usd_text
from pyoco_server.client.resuming import Clocks
from pyoco_server.client.retry import Patience
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.http_client import PackProblem
from pyoco_server.ports.nats.link import Link
from support.client_twins import MakeClient
from support.clocked_clients import MakeClocked
from support.gateways import listening
from support.priced.client_runs import RUN_ID, a_run
from support.priced.gateways import PricedDoor, fresh_priced_gateway
from support.scripted_gateway import Scripted, Turn, answer, cut, scripted

RECEIPT = {
    "run_id": RUN_ID,
    "status": "QUEUED",
    "reservation": {"max_cost_usd": "0.2500", "timebox_sec": 90, "min_reliability_score": 0.8},
    "poll": {"href": f"/v1/runs/{RUN_ID}", "recommended_interval_ms": 1500},
    "meta": {"trace_id": "t_1", "profile_version": "PROFILE_DPP_0_4_2_2"},
}
COSTS = {
    "X-DPP-Cost-Reserved": "0.2500",
    "X-DPP-Cost-Used": "0.0000",
    "X-DPP-Budget-Remaining": "9.7500",
    "X-DPP-Tokens-Consumed": "7",
}
ASK: tuple[Any, ...] = ("decision", {"question": "Why?"}, "0.2500")


def problem(status: int, reason: str, headers: dict[str, str] | None = None, **more: Any) -> Turn:
    body = {"type": "urn:x", "title": "T", "status": status, "detail": "D", "instance": "/v1/runs"}
    body |= {"reason_code": reason, "trace_id": "t_9", **more}
    return answer(body, status, **{"content-type": "application/problem+json", **(headers or {})})


def keys_of(server: Scripted) -> list[str]:
    return [asked.headers["idempotency-key"] for asked in server.asked]


class TestSubmitting:
    async def test_the_receipt_tells_the_key_and_what_the_headers_say(self, make: MakeClient) -> None:
        """PRICED-69, PRICED-72, PRICED-82"""
        async with scripted(answer(RECEIPT, 202, **COSTS)) as server, make(server.url, api_key="k") as client:
            receipt = await client.submit_pack(
                *ASK,
                timebox_sec=30,
                min_reliability_score=0.95,
                inline=True,
                artifacts={"include_markdown": False},
                idempotency_key="my-own-key",
                trace_id="t_1",
            )
        costs = {"reserved_usd": "0.2500", "used_usd": "0.0000", "budget_remaining_usd": "9.7500", "tokens_consumed": 7}
        assert receipt == RECEIPT | {"idempotency_key": "my-own-key", "replayed": False, "costs": costs}
        assert (server.asked[0].method, server.asked[0].path) == ("POST", "/v1/runs")
        assert keys_of(server) == ["my-own-key"]
        assert server.asked[0].json() == {
            "pack_type": "decision",
            "inputs": {"question": "Why?"},
            "reservation": {"max_cost_usd": "0.2500", "timebox_sec": 30, "min_reliability_score": 0.95},
            "options": {"inline": 1},
            "artifacts": {"include_markdown": False},
            "meta": {"trace_id": "t_1"},
        }

    async def test_what_is_not_given_is_not_sent(self, make: MakeClient) -> None:
        """PRICED-84: the server's defaults hold, and a newer server may have others"""
        async with scripted(answer(RECEIPT, 202)) as server, make(server.url) as client:
            receipt = await client.submit_pack(*ASK)
        assert server.asked[0].json() == {
            "pack_type": "decision",
            "inputs": {"question": "Why?"},
            "reservation": {"max_cost_usd": "0.2500"},
        }
        assert receipt["costs"] == {}

    async def test_every_try_carries_the_same_key(self, make: MakeClient) -> None:
        """PRICED-73, PRICED-88, PRICED-104"""
        turns = (
            cut,
            problem(503, "QUEUE_ENQUEUE_FAILED"),
            problem(409, "IDEMPOTENCY_IN_PROGRESS", {"retry-after": "0"}),
            answer(RECEIPT, 202, **{"idempotency-replayed": "true"}),
        )
        async with scripted(*turns) as server, make(server.url) as client:
            receipt = await client.submit_pack(*ASK)
        assert receipt["replayed"]
        assert keys_of(server) == [receipt["idempotency_key"]] * 4
        assert 8 <= len(receipt["idempotency_key"]) <= 64

    async def test_two_calls_are_two_submissions(self, make: MakeClient) -> None:
        async with scripted(answer(RECEIPT, 202), answer(RECEIPT, 202)) as server, make(server.url) as client:
            await client.submit_pack(*ASK)
            await client.submit_pack(*ASK)
        assert len(set(keys_of(server))) == 2

    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            (401, "AUTH_INVALID"),
            (402, "BUDGET_DRAINED"),
            (409, "IDEMPOTENCY_CONFLICT"),
            (410, "RUN_RETENTION_EXPIRED"),
            (422, "VALIDATION_FAILED"),
            (429, "RATE_LIMITED"),
        ],
    )
    async def test_a_refusal_is_told_at_once_with_its_reason(self, make: MakeClient, status: int, reason: str) -> None:
        """PRICED-67"""
        errors = [{"pointer": "/inputs/question", "message": "is missing"}]
        after = {"retry-after": "30" if status == 429 else "0"}
        refusal = problem(status, reason, after, errors=errors, run_id=RUN_ID)
        async with scripted(refusal) as server, make(server.url) as client:
            with pytest.raises(PackProblem) as told:
                await client.submit_pack(*ASK, idempotency_key="my-own-key")
        error = told.value
        assert isinstance(error, httpx.HTTPStatusError)
        assert (error.response.status_code, error.reason_code, error.trace_id) == (status, reason, "t_9")
        assert (error.errors, error.run_id, error.idempotency_key) == (errors, RUN_ID, "my-own-key")
        assert str(error) == f"HTTP {status} {reason}: D"
        assert len(server.asked) == 1

    @pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"reason_code": 1}'])
    async def test_what_only_looks_like_a_problem_is_an_error_like_any_other(
        self, make: MakeClient, body: bytes
    ) -> None:
        turn = answer(body, 402, **{"content-type": "application/problem+json"})
        async with scripted(turn) as server, make(server.url) as client:
            with pytest.raises(httpx.HTTPStatusError) as told:
                await client.submit_pack(*ASK)
        assert not isinstance(told.value, PackProblem)

    async def test_an_amount_in_binary_is_refused_before_anything_is_sent(self, make: MakeClient) -> None:
        """PRICED-33"""
        async with scripted() as server, make(server.url) as client:
            with pytest.raises(TypeError, match=r"not a float: '0\.2500'"):
                await client.submit_pack("decision", {}, 0.25)
        assert server.asked == []


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0.2500", "0.2500"),
        ("whatever", "whatever"),
        (Decimal("0.25"), "0.2500"),
        (Decimal("0.0157"), "0.0157"),
        (Decimal("1E+2"), "100.0000"),
        (Decimal("999999999.9999"), "999999999.9999"),
        (3, "3.0000"),
    ],
)
def test_an_amount_is_written_exactly(amount: Any, text: str) -> None:
    """PRICED-34, PRICED-35: a text is the server's to judge"""
    assert usd_text(amount) == text


@pytest.mark.parametrize("amount", [Decimal("0.00001"), Decimal("NaN"), Decimal("Infinity"), Decimal("1E+40")])
def test_an_amount_that_four_decimals_cannot_say_is_refused(amount: Decimal) -> None:
    """PRICED-34"""
    with pytest.raises(ValueError, match="four decimals"):
        usd_text(amount)


@pytest.mark.parametrize("amount", [True, None, 0.25, b"0.2500"])
def test_what_is_no_amount_is_refused(amount: Any) -> None:
    """PRICED-33"""
    with pytest.raises(TypeError, match=r"'0\.2500'"):
        usd_text(amount)


class TestWaiting:
    async def test_it_looks_until_the_run_has_ended_whatever_comes_in_between(self, make: MakeClient) -> None:
        """PRICED-173: told to come later, or that a part is away, it comes later"""
        turns = (
            problem(429, "RATE_LIMITED", {"retry-after": "0"}),
            problem(503, "DEPENDENCY_UNAVAILABLE", {"retry-after": "0"}),
            answer(a_run("QUEUED")),
            problem(429, "RATE_LIMITED", {"retry-after": "0"}),
            problem(429, "RATE_LIMITED", {"retry-after": "0"}),
            cut,
            answer(a_run("PROCESSING")),
            answer(a_run("FAILED", {"reason_code": "PACK_FAILED"})),
        )
        seen: list[str] = []
        async with scripted(*turns) as server, make(server.url) as client:
            run = await client.wait_pack_run(
                RUN_ID, 120, interval_sec=0.02, progress=lambda run: seen.append(run["status"])
            )
        assert run["result"]["reason_code"] == "PACK_FAILED"
        assert seen == ["QUEUED", "PROCESSING", "FAILED"]
        assert {asked.path for asked in server.asked} == {f"/v1/runs/{RUN_ID}"}
        assert len(server.asked) == len(turns)

    async def test_it_says_what_was_heard_last_when_time_is_up(self, clocked: MakeClocked) -> None:
        async with clocked(*[answer(a_run("PROCESSING"))] * 50) as (server, client):
            with pytest.raises(TimeoutError, match=rf"^run {RUN_ID} is still PROCESSING after 0.2 s"):
                await client.wait_pack_run(RUN_ID, 0.2, interval_sec=0.05)
            assert server.now == pytest.approx(0.2)

    async def test_who_is_told_to_come_after_the_end_of_time_is_not_kept_waiting(self, make: MakeClient) -> None:
        async with (
            scripted(problem(429, "RATE_LIMITED", {"retry-after": "30"})) as server,
            make(server.url) as client,
        ):
            with pytest.raises(
                TimeoutError, match=r"the state of run .* could not be read within 25 s: .*RATE_LIMITED"
            ):
                await client.wait_pack_run(RUN_ID, 25)

    async def test_a_run_that_is_not_there_ends_the_wait(self, make: MakeClient) -> None:
        """PRICED-79, PRICED-80"""
        async with (
            scripted(problem(404, "RUN_NOT_FOUND"), problem(410, "RUN_RETENTION_EXPIRED")) as server,
            make(server.url) as client,
        ):
            for reason in ("RUN_NOT_FOUND", "RUN_RETENTION_EXPIRED"):
                with pytest.raises(PackProblem, match=reason):
                    await client.wait_pack_run(RUN_ID, 60)


class TestOneWait:
    """Without a server: the clock is ours."""

    def waiting(self, seconds: float = 100.0) -> PackWaiting:
        self.now = 0.0
        clocks = Clocks(steady=lambda: self.now, wall=lambda: self.now, chance=lambda: 0.0)
        return PackWaiting(run_id=RUN_ID, clocks=clocks, seconds=seconds)

    def refused(self, status: int, retry_after: str | None) -> httpx.HTTPStatusError:
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        request = httpx.Request("GET", "http://x")
        return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=headers))

    def test_it_looks_as_often_as_the_service_recommends(self) -> None:
        """PRICED-72"""
        waiting = self.waiting()
        assert waiting.pause() == 1.5
        self.now = 99.0
        assert waiting.pause() == 1.0
        self.now = 100.0
        with pytest.raises(TimeoutError):
            waiting.pause()

    @pytest.mark.parametrize(
        ("status", "retry_after", "pause"), [(429, "30", 30.0), (429, None, 1.5), (503, "5", 5.0), (503, "0", 1.5)]
    )
    def test_it_comes_back_no_sooner_than_it_was_told(self, status: int, retry_after: str | None, pause: float) -> None:
        """PRICED-173"""
        assert self.waiting().pause_after(self.refused(status, retry_after)) == pause

    @pytest.mark.parametrize("status", [401, 404, 410, 500])
    def test_other_refusals_end_it(self, status: int) -> None:
        refused = self.refused(status, "1")
        with pytest.raises(httpx.HTTPStatusError) as told:
            self.waiting().pause_after(refused)
        assert told.value is refused

    def test_only_a_server_that_has_told_of_the_run_is_waited_for(self) -> None:
        waiting, usual = self.waiting(), Patience()
        assert waiting.patience(usual) == usual
        waiting.ends_with(a_run("QUEUED"))  # type: ignore[arg-type]
        assert waiting.patience(usual).seconds == math.inf

    @pytest.mark.parametrize(
        "wrong", [{"seconds": math.nan}, {"interval_seconds": 0.0}, {"interval_seconds": math.nan}]
    )
    def test_what_cannot_be_is_refused(self, wrong: dict[str, float]) -> None:
        clocks = self.waiting().clocks
        with pytest.raises(ValueError, match="_sec"):
            PackWaiting(**{"run_id": "x", "clocks": clocks, "seconds": 1.0, **wrong})  # type: ignore[arg-type]


@pytest.fixture
async def door(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[PricedDoor]:
    async with fresh_priced_gateway(link, nats_url, tmp_path) as door:
        yield door


async def test_a_run_is_submitted_paid_and_read_with_a_real_gateway(make: MakeClient, door: PricedDoor) -> None:
    """PRICED-72 to PRICED-76, PRICED-81"""
    payer = await door.payer("0.5000")
    key = payer.headers["Authorization"].removeprefix("Bearer ")
    async with listening(door.gateway.app) as port, make(f"http://127.0.0.1:{port}", api_key=key) as client:
        assert await client.healthz() == {"status": "ok"}
        wanted = ("ledger", "budget", "queue", "results", "ledger_identity")
        assert (await client.readyz())["checks"] == dict.fromkeys(wanted, "ok")
        receipt = await client.submit_pack(*ASK[:2], Decimal("0.25"), inline=True, trace_id="t_mine")
        assert (receipt["meta"]["trace_id"], receipt["replayed"]) == ("t_mine", False)
        assert receipt["costs"]["budget_remaining_usd"] == "0.2500"
        again = await client.submit_pack(*ASK, idempotency_key=receipt["idempotency_key"], inline=True)
        assert (again["run_id"], again["replayed"]) == (receipt["run_id"], True)
        assert (await client.get_pack_run(receipt["run_id"]))["status"] == "QUEUED"

        await door.completed(receipt["run_id"], {"answer_text": "yes", "confidence": 1})
        run = await client.wait_pack_run(receipt["run_id"], 120)
        assert (run["status"], run["money_state"], run["cost"]["used_usd"]) == ("COMPLETED", "SETTLED", "0.0500")
        assert run["result"]["inline"]["data"]["answer_text"] == "yes"
        envelope = json.loads(await client.read_pack_result(run))
        assert (envelope["run_id"], envelope["data"]) == (run["run_id"], run["result"]["inline"]["data"])
        assert await client.get_envelope(run["run_id"]) == envelope

        failing = await client.submit_pack(*ASK)
        await door.failed(failing["run_id"], Reason.PACK_FAILED, "no")
        assert (await client.wait_pack_run(failing["run_id"], 120))["result"]["reason_code"] == "PACK_FAILED"

        await read_budget(client, payer.tenant_id)
        await refused(client, receipt["idempotency_key"])


async def read_budget(client: Any, tenant_id: str) -> None:
    budget = await client.get_budget(tenant_id)
    assert (budget["balance_usd"], budget["charged_usd_micros"], budget["held_usd_micros"]) == ("0.4450", 55_000, 0)
    assert tenant_id in [each["tenant_id"] for each in (await client.list_budgets())["budgets"]]
    kinds = ["SETTLE", "RESERVE", "SETTLE", "RESERVE", "TOPUP"]
    newest = await client.get_budget_journal(tenant_id, limit=2)
    older = await client.get_budget_journal(tenant_id, before=newest["next_before"])
    assert [line["kind"] for line in newest["lines"] + older["lines"]] == kinds
    spend = await client.get_budget_spend(tenant_id, seconds=3600, step=60)
    assert sum(step["charged_usd_micros"] for step in spend["steps"]) == 55_000


async def refused(client: Any, used_key: str) -> None:
    """PRICED-67, PRICED-69"""
    with pytest.raises(PackProblem) as told:
        await client.submit_pack("decision", {"question": 1}, "0.25", timebox_sec=91)
    assert {each["pointer"] for each in told.value.errors} == {
        "/inputs/question",
        "/reservation/max_cost_usd",
        "/reservation/timebox_sec",
    }
    with pytest.raises(PackProblem, match="BUDGET_DRAINED"):
        await client.submit_pack(*ASK[:2], "9.0000")
    with pytest.raises(PackProblem, match="IDEMPOTENCY_CONFLICT"):
        await client.submit_pack(*ASK[:2], "0.0500", idempotency_key=used_key)
    with pytest.raises(PackProblem, match="RUN_NOT_FOUND"):
        await client.get_pack_run("../../health")
