"""`pyoco-client price` and `budget`: what they print, how they end, and what they say when they are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.client import pack_waiting
from pyoco_server.core.priced.reasons import Reason
from support.client_clocks import client_command
from support.client_commands import Client, terminal
from support.priced.gateways import PricedDoor
from support.priced.price_commands import RUN, SUBMIT, call, client, in_its_loop, url
from support.strangers import response, somebody
from support.waiting import eventually

__all__ = ["call", "client", "url"]


@in_its_loop
async def test_a_run_is_submitted_and_read(
    priced_door: PricedDoor, call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-72, PRICED-74: JSON for programs; the result is what is stored, byte by byte"""
    monkeypatch.setattr(pack_waiting, "_LOOK_SECONDS_MIN", 60.0)  # a busy machine needs longer for the first look
    payer = await priced_door.payer("1.0000")
    file = tmp_path / "inputs.json"
    file.write_text('{"question": "Why?", "mode": "full"}')
    words = f"--inputs-file {file} --input mode=brief --max-cost-usd 0.2500 --timebox-sec 30 --min-reliability 0.95"
    key = ("--idempotency-key", "my-own-key")
    receipt = (await call(payer, "price", "submit", "decision", *words.split(), *key)).result
    assert receipt["reservation"] == {"max_cost_usd": "0.2500", "timebox_sec": 30, "min_reliability_score": 0.95}
    assert (receipt["idempotency_key"], receipt["replayed"]) == ("my-own-key", False)
    run_id = receipt["run_id"]
    inputs = await priced_door.priced.ledger.read(lambda tx: tx.runs.inputs(run_id))
    assert inputs == {"question": "Why?", "mode": "brief"}
    assert (await call(payer, "price", "get", run_id)).result["status"] == "QUEUED"
    none = await call(payer, "price", "get", run_id, "--result")
    assert (none.code, none.out, none.err) == (1, "", f"run {run_id} is QUEUED: there is no result\n")
    late = await call(payer, "price", "wait", run_id, "--timeout-sec", "0.1")
    assert (late.code, late.out) == (1, "")
    assert late.err.startswith(f"run {run_id} is still QUEUED after 0.1 s")

    await priced_door.completed(run_id, {"answer_text": "はい\x1b[2J"})
    run = (await call(payer, "price", "wait", run_id)).result
    assert (run["status"], run["cost"]["used_usd"]) == ("COMPLETED", "0.0500")
    shown = await call(payer, "price", "get", run_id, "--result")
    assert (shown.code, json.loads(shown.out)["data"]) == (0, {"answer_text": "はい\x1b[2J"})
    table = await call(payer, "price", "get", run_id, "--output", "table")
    assert table.out.split()[:3] == ["run_id", "status", "money_state"]
    assert table.out.split()[-5:] == ["COMPLETED", "SETTLED", "0.2500", "0.0500", "0.9500"]


@in_its_loop
async def test_the_same_key_is_told_of_and_paid_for_once(priced_door: PricedDoor, call: Callable[..., Any]) -> None:
    """PRICED-73"""
    payer = await priced_door.payer("1.0000")
    first = await call(payer, *SUBMIT, "0.2500", "--idempotency-key", "my-own-key")
    second = await call(payer, *SUBMIT, "0.2500", "--idempotency-key", "my-own-key", "--json")
    assert json.loads(second.out)["run_id"] == first.result["run_id"]
    assert (
        second.err
        == "this key was used before: this is the receipt of the first submission, and nothing was charged again\n"
    )
    assert await priced_door.balance(payer) == 750_000


@in_its_loop
async def test_a_run_that_fails_is_told_with_its_reason_and_what_it_cost(
    priced_door: PricedDoor, call: Callable[..., Any]
) -> None:
    """PRICED-38: `--wait` ends by how the run ended"""
    payer = await priced_door.payer("1.0000")
    found: list[str] = []

    async def is_submitted() -> bool:
        line, *_ = await priced_door.priced.ledger.read(lambda tx: tx.journal.lines(payer.tenant_id, None, 1))
        found.extend([line.run_id] if line.run_id else [])
        return bool(found)

    waiting = asyncio.create_task(call(payer, *SUBMIT, "0.2500", "--timeout-sec", "120"))
    await eventually(is_submitted)
    run_id = found[0]
    await priced_door.failed(run_id, Reason.PACK_FAILED, "out of ideas")
    ended = await waiting
    assert ended.code == 1
    assert json.loads(ended.out)["status"] == "FAILED"
    assert ended.err.splitlines() == [
        f"run {run_id} is submitted; 0.2500 USD are reserved for it",
        f"run {run_id} is FAILED (PACK_FAILED: out of ideas); 0.0050 USD were charged",
    ]


