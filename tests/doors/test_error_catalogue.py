"""Every error id that HTTP can answer with is provoked through the door, and told in both languages."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.http.state import UPLOADS_MAX, State
from pyoco_server.errors import CATALOGUE
from pyoco_server.http_api import create_app
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import recorded
from support.gateways import Gateway, fresh_gateway, open_gateway
from support.grid.http_jobs import DONE, begin_job, end_job, submit_job
from support.http_keys import a_key
from support.memory_nats import MemoryServer
from support.servers import config_for, unique
from support.wheels import build_wheel

#: Section 27.2 of the contract, word for word: these are product texts. Later ids are ours.
CONTRACT = {
    1: ("The health check failed.", "稼働確認に失敗しました"),
    58: ("The run does not wait for its time.", "runは開始時刻を待っていません"),
    59: ("The schedule was not found.", "スケジュールが見つかりません"),
    60: ("The name is already in use.", "その名前は既に使用されています"),
    61: ("The tenant has as many of these as it may.", "tenantの上限数に達しています"),
    62: (
        "The object has changed, or the request does not say which version it means.",
        "対象が変更されたか、版の指定がありません",
    ),
    63: ("The schedule is invalid.", "スケジュールが不正です"),
    64: (
        "Packs are executed once at most and take no retry policy or timeout.",
        "packの実行は最大1回のため、リトライやタイムアウトは指定できません",
    ),
    2: ("The request is invalid.", "リクエストが不正です"),
    3: ("NATS is not available.", "NATSが利用できません"),
    4: (
        "An orphan run may remain (best-effort cleanup failed).",
        "孤児runが残っている可能性があります（best-effort cleanup失敗）",
    ),
    5: ("The run was not found.", "runが見つかりません"),
    6: ("The flow was not found.", "flowが見つかりません"),
    7: ("The execution failed.", "実行に失敗しました"),
    8: ("The terminal state could not be recorded.", "terminal状態の記録に失敗しました"),
    9: ("The in_progress ACK could not be sent.", "in_progress ACK の送信に失敗しました"),
    10: ("The snapshot is too large.", "スナップショットが大きすぎます"),
    11: ("Publishing to the DLQ failed (best effort).", "DLQへのpublishに失敗しました（best-effort）"),
    12: ("An invalid job was received.", "不正なジョブを受信しました"),
    13: ("Log output failed (best effort).", "ログ出力に失敗しました（best-effort）"),
    14: ("An API key is required.", "API key が必要です"),
    15: ("The API key is invalid.", "API key が無効です"),
    16: ("The workflow file is too large.", "ワークフローファイルが大きすぎます"),
    17: ("The list query is invalid.", "一覧クエリが不正です"),
    18: ("The command-line arguments are invalid.", "コマンドライン引数が不正です"),
    19: ("The workers request is invalid.", "workersリクエストが不正です"),
    20: ("The worker was not found.", "workerが見つかりません"),
    21: (
        "The cancellation did not finish within the grace period (best effort).",
        "取消が猶予時間内に完了しませんでした（best-effort）",
    ),
    22: ("A wheel of the same or an older version is rejected.", "同一または過去バージョンのwheelは登録できません"),
    23: ("The wheel was not found.", "wheelが見つかりません"),
    24: ("The wheel synchronisation failed (best effort).", "wheelの同期に失敗しました（best-effort）"),
    72: ("The app could not be loaded.", "アプリを読み込めません"),
}
#: Told in logs, dead letters and on terminals; the column "Effect" of section 27.1 names no HTTP status for them.
#: Those of priced runs are reported with the reason codes of `/v1`; `test_v1_problems.py` provokes them.
ELSEWHERE = {
    1,
    4,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    18,
    21,
    24,
    31,
    33,
    *range(37, 42),
    43,
    45,
    *range(47, 50),
    *range(51, 57),
    72,
    73,
}


@dataclass(frozen=True)
class Provoked:
    """One request, and what it has to be answered with."""

    number: int
    status: int
    #: FLOW-51 to FLOW-62. None: the list of what is wrong (FLOW-50).
    detail: str | None
    ask: Callable[[Gateway], Awaitable[httpx.Response]]
    #: The operation whose document must know the status; empty: none of ours was asked.
    operation: str = ""

    def __str__(self) -> str:
        return f"{self.number:04d} {self.status} {self.detail or 'problems'}"


def sends(method: str, path: str, **more: Any) -> Callable[[Gateway], Awaitable[httpx.Response]]:
    async def ask(gateway: Gateway) -> httpx.Response:
        return await gateway.client.request(method, path, **more)

    return ask


def uploads(workflow: str) -> Callable[[Gateway], Awaitable[httpx.Response]]:
    return sends("POST", "/runs/yaml", files={"workflow": ("flow.yaml", workflow)}, data={"flow_name": "main"})


async def _reuses_a_key(gateway: Gateway) -> httpx.Response:
    headers = {"Idempotency-Key": "once"}
    await gateway.client.post("/runs", json={"flow_name": "one"}, headers=headers)
    return await gateway.client.post("/runs", json={"flow_name": "another"}, headers=headers)


async def _repeats_what_is_no_flow(gateway: Gateway) -> httpx.Response:
    made, _ = await recorded(gateway.backend)
    await gateway.backend.runs.replace(replace(made.run, kind="other"), made.revision)
    return await gateway.client.post(f"/runs/{made.run.run_id}/rerun")


_SCHEDULE = {"name": "nightly", "what": {"kind": "flow", "flow_name": "f"}, "when": {"every": 60}}


async def _reads_no_schedule(gateway: Gateway) -> httpx.Response:
    return await gateway.client.get("/schedules/other")


async def _takes_a_name(gateway: Gateway) -> httpx.Response:
    await gateway.client.post("/schedules", json=_SCHEDULE)
    return await gateway.client.post("/schedules", json=_SCHEDULE)


async def _schedules_too_many(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.backend = replace(state.backend, config=replace(state.backend.config, schedules_max=0))
    return await gateway.client.post("/schedules", json=_SCHEDULE | {"name": "more"})


async def _replaces_any_version(gateway: Gateway) -> httpx.Response:
    await gateway.client.post("/schedules", json=_SCHEDULE)
    return await gateway.client.put("/schedules/nightly", json=_SCHEDULE)


async def _schedules_nothing(gateway: Gateway) -> httpx.Response:
    return await gateway.client.post("/schedules", json={"name": "nothing"})


async def _starts_what_does_not_wait(gateway: Gateway) -> httpx.Response:
    made, _ = await recorded(gateway.backend)
    return await gateway.client.post(f"/runs/{made.run.run_id}/start")


async def _watches_where_there_is_no_room(gateway: Gateway) -> httpx.Response:
    made, _ = await recorded(gateway.backend)
    state: State = gateway.app.state.gateway
    state.hub._followers_max = 0
    return await gateway.client.get(f"/runs/{made.run.run_id}/watch")


async def _spoils_a_record(gateway: Gateway) -> httpx.Response:
    """SAFE-16"""
    made, _ = await recorded(gateway.backend)
    link: Link = gateway.backend.runs._link  # type: ignore[attr-defined]
    await link.store(f"$KV.{gateway.config.runs_kv_bucket}.{made.run.run_id}", b"{", {})
    return await gateway.client.get(f"/runs/{made.run.run_id}")


async def _finds_no_store_of_wheels(gateway: Gateway) -> httpx.Response:
    """SAFE-14"""
    link: Link = gateway.backend.runs._link  # type: ignore[attr-defined]
    await link.api(f"STREAM.DELETE.OBJ_{gateway.config.wheel_object_store_bucket}", {}, dict[str, Any])
    return await gateway.client.get("/wheels")


async def _meets_a_defect(gateway: Gateway) -> httpx.Response:
    """One that only we can have made."""
    with mock.patch.object(gateway.backend.runs, "find", side_effect=ZeroDivisionError):
        return await gateway.client.get(f"/runs/{SOMEONE}")


def uploads_wheel(file_name: str, content: bytes, **fields: str) -> Callable[[Gateway], Awaitable[httpx.Response]]:
    return sends("POST", "/wheels", files={"wheel": (file_name, content)}, data=fields)


async def _uploads_a_wheel_twice(gateway: Gateway) -> httpx.Response:
    again = uploads_wheel(*build_wheel("twice"))
    await again(gateway)
    return await again(gateway)


async def _uploads_more_than_it_may(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.backend = replace(state.backend, config=replace(gateway.config, wheel_max_bytes=10))
    return await uploads_wheel(*build_wheel())(gateway)


async def _uploads_to_a_full_disk(gateway: Gateway) -> httpx.Response:
    with mock.patch.object(tempfile, "TemporaryFile", return_value=io.FileIO("/dev/full", "r+b")):
        return await uploads_wheel(*build_wheel())(gateway)


async def _uploads_where_there_is_no_turn(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.uploads.taken = UPLOADS_MAX
    return await uploads_wheel(*build_wheel())(gateway)


async def _acts_where_it_may_only_look(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.backend = replace(state.backend, config=replace(gateway.config, dashboard_read_only=True))
    return await gateway.client.post("/runs", json={"flow_name": "f"}, headers={"Origin": "http://gateway"})


async def _asks_by_another_name(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.backend = replace(state.backend, config=replace(gateway.config, http_hosts=("runs.example",)))
    return await gateway.client.get("/runs")


async def _asks_where_no_ledger_is(gateway: Gateway) -> httpx.Response:
    state: State = gateway.app.state.gateway
    state.backend = replace(state.backend, priced=None)
    return await gateway.client.get("/budgets")


async def _cancels_a_priced_run(gateway: Gateway) -> httpx.Response:
    stored, _ = await recorded(gateway.backend)
    headers, key = await a_key(gateway)
    pack = replace(stored.run, kind="pack", tenant_id=key.tenant_id)
    assert isinstance(await gateway.backend.runs.replace(pack, stored.revision), Stored)
    return await gateway.client.post(f"/runs/{stored.run.run_id}/cancel", headers=headers)


async def _repeats_a_priced_run_under_a_policy(gateway: Gateway) -> httpx.Response:
    """RETRY-19"""
    stored, _ = await recorded(gateway.backend)
    headers, key = await a_key(gateway)
    pack = replace(stored.run, kind="pack", tenant_id=key.tenant_id)
    assert isinstance(await gateway.backend.runs.replace(pack, stored.revision), Stored)
    body = {"retry": {"tries": 2}}
    return await gateway.client.post(f"/runs/{stored.run.run_id}/rerun", headers=headers, json=body)


async def _asks_for_files_that_are_gone(gateway: Gateway) -> httpx.Response:
    accepted = await submit_job(gateway, group=gateway_group(gateway))
    await end_job(gateway, await begin_job(gateway), DONE, b"PK")
    assert gateway.backend.programs is not None
    run = (await gateway.backend.runs.find(accepted["run_id"])).run  # type: ignore[union-attr]
    await gateway.backend.programs.artifacts.delete(run.program.artifacts[0].object)  # type: ignore[union-attr]
    return await gateway.client.get(f"/runs/{accepted['run_id']}/artifacts")


async def _asks_for_files_too_early(gateway: Gateway) -> httpx.Response:
    accepted = await submit_job(gateway, group=gateway_group(gateway))
    return await gateway.client.get(f"/runs/{accepted['run_id']}/artifacts")


def gateway_group(gateway: Gateway) -> str:
    """Its own: gateways of tests share the queue of programs."""
    programs = gateway.backend.programs
    assert programs is not None
    object.__setattr__(programs.config, "exec_group", unique("g"))
    return programs.config.exec_group


DOCUMENT = create_app(NatsBackendConfig()).openapi()
SOMEONE = str(uuid.UUID(int=7, version=4))
LARGE = "x" * 300_000
WHEEL = "my_tasks-1.0-py3-none-any.whl"

OPEN = [
    Provoked(2, 422, None, sends("POST", "/runs", json={}), "POST /runs"),
    Provoked(2, 422, "invalid request", uploads("flow: {}"), "POST /runs/yaml"),
    Provoked(2, 413, "request body too large", sends("POST", "/runs", content=b" " * 2_000_000), "POST /runs"),
    Provoked(2, 404, "not found", sends("GET", "/nothing")),
    Provoked(2, 405, "method not allowed", sends("DELETE", "/runs")),
    Provoked(2, 403, "cross-origin request", sends("POST", "/runs", headers={"Sec-Fetch-Site": "cross-site"})),
    Provoked(2, 421, "this name in Host is not answered: PYOCO_HTTP_HOSTS lists those that are", _asks_by_another_name),
    Provoked(5, 404, "run not found", sends("GET", f"/runs/{SOMEONE}"), "GET /runs/{run_id}"),
    Provoked(5, 404, "run not found", sends("GET", f"/runs/{SOMEONE}/tasks"), "GET /runs/{run_id}/tasks"),
    Provoked(5, 404, "run not found", sends("GET", f"/runs/{SOMEONE}/watch"), "GET /runs/{run_id}/watch"),
    Provoked(5, 404, "run not found", sends("POST", f"/runs/{SOMEONE}/cancel"), "POST /runs/{run_id}/cancel"),
    Provoked(5, 404, "run not found", sends("POST", f"/runs/{SOMEONE}/rerun"), "POST /runs/{run_id}/rerun"),
    Provoked(16, 413, "workflow file too large", uploads(LARGE), "POST /runs/yaml"),
    Provoked(17, 422, None, sends("GET", "/runs?limit=0"), "GET /runs"),
    Provoked(17, 422, None, sends("GET", "/runs?cursor=nonsense"), "GET /runs"),
    Provoked(19, 422, None, sends("GET", "/workers?scope=nonsense"), "GET /workers"),
    Provoked(19, 422, None, sends("PATCH", "/workers/anna", json={"hidden": 1}), "PATCH /workers/{worker_id}"),
    Provoked(20, 404, "worker not found", sends("GET", "/workers/nobody"), "GET /workers/{worker_id}"),
    Provoked(
        20,
        404,
        "worker not found",
        sends("PATCH", "/workers/nobody", json={"hidden": True}),
        "PATCH /workers/{worker_id}",
    ),
    Provoked(2, 422, None, uploads_wheel("no.whl", b"x"), "POST /wheels"),
    Provoked(2, 422, "invalid request", uploads_wheel(WHEEL, b"x"), "POST /wheels"),
    Provoked(2, 413, "wheel too large", _uploads_more_than_it_may, "POST /wheels"),
    Provoked(2, 422, None, sends("GET", "/wheels/history?limit=0"), "GET /wheels/history"),
    Provoked(22, 409, "same/older version is rejected", _uploads_a_wheel_twice, "POST /wheels"),
    Provoked(23, 404, "wheel not found", sends("GET", f"/wheels/{WHEEL}"), "GET /wheels/{wheel_name}"),
    Provoked(23, 404, "wheel not found", sends("DELETE", f"/wheels/{WHEEL}"), "DELETE /wheels/{wheel_name}"),
    Provoked(25, 500, "internal error", _meets_a_defect),
    Provoked(26, 409, "idempotency key reused", _reuses_a_key, "POST /runs"),
    Provoked(27, 404, "dead letter not found", sends("GET", "/dlq/7"), "GET /dlq/{letter_id}"),
    Provoked(27, 404, "dead letter not found", sends("DELETE", "/dlq/7"), "DELETE /dlq/{letter_id}"),
    Provoked(27, 404, "dead letter not found", sends("POST", "/dlq/7/redrive"), "POST /dlq/{letter_id}/redrive"),
    Provoked(59, 404, "schedule not found", _reads_no_schedule, "GET /schedules/{name}"),
    Provoked(60, 409, "name is already in use", _takes_a_name, "POST /schedules"),
    Provoked(61, 409, "too many schedules", _schedules_too_many, "POST /schedules"),
    Provoked(62, 428, "If-Match or If-None-Match is required", _replaces_any_version, "PUT /schedules/{name}"),
    Provoked(63, 422, "invalid schedule", _schedules_nothing, "POST /schedules"),
    Provoked(58, 409, "run does not wait for its time", _starts_what_does_not_wait, "POST /runs/{run_id}/start"),
    Provoked(28, 409, "run cannot be repeated", _repeats_what_is_no_flow, "POST /runs/{run_id}/rerun"),
    Provoked(2, 409, "run has not ended", _asks_for_files_too_early, "GET /runs/{run_id}/artifacts"),
    Provoked(44, 422, "BAD_SCHEMA: must be multipart/form-data", sends("POST", "/jobs", content=b""), "POST /jobs"),
    Provoked(44, 404, "NOT_FOUND: there is no such ACL record", sends("GET", "/exec/acl/client/nobody-at-all")),
    Provoked(46, 410, "artifact expired", _asks_for_files_that_are_gone, "GET /runs/{run_id}/artifacts"),
    Provoked(30, 503, "too many watchers", _watches_where_there_is_no_room, "GET /runs/{run_id}/watch"),
    Provoked(32, 503, "no room on the disk", _uploads_to_a_full_disk, "POST /wheels"),
    Provoked(34, 503, "too many transfers", _uploads_where_there_is_no_turn, "POST /wheels"),
    Provoked(35, 403, "dashboard is read-only", _acts_where_it_may_only_look, "POST /runs"),
    Provoked(2, 404, "not found", sends("GET", "/static/none.js"), "GET /static/{path}"),
    Provoked(36, 503, "dependency unavailable", _asks_where_no_ledger_is, "GET /budgets"),
    Provoked(75, 503, "record unreadable", _spoils_a_record, "GET /runs/{run_id}"),
    Provoked(42, 409, "not for runs of this kind", _cancels_a_priced_run, "POST /runs/{run_id}/cancel"),
    Provoked(64, 422, "packs are executed once", _repeats_a_priced_run_under_a_policy, "POST /runs/{run_id}/rerun"),
    Provoked(50, 503, "resource missing", _finds_no_store_of_wheels, "GET /wheels"),  # last: the store is deleted then
]


async def _guesses_many_keys(gateway: Gateway) -> httpx.Response:
    """As many at once as no honest caller would send."""
    guesses = [
        asyncio.create_task(gateway.client.get("/runs", headers={"X-API-Key": f"pyoco_{number}_x"}))
        for number in range(40)
    ]
    answers = await asyncio.gather(*guesses)
    return next(answer for answer in answers if answer.status_code == 429)


CLOSED = [
    Provoked(14, 401, "api key required", sends("GET", "/runs"), "GET /runs"),
    Provoked(15, 403, "api key invalid", sends("GET", "/runs", headers={"X-API-Key": "no"}), "GET /runs"),
    Provoked(29, 429, "too many bad api keys", _guesses_many_keys, "GET /runs"),
]
WITHOUT_NATS = [
    Provoked(3, 503, "nats unavailable", sends("POST", "/runs", json={"flow_name": "f"}), "POST /runs"),
    Provoked(3, 503, "nats unavailable", sends("GET", f"/runs/{SOMEONE}"), "GET /runs/{run_id}"),
    Provoked(3, 503, "nats unavailable", uploads_wheel(*build_wheel()), "POST /wheels"),
    Provoked(3, 503, "nats unavailable", sends("GET", "/wheels"), "GET /wheels"),
]


def check(answer: httpx.Response, wanted: Provoked) -> None:
    """FLOW-50, FLOW-565, FLOW-566: five members, the pair of ids, both languages; and the document knows the status."""
    assert answer.status_code == wanted.status, (str(wanted), answer.text)
    assert answer.headers["content-type"] == "application/json", str(wanted)
    body = json.loads(answer.content.decode("utf-8"))
    text = CATALOGUE[wanted.number]
    assert body["err_id"] == f"ERR-PYOCO-{wanted.number:04d}", str(wanted)
    assert body["msg_id"] == f"MSG-PYOCO-{wanted.number:04d}", str(wanted)
    assert (body["message"], body["message_ja"]) == (text.en, text.ja), str(wanted)
    assert body["detail"] == (body["errors"] if wanted.detail is None else wanted.detail), str(wanted)
    if wanted.operation:
        method, path = wanted.operation.split()
        assert str(wanted.status) in DOCUMENT["paths"][path][method.lower()]["responses"], wanted.operation


@pytest.fixture
async def closed_gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key", auth_pepper="pepper") as gateway:
        yield gateway


async def test_each_is_answered_with_its_id_in_both_languages(gateway: Gateway) -> None:
    """FLOW-50, FLOW-53 to FLOW-61, FLOW-565, FLOW-566"""
    state: State = gateway.app.state.gateway
    backend, followers_max, taken = state.backend, state.hub._followers_max, state.uploads.taken
    for wanted in OPEN:
        check(await wanted.ask(gateway), wanted)
        # What some of them change to be refused is as it was for the next.
        state.backend, state.hub._followers_max, state.uploads.taken = backend, followers_max, taken


async def test_the_entrance_tells_its_ids_in_both_languages(closed_gateway: Gateway) -> None:
    """FLOW-51, FLOW-52"""
    for wanted in CLOSED:
        check(await wanted.ask(closed_gateway), wanted)


@pytest.mark.virtual_time
async def test_an_outage_is_told_in_both_languages(memory_nats_server: MemoryServer, tmp_path: Path) -> None:
    """FLOW-47, FLOW-62"""
    async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
        memory_nats_server.kill()
        answers = await asyncio.gather(*(wanted.ask(gateway) for wanted in WITHOUT_NATS))
    for answer, wanted in zip(answers, WITHOUT_NATS, strict=True):
        check(answer, wanted)


def test_every_id_is_provoked_or_told_elsewhere() -> None:
    provoked = {wanted.number for wanted in (*OPEN, *CLOSED, *WITHOUT_NATS)}
    assert provoked | ELSEWHERE == CATALOGUE.keys()
    assert not provoked & ELSEWHERE


@pytest.mark.parametrize("number", CONTRACT)
def test_the_texts_are_those_of_the_contract(number: int) -> None:
    """FLOW-565, FLOW-566"""
    assert (CATALOGUE[number].en, CATALOGUE[number].ja) == CONTRACT[number]
