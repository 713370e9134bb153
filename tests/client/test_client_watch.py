"""A watch over connections that break, fall silent, or bring nonsense."""

from __future__ import annotations

import asyncio
import itertools
import math

import httpx
import pytest

from pyoco_server.client import events, resuming, retry
from pyoco_server.http_client import AnswerDamaged
from support.client_twins import MakeClient
from support.clocked_clients import ClockedGateway, MakeClocked, refuse
from support.scripted_gateway import Scripted, Turn, answer, cut, event, hang, raw, scripted, stream
from support.watched_runs import AWAY, CROWDED, seen

pytestmark = pytest.mark.usefixtures("hurried")


def resumed(server: Scripted | ClockedGateway) -> list[str | None]:
    return [asked.headers.get("last-event-id") for asked in server.asked]


async def test_an_event_is_what_the_contract_says(make: MakeClient) -> None:
    """FLOW-412, FLOW-121"""
    async with scripted(stream(event(3, "COMPLETED", newer="field"))) as server, make(server.url) as client:
        events = [each async for each in client.watch_run("r")]
    snapshot = {"run_id": "r", "status": "COMPLETED", "updated_at": 3.0, "newer": "field"}
    assert events == [{"event": "snapshot", "run_id": "r", "snapshot": snapshot, "ts": 1.5}]


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_stream_that_ends_early_is_taken_up_again(make: MakeClient, then: str) -> None:
    """FLOW-128: where it broke off; nothing is told twice"""
    first = stream(event(3, "PENDING"), event(5, "RUNNING"), then=then)
    last = stream(event(6, "RUNNING", "heartbeat"), event(9, "FAILED"))
    async with scripted(first, last) as server, make(server.url) as client:
        assert await seen(client) == [
            ("snapshot", "PENDING"),
            ("snapshot", "RUNNING"),
            ("heartbeat", "RUNNING"),
            ("snapshot", "FAILED"),
        ]
    assert resumed(server) == [None, "5"]


async def test_nothing_is_read_beyond_the_end_of_the_run(make: MakeClient) -> None:
    """FLOW-125"""
    frames = event(3, "CANCELLED") + event(4, "RUNNING")
    async with scripted(stream(frames, then="hang")) as server, make(server.url) as client:
        assert await seen(client) == [("snapshot", "CANCELLED")]
    assert len(server.asked) == 1


async def test_a_gateway_that_restarts_is_waited_for(clocked: MakeClocked) -> None:
    turns = [stream(event(3, "RUNNING"), then="cut"), cut, answer(AWAY, 503), hang]
    async with clocked(*turns, stream(event(4, "COMPLETED"))) as (server, client):
        assert await seen(client) == [("snapshot", "RUNNING"), ("snapshot", "COMPLETED")]
    assert resumed(server) == [None, *["3"] * 4]


async def test_breaks_with_news_in_between_do_not_add_up(make: MakeClient) -> None:
    turns = [stream(event(number, "RUNNING"), then="cut") for number in range(1, 12)]
    last = stream(event(12, "COMPLETED"))
    async with scripted(*turns, last) as server, make(server.url, retry_seconds=0.25) as client:
        assert len(await seen(client)) == 12
    assert server.at[-1] - server.at[0] > 0.25


async def test_a_silent_connection_is_replaced(clocked: MakeClocked) -> None:
    """FLOW-124: a server that is there says something every five seconds"""
    silent = stream(event(3, "RUNNING"), then="hang")
    async with clocked(silent, stream(event(4, "COMPLETED"))) as (server, client):
        assert await seen(client) == [("snapshot", "RUNNING"), ("snapshot", "COMPLETED")]
    assert resumed(server) == [None, "3"]
    assert server.at[1] >= resuming.SILENCE_SECONDS