@in_its_loop
async def test_a_budget_is_shown_with_its_journal(priced_door: PricedDoor, call: Callable[..., Any]) -> None:
    """PRICED-36, PRICED-54"""
    payer = await priced_door.payer("1.0000")
    tenant = ("--tenant", payer.tenant_id)
    await priced_door.completed(await priced_door.submitted(payer), {"answer_text": "yes"})
    await priced_door.submitted(payer)
    budget = (await call(payer, "budget", *tenant)).result
    amounts = [budget[f"{name}_usd_micros"] for name in ("balance", "held", "charged", "credited")]
    assert amounts == [700_000, 250_000, 50_000, 1_000_000]
    table = await call(payer, "budget", *tenant, "--output", "table")
    assert table.out.split()[-5:] == ["ACTIVE", "0.7000", "0.2500", "0.0500", "1.0000"]
    newest = (await call(payer, "budget", *tenant, "--journal", "--limit", "2")).result
    assert [line["kind"] for line in newest["lines"]] == ["RESERVE", "SETTLE"]
    words = ("--journal", "--before", str(newest["next_before"]), "--output", "table")
    older = await call(payer, "budget", *tenant, *words)
    assert [line.split()[2] for line in older.out.splitlines()] == ["kind", "RESERVE", "TOPUP"]
    nobody = await call(payer, "budget", "--tenant", "nobody")
    assert (nobody.code, nobody.err.startswith("HTTP 404")) == (1, True)


def problem(status: str, reason: str, headers: dict[str, str] | None = None, **more: Any) -> bytes:
    body = {
        "title": "T",
        "status": int(status[:3]),
        "detail": "What it means.",
        "reason_code": reason,
        "trace_id": "t_9",
    }
    return response(status, json.dumps(body | more), **{"Content-Type": "application/problem+json"}, **(headers or {}))


PLACES = [
    {"pointer": "/reservation/max_cost_usd", "message": "must be dollars\x1b"},
    {"pointer": "", "message": "is odd"},
    "?",
]
AGAIN = "submit it again with --idempotency-key my-own-key: it is accepted and paid for once"
NEW_KEY = "and a new one is generated"
OPERATOR = "for support: trace id t_9"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            problem("401 Unauthorized", "AUTH_INVALID"),
            ["the key came from PYOCO_API_KEY; it was sent as X-API-Key"],
        ),
        (
            problem("402 Payment Required", "BUDGET_DRAINED", {"X-DPP-Budget-Remaining": "0.0100"}),
            ["there are 0.0100 USD left, see `pyoco-client budget`; or reserve less: --max-cost-usd"],
        ),
        (
            problem("409 Conflict", "IDEMPOTENCY_CONFLICT"),
            [f"this key was used for another submission; omit --idempotency-key, {NEW_KEY}"],
        ),
        (
            problem("409 Conflict", "IDEMPOTENCY_IN_PROGRESS", {"Retry-After": "60"}),
            ["submit it again in a moment, with --idempotency-key my-own-key"],
        ),
        (problem("410 Gone", "RUN_RETENTION_EXPIRED", run_id="x"), []),
        (
            problem("422 Unprocessable", "VALIDATION_FAILED", errors=PLACES),
            ["/reservation/max_cost_usd: must be dollars\\x1b", "the request: is odd", "?"],
        ),
        (
            problem("422 Unprocessable", "RESERVATION_BELOW_PRICE", errors=PLACES[1:2], price_usd="0.0500"),
            ["the request: is odd", "reserve at least the price: --max-cost-usd 0.0500"],
        ),
        (problem("429 Too Many", "RATE_LIMITED", {"Retry-After": "30"}), ["try again in 30 s"]),
        (problem("503 Away", "DEPENDENCY_UNAVAILABLE", {"Retry-After": "5"}), [AGAIN, OPERATOR]),
        (problem("503 Away", "QUEUE_ENQUEUE_FAILED", {"Retry-After": "5"}), [AGAIN, OPERATOR]),
        (problem("418 Teapot", "SOMETHING_NEW", errors=7), []),
    ],
    ids=lambda each: each.split(b'reason_code": "')[1].split(b'"')[0].decode() if isinstance(each, bytes) else "",
)
def test_a_refusal_is_told_with_what_to_do(client: Client, answer: bytes, told: list[str]) -> None:
    """PRICED-67: every reason that a submission may be refused for"""
    with somebody(answer) as url:
        ended = client("--server", url, *SUBMIT, "0.2500", "--idempotency-key", "my-own-key")
    assert (ended.code, ended.out) == (1, "")
    first, *lines = ended.err.splitlines()
    assert first.startswith("HTTP ")
    assert first.endswith(": What it means.")
    assert lines == [f"  {line}" for line in told]


