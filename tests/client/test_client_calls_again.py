"""When a call goes wrong: what is tried again, how often, and what the caller learns."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import pytest

from pyoco_server.client import retry
from pyoco_server.http_client import AnswerDamaged
from support.client_twins import MakeClient
from support.clocked_clients import MakeClocked
from support.scripted_gateway import Scripted, answer, cut, hang, raw, scripted

pytestmark = pytest.mark.usefixtures("hurried")

ACCEPTED = {"run_id": "7", "status": "PENDING"}
AWAY = {"detail": "nats unavailable", "err_id": "ERR-PYOCO-0003", "msg_id": "m", "message": "m", "message_ja": "m"}


def keys(server: Scripted) -> set[str | None]:
    return {asked.headers.get("idempotency-key") for asked in server.asked}


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_server_that_is_briefly_away_is_asked_again(make: MakeClient, status: int) -> None:
    async with scripted(answer(AWAY, status), answer(ACCEPTED)) as server, make(server.url) as client:
        assert await client.get_run("7") == ACCEPTED
    assert [asked.path for asked in server.asked] == ["/runs/7", "/runs/7"]


async def test_a_lost_answer_to_a_submission_is_asked_for_under_the_same_key(make: MakeClient) -> None:
    """FLOW-401, FLOW-402: whatever is repeated is the same submission"""
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("submit_run", ("hello", {"name": "you"})),
        ("submit_run_yaml", ("flow: {}", "gpu")),
        ("submit_batch", ([{"flow_name": "hello"}],)),
        ("rerun_run", ("7",)),
    ]
    for method, args in calls:
        async with scripted(cut, answer(AWAY, 503), answer(ACCEPTED)) as server, make(server.url) as client:
            assert await getattr(client, method)(*args) == ACCEPTED
            first = keys(server)
            assert len(first) == 1
            assert None not in first
            assert len({asked.body for asked in server.asked}) == 1
            server.turns = [answer(ACCEPTED)]
            await getattr(client, method)(*args)
            assert len(keys(server)) == 2, "another call is another submission"


async def test_a_key_of_the_callers_own_is_sent(make: MakeClient) -> None:
    async with scripted(cut, answer(ACCEPTED)) as server, make(server.url) as client:
        await client.submit_run("hello", idempotency_key="mine-1")
        assert keys(server) == {"mine-1"}
        server.turns = [answer(ACCEPTED)]
        await client.submit_run("hello", idempotency_key="")
        assert server.asked[-1].headers["idempotency-key"] == "", "it is the server's to refuse"


@pytest.mark.parametrize("method", ["cancel_runs", "redrive_letters", "delete_letters", "redrive_letter"])
async def test_what_would_count_twice_is_not_repeated_unless_it_never_arrived(make: MakeClient, method: str) -> None:
    args, named = (("7",), {}) if method == "redrive_letter" else ((), {"all": True})
    async with scripted(cut, answer({})) as server, make(server.url) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await getattr(client, method)(*args, **named)
        assert len(server.asked) == 1
    async with scripted(answer(AWAY, 503), answer({})) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await getattr(client, method)(*args, **named)
        assert len(server.asked) == 1


@pytest.mark.parametrize("method", ["delete_letter", "delete_wheel"])
async def test_a_deletion_whose_answer_was_lost_is_done(make: MakeClient, method: str) -> None:
    """FLOW-407: a 404 is an error of the first try alone"""
    async with scripted(cut, answer({}, 404)) as server, make(server.url) as client:
        done = await getattr(client, method)("x-1.whl")
        assert done["deleted"] is True
        assert set(done.values()) == {"x-1.whl", True}
    async with scripted(answer({}, 404)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await getattr(client, method)("x-1.whl")
        assert len(server.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 500])
async def test_an_answer_that_says_no_is_final(make: MakeClient, status: int) -> None:
    """FLOW-415: with the server's own words"""
    async with scripted(answer({"detail": "no"}, status)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError) as raised:
            await client.submit_run("hello")
    assert raised.value.response.status_code == status
    assert raised.value.response.json() == {"detail": "no"}
    assert len(server.asked) == 1


async def test_it_waits_as_long_as_it_is_told(make: MakeClient) -> None:
    async with scripted(answer(AWAY, 503, retry_after="1"), answer(ACCEPTED)) as server, make(server.url) as client:
        await client.get_run("7")
        assert server.at[1] - server.at[0] >= 0.99


async def test_more_time_than_there_is_is_not_waited(make: MakeClient) -> None:
    async with scripted(answer(AWAY, 503, retry_after="60")) as server, make(server.url, timeout=5) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await asyncio.wait_for(client.get_run("7"), 120)
        assert len(server.asked) == 1