@pytest.mark.parametrize(
    "garbage",
    [
        b"data: no json\nevent: snapshot\n\n",
        b"event: snapshot\ndata: [1]\n\n",
        b'event: snapshot\ndata: {"run_id": "r"}\n\n',
        b'event: snapshot\ndata: {"run_id": "r", "snapshot": {"status": []}}\n\n',
        b'event: snapshot\ndata: {"run_id": "r", "snapshot": {"status": null}}\n\n',
        b"event: heartbeat\ndata: \xff\xfe\n\n",
        b"\x00\x01\xff" * 100,
        b"event: other\ndata: {}\n\n",
    ],
)
async def test_garbage_is_a_broken_connection(make: MakeClient, garbage: bytes) -> None:
    good = stream(event(4, "COMPLETED"))
    async with scripted(stream(garbage), good) as server, make(server.url) as client:
        assert await seen(client) == [("snapshot", "COMPLETED")]
    assert len(server.asked) == 2


async def test_what_came_before_the_garbage_counts(make: MakeClient) -> None:
    """Also when both came at once: nobody would send it again"""
    first = stream(event(3, "RUNNING") + b"event: snapshot\ndata: no json\n\n")
    async with scripted(first, stream(event(4, "COMPLETED"))) as server, make(server.url) as client:
        assert await seen(client) == [("snapshot", "RUNNING"), ("snapshot", "COMPLETED")]
    assert resumed(server) == [None, "3"]


async def test_what_came_before_a_line_without_end_counts(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events.EventDecoder.__init__, "__defaults__", (1000,))
    first = stream(event(3, "RUNNING") + b"data: " + b"x" * 2000)
    async with scripted(first, stream(event(4, "COMPLETED"))) as server, make(server.url) as client:
        assert await seen(client) == [("snapshot", "RUNNING"), ("snapshot", "COMPLETED")]
    assert resumed(server) == [None, "3"]


async def test_nothing_but_garbage_is_an_error(make: MakeClient) -> None:
    turn = stream(b"event: snapshot\ndata: no json\n\n")
    async with scripted(*[turn] * 50) as server, make(server.url, retry_seconds=0.5) as client:
        with pytest.raises(AnswerDamaged):
            await seen(client)
        assert 2 <= len(server.asked) < 10


async def test_a_page_of_somebody_else_is_no_stream(make: MakeClient) -> None:
    async with scripted(answer(b"<html>log in</html>", content_type="text/html")) as server, make(server.url) as client:
        with pytest.raises(AnswerDamaged, match="text/html"):
            await seen(client)


async def test_a_stream_that_only_ends_is_no_busy_loop(make: MakeClient) -> None:
    async with scripted(*[stream(retry_ms=None)] * 500) as server, make(server.url, retry_seconds=0.3) as client:
        with pytest.raises(AnswerDamaged, match="before its first event"):
            await seen(client)
        assert len(server.asked) < 10


async def test_a_server_that_stays_away_is_an_error(make: MakeClient, unused_port: int) -> None:
    async with make(f"http://127.0.0.1:{unused_port}", retry_seconds=0.3) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(httpx.ConnectError):
            await asyncio.wait_for(seen(client), 120)
        assert asyncio.get_running_loop().time() - began > 0.05


