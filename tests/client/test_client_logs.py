"""The log of a run through both clients: in pages, and over connections that break."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pyoco_server.client import log_reading
from pyoco_server.client.log_reading import fixed_filters
from pyoco_server.http_client import AnswerDamaged
from support.client_twins import MakeClient
from support.clocked_clients import MakeClocked
from support.gateways import Gateway
from support.printing import printed_run
from support.scripted_gateway import Scripted, Turn, answer, cut, scripted, stream
from support.watched_runs import AWAY

pytestmark = pytest.mark.usefixtures("hurried")

END = b'id: end\nevent: end\ndata: {"status": "COMPLETED", "attempt": 1}\n\n'
BEAT = b'event: heartbeat\ndata: {"ts": 1.0}\n\n'


def line(line_id: str) -> bytes:
    document = {"id": line_id, "text": f"text of {line_id}"}
    return f"id: {line_id}\nevent: line\ndata: {json.dumps(document)}\n\n".encode()


def lines(*ids: str) -> bytes:
    return b"".join(map(line, ids))


def query(server: Scripted, number: int) -> dict[str, list[str]]:
    return parse_qs(urlsplit(server.asked[number].path).query)


async def ids(client: Any, *args: Any, **more: Any) -> list[str]:
    return [each["id"] async for each in client.run_logs("r", *args, **more)]


async def test_all_lines_are_read_in_pages(
    make: MakeClient, gateway: Gateway, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-29, LOG-19"""
    monkeypatch.setattr(log_reading, "_PAGE_LINES", 2)
    run_id = await printed_run(gateway, "one", "two", "three", "four", "five")
    async with make(url) as client:
        found = [each async for each in client.run_logs(run_id)]
        assert [each["text"] for each in found] == ["one", "two", "three", "four", "five"]
        assert found[0] == {
            **dict.fromkeys(("level", "logger", "trace_id", "span_id")),
            "id": "1.1",
            "attempt": 1,
            "try": 1,
            "seq": 1,
            "ts": 100.0,
            "task": "load",
            "stream": "stdout",
            "text": "one",
            "cut_bytes": 0,
        }
        texts = [each["text"] async for each in client.run_logs(run_id, limit=3)]
        assert texts == ["one", "two", "three"]
        texts = [each["text"] async for each in client.run_logs(run_id, tail=3, task=["load", "-"], search="T")]
        assert texts == ["two", "three"]


async def test_last_lines_that_do_not_fit_on_a_page_are_read_backwards(make: MakeClient) -> None:
    """LOG-17, LOG-29: oldest first all the same, and each gap once"""

    def page(*ids: str, more: bool = True) -> Turn:
        documents = ({"id": each, **({"event": "gap"} if each.endswith(".9") else {})} for each in ids)
        content = b"".join(json.dumps(each).encode() + b"\n" for each in documents)
        return answer(content, pyoco_log_more=str(more).lower())

    pages = page("1.9", "2.5", "2.9", "2.10"), page("1.9", "2.3", "2.4"), page("1.9", "2.2", more=False)
    async with scripted(*pages) as server, make(server.url) as client:
        assert await ids(client, tail=9, attempt="last") == ["1.9", "2.2", "2.3", "2.4", "2.5", "2.9", "2.10"]
    assert [(query(server, number)["tail"], query(server, number).get("before")) for number in range(3)] == [
        (["9"], None),
        (["7"], ["2.5"]),
        (["5"], ["2.3"]),
    ]
    assert query(server, 2)["attempt"] == ["2"]


async def test_a_log_is_followed_to_the_end_of_the_run(make: MakeClient, gateway: Gateway, url: str) -> None:
    """LOG-29"""
    run_id = await printed_run(gateway, "one", "two")
    async with make(url) as client:
        assert [each["text"] async for each in client.run_logs(run_id, follow=True)] == ["one", "two"]
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await ids(client, True)


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_stream_that_breaks_is_continued_after_its_last_line(make: MakeClient, then: str) -> None:
    """LOG-29: no line is lost or repeated, even if Last-Event-ID does not arrive"""
    first = stream(lines("1.1", "1.2"), BEAT, then=then)
    last = stream(lines("1.1", "1.2", "1.3", "2.1"), END)
    async with scripted(first, cut, answer(AWAY, 503), last) as server, make(server.url) as client:
        assert await ids(client, True, tail=2, attempt="last") == ["1.1", "1.2", "1.3", "2.1"]
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "1.2", "1.2", "1.2"]
    assert query(server, 0) == {"tail": ["2"], "attempt": ["last"]}
    assert query(server, 3) == {"after": ["1.2"], "attempt": ["1"]}


async def test_a_stream_whose_end_was_seen_is_over(make: MakeClient) -> None:
    async with scripted(stream(line("1.1"), END + line("1.2"), then="hang")) as server, make(server.url) as client:
        assert await ids(client, True) == ["1.1"]
    async with scripted(stream(line("1.1"), then="cut"), answer(b"", 204)) as server, make(server.url) as client:
        assert await ids(client, True) == ["1.1"]


async def test_following_ends_after_its_time(clocked: MakeClocked) -> None:
    async with clocked(stream(line("1.1"), then="hang")) as (_, client):
        assert await ids(client, True, timeout_sec=7) == ["1.1"]


@pytest.mark.parametrize(
    "garbage", [b"event: line\ndata: no\n\n", b"event: line\ndata: []\n\n", b'event: line\ndata: {"id": "x"}\n\n']
)
async def test_garbage_is_a_broken_connection(make: MakeClient, garbage: bytes) -> None:
    async with scripted(stream(garbage), stream(line("1.1"), END)) as server, make(server.url) as client:
        assert await ids(client, True) == ["1.1"]
    assert len(server.asked) == 2


@pytest.mark.parametrize("content", [b"<html>\n", b"[]\n", b"{}\n"])
async def test_a_page_of_another_server_is_no_log(make: MakeClient, content: bytes) -> None:
    async with scripted(answer(content)) as server, make(server.url) as client:
        with pytest.raises(AnswerDamaged):
            await ids(client)


def test_a_duration_means_the_same_in_all_requests() -> None:
    """LOG-15"""
    filters = {"since": "5m", "until": "2026-12-01T09:00:00Z", "search": None}
    assert fixed_filters(filters, 1000.0) == {"since": 700.0, "until": "2026-12-01T09:00:00Z"}
    assert fixed_filters({"since": 5, "until": "12.5"}, 1000.0) == {"since": 5, "until": "12.5"}
    with pytest.raises(ValueError, match="duration"):
        fixed_filters({"since": "5 minutes"}, 1000.0)