async def test_no_header_puts_a_call_to_sleep_for_a_day(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with all the time in the world"""
    monkeypatch.setattr(retry, "_RETRY_AFTER_SECONDS_MAX", 0.05)
    turns = [answer(AWAY, 503, retry_after="86400"), answer(AWAY, 503, retry_after="9999999999"), answer(ACCEPTED)]
    async with scripted(*turns) as server, make(server.url, retry_seconds=math.inf) as client:
        assert await asyncio.wait_for(client.get_run("7"), 120) == ACCEPTED


async def test_who_sends_too_much_comes_back_once(make: MakeClient) -> None:
    later = answer({}, 429, retry_after="0")
    async with scripted(later, answer(ACCEPTED)) as server, make(server.url) as client:
        assert await client.get_run("7") == ACCEPTED
    async with scripted(later, later, answer(ACCEPTED)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await client.get_run("7")
        assert len(server.asked) == 2
    async with scripted(answer({}, 429), answer(ACCEPTED)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await client.get_run("7")


async def test_it_gives_up_after_so_many_tries(make: MakeClient) -> None:
    async with scripted(*[answer(AWAY, 503)] * 9) as server:
        async with make(server.url, retries=2) as client:
            with pytest.raises(httpx.HTTPStatusError):
                await client.get_run("7")
            assert len(server.asked) == 3
        async with make(server.url, retries=0) as client:
            with pytest.raises(httpx.HTTPStatusError):
                await client.get_run("7")
            assert len(server.asked) == 4


async def test_a_slow_server_costs_no_more_than_the_time_there_is(clocked: MakeClocked) -> None:
    """The tries share it: three of them do not make three times the timeout"""
    async with clocked(*[hang] * 9, timeout=0.3, retry_seconds=0.7) as (server, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.get_run("7")
        assert 1 < len(server.asked) < 4, "by the number of tries alone it would be four"
        assert server.now < 0.7 + 0.3, "the time there is, and one timeout"


async def test_the_questions_whether_it_is_there_are_asked_once(make: MakeClient) -> None:
    """FLOW-414: no answer is an answer"""
    for method in ("health", "ready"):
        async with scripted(answer(AWAY, 503)) as server, make(server.url) as client:
            with pytest.raises(httpx.HTTPStatusError):
                await getattr(client, method)()
            assert len(server.asked) == 1


async def test_an_unreachable_server_is_a_connection_error(make: MakeClient, unused_port: int) -> None:
    """FLOW-64: after a few tries, for it may be starting"""
    async with make(f"http://127.0.0.1:{unused_port}") as client:
        with pytest.raises(httpx.ConnectError):
            await client.submit_run("hello")


async def test_a_page_of_somebody_else_is_no_answer(make: MakeClient) -> None:
    async with scripted(answer(b"<html>please log in</html>")) as server, make(server.url) as client:
        with pytest.raises(AnswerDamaged, match="no JSON"):
            await client.get_run("7")
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
async def test_a_broken_answer_is_asked_for_again(make: MakeClient, broken: bytes) -> None:
    async with scripted(raw(broken), answer(ACCEPTED)) as server, make(server.url) as client:
        assert await client.submit_run("hello") == ACCEPTED
    assert len(keys(server)) == 1


async def test_a_redirect_is_not_followed(make: MakeClient) -> None:
    """The key is for this gateway alone"""
    async with scripted() as other, scripted(answer({}, 307, location=f"{other.url}/runs/7")) as server:
        async with make(server.url, api_key="secret") as client:
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.get_run("7")
        assert raised.value.response.status_code == 307
        assert other.asked == []


async def test_the_key_is_sent_in_its_header_and_shown_nowhere(
    make: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-261: constructor of section 18.4"""
    caplog.set_level("DEBUG")
    async with scripted(answer(ACCEPTED), answer({}, 403), answer(ACCEPTED)) as server:
        async with make(server.url, api_key="sEcReT") as client:
            await client.get_run("7")
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.get_run("7")
            shown = [repr(client), str(raised.value), repr(raised.value), caplog.text]
        async with make(server.url, api_key="sEcReT", api_key_header="X-Team-Key") as client:
            await client.get_run("7")
    assert server.asked[0].headers["x-api-key"] == "sEcReT"
    assert server.asked[2].headers["x-team-key"] == "sEcReT"
    assert "x-api-key" not in server.asked[2].headers
    assert not any("secret" in asked.path.lower() for asked in server.asked)
    assert not any("sEcReT" in text for text in shown)


async def test_a_password_in_the_address_is_sent_and_not_shown(
    make: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by httpx either, which logs the address of every call and puts it into the text of an error"""
    caplog.set_level("DEBUG")
    async with (
        scripted(answer(ACCEPTED), answer({}, 403), answer({}, 403)) as server,
        make(server.url.replace("//", "//me:h%40dden@") + "/base") as client,
    ):
        await client.get_run("7")
        shown = [repr(client)]
        for call in (client.get_run("7"), client.get_wheel("x.whl")):
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await call
            error = raised.value
            shown += [str(error), repr(error), str(error.request.url), repr(error.request.headers)]
    assert "127.0.0.1" in shown[0]
    assert "/base" in shown[0]
    assert [asked.headers["authorization"] for asked in server.asked] == ["Basic bWU6aEBkZGVu"] * 3
    assert "/base/runs/7" in caplog.text
    for text in (*shown, caplog.text):
        assert not any(word in text for word in ("dden", "bWU6")), text


async def test_an_address_without_a_password_sends_none(make: MakeClient) -> None:
    async with scripted(answer(ACCEPTED)) as server, make(server.url, api_key="k") as client:
        await client.get_run("7")
    assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("key", ["a\nb", "ключ", " x", "x\r\nX-Other: y"])
def test_a_key_that_no_header_can_carry_is_refused_at_once(make: MakeClient, key: str) -> None:
    with pytest.raises(ValueError, match="API key") as raised:
        make("http://127.0.0.1:1", api_key=key)
    assert key not in str(raised.value)


@pytest.mark.parametrize("settings", [{"retries": -1}, {"retry_seconds": -1}, {"retry_seconds": float("nan")}])
def test_a_patience_that_cannot_be_is_refused(make: MakeClient, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="negative"):
        make("http://127.0.0.1:1", **settings)


async def test_many_calls_at_once_take_turns(make: MakeClient) -> None:
    """A thousand calls are not a thousand connections"""
    open_now, most = 0, 0

    async def slowly(asked: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.005)
        open_now -= 1
        await answer(ACCEPTED)(asked, writer)

    async with scripted(*[slowly] * 300) as server, make(server.url) as client:
        await asyncio.gather(*(client.get_run("7") for _ in range(300)))
    assert 1 < most <= 100


async def test_params_that_json_cannot_hold_are_not_sent(make: MakeClient) -> None:
    async with scripted() as server, make(server.url) as client:
        for params in ({"x": float("nan")}, {"x": object()}, {"x": "\ud800"}):
            with pytest.raises((TypeError, ValueError)):
                await client.submit_run("hello", params=params)
        with pytest.raises(TypeError, match="list of words"):
            await client.submit_run("hello", tags="gpu")
        with pytest.raises(TypeError, match="list of words"):
            await client.get_run("7", include="full")
        assert server.asked == []


async def test_a_closed_client_is_closed(make: MakeClient) -> None:
    """FLOW-414"""
    client = make("http://127.0.0.1:1")
    await client.close()
    await client.close()
    with pytest.raises(RuntimeError):
        await client.get_run("7")


async def test_a_query_holds_what_was_given_and_nothing_else(make: MakeClient) -> None:
    """FLOW-410, FLOW-411, FLOW-413"""
    async with scripted(*[answer({"items": [], "next_cursor": None})] * 9) as server, make(server.url) as client:
        await client.list_runs()
        await client.list_runs("FAILED", "f&g", "gpu", 5, ["full", "x"], "0" * 64, kind="flow")
        await client.list_runs_vnext(updated_after=1.5, cursor="c=", run_id="3f9a")
        await client.list_workers("all", include_hidden=True)
        await client.delete_letters(reason="max deliver", all=False)
    assert [asked.path for asked in server.asked] == [
        "/runs",
        "/runs?status=FAILED&flow=f%26g&tag=gpu&include=full&include=x&workflow_yaml_sha256="
        + "0" * 64
        + "&kind=flow&limit=5",
        "/runs?run_id=3f9a&updated_after=1.5&cursor=c%3D&envelope=true",
        "/workers?scope=all&include_hidden=true",
        "/dlq?reason=max+deliver&all=false",
    ]


async def test_a_body_holds_what_was_given_and_nothing_else(make: MakeClient) -> None:
    """FLOW-401, FLOW-403"""
    async with scripted(*[answer(ACCEPTED)] * 9) as server, make(server.url) as client:
        await client.submit_run("hello")
        await client.submit_run("hello", {}, "gpu", ())
        await client.submit_batch([{"flow_name": "a", "tag": None}, {"flow_name": "b", "params": {"ü": 1}}])
        await client.rerun_run("7", params={"x": 1})
        await client.cancel_run("7", reason="wrong")
        await client.patch_worker("anna", True)
        await client.cancel_runs(run_ids=["1"], reason="r")
    assert [asked.json() for asked in server.asked] == [
        {"flow_name": "hello"},
        {"flow_name": "hello", "params": {}, "tag": "gpu", "tags": []},
        {"runs": [{"flow_name": "a"}, {"flow_name": "b", "params": {"ü": 1}}]},
        {"params": {"x": 1}},
        {"reason": "wrong"},
        {"hidden": True},
        {"run_ids": ["1"], "reason": "r"},
    ]
    assert json.dumps("ü", ensure_ascii=False).encode() in server.asked[2].body