class TestPatience:
    """For how long a server may be away is a word of the caller, for this watch alone"""

    async def test_a_server_that_was_there_is_waited_for(self, make: MakeClient) -> None:
        away = [cut, answer(AWAY, 503), answer(b"", 502)]
        turns = [stream(event(3, "RUNNING")), *away, stream(event(4, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url, retry_seconds=0.1) as client:
            events = [each async for each in client.watch_run("r", patience_sec=math.inf)]
            assert [each["snapshot"]["status"] for each in events] == ["RUNNING", "COMPLETED"]
        assert len(server.asked) == 5

    async def test_it_ends(self, make: MakeClient) -> None:
        async with scripted(stream(event(3, "RUNNING")), *[cut] * 50) as server, make(server.url) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await seen(client, patience_sec=0.5)
            assert 2 <= len(server.asked) < 10

    @pytest.mark.parametrize("turn", [cut, answer(b"<html>", 502), answer(b"", 503)])
    async def test_a_server_that_never_was_there_is_told_soon(self, make: MakeClient, turn: Turn) -> None:
        """The address may be wrong"""
        async with scripted(*[turn] * 50) as server, make(server.url, retry_seconds=0.2) as client:
            with pytest.raises(httpx.HTTPError):
                await asyncio.wait_for(seen(client, patience_sec=math.inf), 120)

    async def test_a_gateway_that_has_a_reason_is_there(self, make: MakeClient) -> None:
        turns = [answer(CROWDED, 503), answer(AWAY, 503), answer(CROWDED, 503), stream(event(4, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url, retry_seconds=0) as client:
            assert await seen(client, patience_sec=math.inf) == [("snapshot", "COMPLETED")]

    async def test_no_header_puts_a_watch_to_sleep_for_a_day(
        self, make: MakeClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retry, "_RETRY_AFTER_SECONDS_MAX", 0.05)
        turns = [answer(AWAY, 503, retry_after="9999999999"), stream(event(4, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            found = await asyncio.wait_for(seen(client, patience_sec=math.inf), 120)
            assert found == [("snapshot", "COMPLETED")]

    @pytest.mark.parametrize("seconds", [-1, float("nan")])
    async def test_a_patience_that_cannot_be_is_refused(self, make: MakeClient, seconds: float) -> None:
        async with scripted() as server, make(server.url) as client:
            with pytest.raises(ValueError, match="negative"):
                await seen(client, patience_sec=seconds)
            with pytest.raises(ValueError, match="negative"):
                await client.wait_run("r", patience_sec=seconds)
            assert server.asked == []


class TestAServerThatRepeatsItself:
    @pytest.mark.parametrize("then", ["end", "cut"])
    async def test_it_is_asked_less_and_less_often(self, make: MakeClient, then: str) -> None:
        """FLOW-128: `retry: 0` is no leave to connect a thousand times a second"""
        same = stream(event(3, "RUNNING"), then=then, retry_ms=0)
        turns = [same] * 3 + [stream(event(4, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            assert await seen(client) == [("snapshot", "RUNNING"), ("snapshot", "COMPLETED")]
        pauses = [later - earlier for earlier, later in itertools.pairwise(server.at)]
        assert all(pause > least * 0.99 for pause, least in zip(pauses, (0.025, 0.05, 0.1), strict=True)), pauses

    async def test_nothing_is_told_twice(self, make: MakeClient) -> None:
        """FLOW-128: whatever the server makes of `Last-Event-ID`; a heartbeat is no news, and is told"""
        again = event(3, "PENDING") + event(5, "RUNNING") + event(5, "RUNNING", "heartbeat")
        async with scripted(stream(again), stream(again, event(5, "FAILED"))) as server, make(server.url) as client:
            assert await seen(client) == [
                ("snapshot", "PENDING"),
                ("snapshot", "RUNNING"),
                ("heartbeat", "RUNNING"),
                ("heartbeat", "RUNNING"),
                ("snapshot", "FAILED"),
            ], "the end is told, whatever its number"

    async def test_news_make_it_quick_again(self, make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []

        def pause(tries: int, chance: float) -> float:
            asked.append(tries)
            return retry.backoff_seconds(tries, chance)

        monkeypatch.setattr(resuming, "backoff_seconds", pause)
        turns = [stream(event(number, "RUNNING"), retry_ms=0) for number in range(1, 7)]
        async with scripted(*turns, stream(event(9, "COMPLETED"))) as server, make(server.url) as client:
            assert len(await seen(client)) == 7
        assert asked == [1] * 6, "always the first pause, which is the shortest"


@pytest.mark.parametrize("status", [401, 403, 404, 422])
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_answer_that_says_no_is_final(make: MakeClient, status: int, is_first: bool) -> None:
    """FLOW-126, FLOW-127, FLOW-415: also on a later connection, and with the server's words"""
    before = [] if is_first else [stream(event(3, "RUNNING"))]
    async with scripted(*before, answer({"detail": "no"}, status)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError) as raised:
            await seen(client)
        assert raised.value.response.status_code == status
        assert raised.value.response.json() == {"detail": "no"}
        assert len(server.asked) == len(before) + 1


async def test_no_content_means_that_all_was_seen(make: MakeClient) -> None:
    done = raw(b"HTTP/1.1 204 No Content\r\n\r\n")
    async with scripted(stream(event(3, "RUNNING")), done) as server, make(server.url) as client:
        assert await seen(client) == [("snapshot", "RUNNING")]


async def test_leaving_hangs_up(make: MakeClient) -> None:
    """FLOW-412"""
    async with scripted(stream(event(3, "RUNNING"), then="hang")) as server, make(server.url) as client:
        events = client.watch_run("r")
        assert (await anext(events))["snapshot"]["status"] == "RUNNING"
        assert not server.over[0].is_set()
        await events.aclose()
        await asyncio.wait_for(server.over[0].wait(), 120)


async def test_the_query_is_what_was_asked(make: MakeClient) -> None:
    """FLOW-117 to FLOW-119"""
    turns = [stream(event(3, "COMPLETED"))] * 4
    async with scripted(*turns) as server, make(server.url) as client:
        await seen(client)
        await seen(client, include=["records"], since=1.25, timeout_sec=30.9)
        await seen(client, timeout_sec=7200)
        await seen(client, timeout_sec=2.5)
    assert [asked.path for asked in server.asked] == [
        "/runs/r/watch",
        "/runs/r/watch?include=records&since=1.25&timeout_sec=30",
        "/runs/r/watch?timeout_sec=600",
        "/runs/r/watch?timeout_sec=2",
    ]


@pytest.mark.parametrize("timeout_sec", [0, -1, float("nan")])
async def test_a_time_the_server_would_not_take_is_the_servers_to_refuse(make: MakeClient, timeout_sec: float) -> None:
    """FLOW-127"""
    async with scripted(answer({"detail": "no"}, 422)) as server, make(server.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await seen(client, timeout_sec=timeout_sec)
    assert server.asked[0].path == f"/runs/r/watch?timeout_sec={timeout_sec}"


async def test_less_than_a_second_is_less_than_a_second(clocked: MakeClocked) -> None:
    """FLOW-449: though the server counts whole ones"""
    async with clocked(*[stream(event(3, "RUNNING"), then="hang")] * 99) as (server, client):
        assert await seen(client, timeout_sec=0.15) == [("snapshot", "RUNNING")]
        assert server.now == pytest.approx(0.15)
    assert server.asked[0].path == "/runs/r/watch?timeout_sec=1"


@pytest.mark.parametrize(("turn", "why"), [(hang, ""), (refuse, ": .*refused")])
async def test_time_that_is_up_before_anything_was_heard_is_an_error(
    clocked: MakeClocked, turn: Turn, why: str
) -> None:
    """FLOW-416: an end without a word would look like a run without events"""
    async with clocked(*[turn] * 9) as (_, client):
        with pytest.raises(TimeoutError, match=rf"no event of run r came within 0\.1 s{why}"):
            await seen(client, timeout_sec=0.1)


async def test_a_reason_that_was_told_until_time_is_up_is_the_error(clocked: MakeClocked) -> None:
    """FLOW-412, FLOW-126"""
    async with clocked(*[answer(AWAY, 503)] * 9) as (_, client):
        with pytest.raises(httpx.HTTPStatusError) as raised:
            await seen(client, timeout_sec=0.3)
    assert raised.value.response.json() == AWAY


async def test_it_ends_when_its_time_is_up(clocked: MakeClocked) -> None:
    """FLOW-449: whatever the server does"""
    turns = [stream(event(3, "RUNNING"), then="hang"), stream(then="hang"), stream(then="hang")]
    async with clocked(*turns) as (server, client):
        assert await seen(client, timeout_sec=0.4) == [("snapshot", "RUNNING")]
        assert server.now == pytest.approx(0.4)