@pytest.mark.parametrize("words", [["price", "get", "x"], ["price", "wait", "x"]])
def test_a_service_that_is_away_is_told_at_once(client: Client, words: list[str]) -> None:
    """Without a time limit it would be waited for for ever"""
    with somebody(problem("503 Away", "DEPENDENCY_UNAVAILABLE", {"Retry-After": "5"})) as url:
        ended = client("--server", url, *words)
    assert (ended.code, ended.out) == (1, "")
    assert "\n  try again in 5 s\n" in ended.err


def test_who_hears_no_answer_is_told_the_key(client: Client, unused_port: int) -> None:
    """PRICED-104: and a request that was not sent is not"""
    with somebody(b"") as url:
        ended = client("--server", url, *SUBMIT, "0.2500", "--idempotency-key", "my-own-key")
    assert ended.code == 1
    first, second = ended.err.splitlines()[:2]
    assert first == "it is not known whether the run was accepted: submit it again with --idempotency-key my-own-key"
    assert second.startswith("ERR-PYOCO-0001: no gateway answers at ")
    unsent = client("--server", f"http://127.0.0.1:{unused_port}", *SUBMIT, "0.2500")
    assert unsent.err.startswith("ERR-PYOCO-0001: no gateway answers at ")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["price"], "Missing command"),
        (["price", "submit", "decision"], "--max-cost-usd"),
        ([*SUBMIT, "1.0000", "--input", "x"], "--input 'x' must be KEY=VALUE"),
        ([*SUBMIT, "1.0000", "--inputs-file", "/nonexistent"], "/nonexistent"),
        ([*SUBMIT, "1.0000", "--idempotency-key", "short"], "8 to 64 visible ASCII"),
        ([*SUBMIT, "1.0000", "--idempotency-key", "x" * 65], "8 to 64 visible ASCII"),
        ([*SUBMIT, "1.0000", "--min-reliability", "nan"], "from 0 to 1"),
        ([*SUBMIT, "1.0000", "--timebox-sec", "soon"], "soon"),
        (["price", "get"], "--run-id"),
        (["price", "wait", "x", "--timeout-sec", "0"], "above 0"),
        (["price", "result", "x", "--force"], "--force goes with --save"),
        (["price", "result", "x", "--save", ""], "--save must not be empty"),
        (["budget", "--tenant", ""], "--tenant must not be empty"),
        (["budget", "--before", "3"], "--before goes with --journal"),
    ],
    ids=lambda each: " ".join(each[-3:])[:40] if isinstance(each, list) else "",
)
def test_a_wrong_command_line_is_told_before_anybody_is_called(client: Client, words: list[str], wrong: str) -> None:
    ended = client("--server", "http://127.0.0.1:1", *words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: ")
    assert wrong in ended.err
    assert "example: pyoco-client " in ended.err


BUDGET: dict[str, Any] = {"tenant_id": "a", "display_name": "A", "status": "ACTIVE"}
BUDGET |= {f"{name}_usd": "0.0000" for name in ("balance", "held", "charged", "credited")}
BUDGET |= {f"{name}_usd_micros": 0 for name in ("balance", "held", "charged", "credited")}


@pytest.mark.parametrize(
    ("count", "words", "code", "said"),
    [
        (0, [], 0, "no budget is shown without a key"),
        (0, ["--journal"], 1, "no budget is shown without a key"),
        (2, ["--journal"], 1, f"name the tenant; example: --journal --tenant {BUDGET['tenant_id']}"),
        (2, ["--output", "table"], 0, ""),
    ],
)
def test_no_budget_and_several_are_told_apart(
    client: Client, count: int, words: list[str], code: int, said: str
) -> None:
    with somebody(response("200 OK", json.dumps({"budgets": [BUDGET] * count, "next_after": None}))) as url:
        ended = client("--server", url, "budget", *words)
    assert ended.code == code
    assert said in ended.err


@in_its_loop
async def test_lists_can_show_packs_alone(priced_door: PricedDoor, call: Callable[..., Any]) -> None:
    """A kind is the server's to judge"""
    payer = await priced_door.payer("1.0000")
    assert {run["kind"] for run in (await call(payer, "list", "--kind", "pack")).result} <= {"pack"}
    assert (await call(payer, "list", "--kind", "flow")).result == []
    assert (await call(payer, "list-vnext", "--kind", "nonsense")).code == 1


def test_a_person_sees_a_table_and_that_something_happens() -> None:
    with somebody(response("200 OK", json.dumps(RUN))) as url:
        with terminal(url, "price", "get", "x") as shown:
            assert shown.left() == 0
            assert "money_state" in shown.sent.splitlines()[0]
        with terminal(url, "price", "wait", "x", "--timeout-sec", "1", command=client_command()) as shown:
            assert shown.left() == 1
        assert "run x is PROCESSING" in shown.sent
        assert "run x is still PROCESSING after 1 s" in shown.sent


def test_who_looks_for_runs_is_told_where_they_are_listed(client: Client) -> None:
    assert "pyoco-client list --kind pack" in client("price", "--help").out
