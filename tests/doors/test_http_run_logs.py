"""`GET /runs/{run_id}/logs` and its stream."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from typing import Any

import httpx
import pytest

from pyoco_server.actions import follow_logs, read_logs
from pyoco_server.core.outcome import Completed
from pyoco_server.core.retries.course import with_failed_try
from pyoco_server.core.run import changed
from pyoco_server.core.run_log import selection
from pyoco_server.core.run_log.attempt_log import Record
from pyoco_server.core.run_log.line import Line, Stream
from pyoco_server.core.run_log.text import line_text
from pyoco_server.doors.http import run_logs
from support.gateways import Gateway, claimed, ended, fresh_gateway, listening, stored, submit
from support.printing import Printer, printed_run
from support.waiting import eventually


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_logs, "QUIET_SECONDS", 0.3)


@pytest.fixture
async def run_id(gateway: Gateway) -> str:
    """A run that has printed some lines in two attempts, and ended."""
    run_id = await submit(gateway)
    first = Printer(gateway.backend.logs, run_id)
    first.print("one", "two")
    await first.store()
    second = Printer(gateway.backend.logs, run_id, 2)
    second.print("start", "middle")
    second.print("oh no", task=None, stream=Stream.STDERR, ts=101.0)
    second.log.record("save", Record(102.0, "ERROR", "app", "it failed", "Traceback"), 102.0)
    second.log.record("save", Record(103.0, "DEBUG", "app", "details"), 103.0)
    await second.store(is_over=True)
    await ended(gateway, run_id, Completed())
    return run_id


async def lines(gateway: Gateway, run_id: str, **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.client.get(f"/runs/{run_id}/logs", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "1.1 1.2 1.3 2.1 2.2 2.3 2.4 2.5"),
        ({"task": "load"}, "1.1 1.2 1.3 2.1 2.2"),
        ({"task": ["save", "-"]}, "1.3 2.3 2.4 2.5"),
        ({"attempt": "1"}, "1.1 1.2 1.3"),
        ({"attempt": "all", "stream": "stderr"}, "2.3"),
        ({"stream": ["stderr", "system"]}, "1.3 2.3"),
        ({"level": "warning"}, "1.3 2.3 2.4"),
        ({"level": "DEBUG", "task": "save"}, "1.3 2.4 2.5"),
        ({"since": "102"}, "1.3 2.4 2.5"),
        ({"until": "101"}, "1.1 1.2 1.3 2.1 2.2"),
        ({"since": "1970-01-01T00:01:41Z", "until": "102.5"}, "1.3 2.3 2.4"),
        ({"since": "5m"}, "1.3"),
        ({"search": "TRACE"}, "1.3 2.4"),
        ({"tail": "2"}, "1.3 2.4 2.5"),
        ({"after": "2.3"}, "2.4 2.5"),
        ({"after": "1.2", "limit": "2"}, "1.3 2.1"),
        ({"before": "2.2"}, "1.1 1.2 1.3 2.1"),
        ({"before": "2.4", "tail": "2"}, "1.3 2.2 2.3"),
        ({"before": "2.4", "after": "1.3"}, "2.1 2.2 2.3"),
    ],
)
async def test_lines_are_selected(gateway: Gateway, run_id: str, query: dict[str, Any], expected: str) -> None:
    """LOG-9, LOG-11 to LOG-19: 1.3 is the gap of an attempt whose worker was killed"""
    assert [line["id"] for line in await lines(gateway, run_id, **query)] == expected.split()


async def test_a_page_says_that_more_follows(gateway: Gateway, run_id: str) -> None:
    """LOG-19"""
    found, after = list[str](), dict[str, str]()
    while True:
        answer = await gateway.client.get(f"/runs/{run_id}/logs", params={"limit": "3"} | after)
        ids = [json.loads(line)["id"] for line in answer.text.splitlines()]
        found += ids
        if "pyoco-log-more" not in answer.headers:
            break
        assert (answer.headers["pyoco-log-more"], len(ids)) == ("true", 3)
        after = {"after": ids[-1]}
    assert found == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "2.4", "2.5"]


async def test_a_page_is_bounded_by_its_text_and_says_so(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-17, LOG-19: ten thousand long lines are several pages, in both directions"""
    monkeypatch.setattr(read_logs, "PAGE_CHARACTERS_MAX", 100)
    monkeypatch.setattr(selection, "PAGE_CHARACTERS_MAX", 100)
    run_id = await printed_run(gateway, *(f"{number}{'x' * 39}" for number in range(5)))
    url = f"/runs/{run_id}/logs"
    for query, expected, has_more in (
        ({}, "1.1 1.2 1.3", True),
        ({"after": "1.3"}, "1.4 1.5", False),
        ({"tail": "4"}, "1.4 1.5", True),
        ({"tail": "2", "before": "1.4"}, "1.2 1.3", False),
    ):
        answer = await gateway.client.get(url, params=query)
        assert [json.loads(line)["id"] for line in answer.text.splitlines()] == expected.split()
        assert answer.headers.get("pyoco-log-more") == ("true" if has_more else None)


async def test_the_newest_attempt_is_selected_by_its_name(gateway: Gateway, run_id: str) -> None:
    """LOG-12: the record says which one that is"""
    assert [line["id"] for line in await lines(gateway, run_id, attempt="last")] == ["1.1", "1.2", "1.3"]


async def test_a_line_has_all_its_members(gateway: Gateway, run_id: str) -> None:
    """LOG-8"""
    (line,) = await lines(gateway, run_id, search="it failed", stream="log")
    assert line == {
        "id": "2.4",
        "attempt": 2,
        "try": 1,
        "seq": 4,
        "ts": 102.0,
        "task": "save",
        "stream": "log",
        "level": "ERROR",
        "logger": "app",
        "text": "it failed",
        "exc": "Traceback",
        "cut_bytes": 0,
        "trace_id": None,
        "span_id": None,
    }


async def test_a_line_carries_the_try_that_its_attempt_belongs_to(gateway: Gateway) -> None:
    """LOG-8: the first try took two attempts, because a worker was lost; also in the stream"""
    run_id = await submit(gateway, retry={"tries": 3})
    for attempt in (1, 2, 3):
        printer = Printer(gateway.backend.logs, run_id, attempt)
        printer.print(f"attempt {attempt}")
        await printer.store(is_over=True)
    found = await stored(gateway, run_id)
    tried = with_failed_try(changed(found.run, attempt=2), "exception:OSError", "execution_error", "oh", time.time())
    await gateway.backend.runs.replace(changed(tried, attempt=3), found.revision)
    expected = [(1, 1), (2, 1), (3, 2)]
    assert [(line["attempt"], line["try"]) for line in await lines(gateway, run_id)] == expected
    await ended(gateway, run_id, Completed())
    answer = await gateway.client.get(f"/runs/{run_id}/logs/stream")
    data = [json.loads(each[len("data: ") :]) for each in answer.text.splitlines() if each.startswith("data: ")]
    assert [(line["attempt"], line["try"]) for line in data if "seq" in line] == expected


@pytest.mark.parametrize("query", [{"tail": "1", "search": "x"}, {"search": "nothing"}, {"limit": "10000"}])
async def test_many_lines_are_decoded_and_rendered_beside_the_event_loop(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    """LOG-16, LOG-17: small batches, too: lines that are alike take a few bytes, and there may be many batches"""
    run_id = await submit(gateway)
    printer = Printer(gateway.backend.logs, run_id)
    for _ in range(read_logs._BATCHES_AT_ONCE + 2):
        printer.print("x", "x")
        await printer.store()
    await printer.store(is_over=True)
    threads: set[threading.Thread] = set()

    def see(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def calling(*args: Any) -> Any:
            threads.add(threading.current_thread())
            return call(*args)

        monkeypatch.setattr(owner, name, calling)

    for name in ("plan_of", "decode_batch", "LastLines"):
        see(read_logs, name)
    if "limit" in query:  # a page of a few lines is rendered at once
        see(Line, "document")
    found = [line["text"] for line in await lines(gateway, run_id, **query)]
    assert found.count("x") == {"1": 1}.get(query.get("tail", ""), 0 if "search" in query else 132)
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(("query", "headers"), [({"format": "text"}, {}), ({}, {"accept": "text/plain"})])
async def test_lines_come_as_text_as_well(
    gateway: Gateway, run_id: str, query: dict[str, str], headers: dict[str, str]
) -> None:
    """LOG-10"""
    answer = await gateway.client.get(f"/runs/{run_id}/logs", params=query | {"stream": "stderr"}, headers=headers)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "1970-01-01T00:01:41.000Z - stderr oh no\n"


@pytest.mark.parametrize(
    "query",
    [
        {"attempt": "0"},
        {"attempt": "first"},
        {"stream": "stdin"},
        {"level": "LOUD"},
        {"since": "yesterday"},
        {"until": "-5"},
        {"search": ""},
        {"search": "x" * 201},
        {"tail": "0"},
        {"tail": "10001"},
        {"tail": "5", "after": "1.1"},
        {"after": "five"},
        {"limit": "0"},
        {"limit": "1e3"},
        {"format": "xml"},
        {"timeout_sec": "601"},
    ],
)
async def test_a_bad_value_is_refused_with_its_name(gateway: Gateway, query: dict[str, str]) -> None:
    """LOG-20"""
    path = "/runs/x/logs/stream" if "timeout_sec" in query else "/runs/x/logs"
    answer = await gateway.client.get(path, params=query)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")
    assert answer.json()["errors"][0]["loc"][1] in query


async def test_an_unknown_run_has_no_logs(gateway: Gateway) -> None:
    """LOG-20"""
    for path in ("logs", "logs/stream"):
        for run_id in (str(uuid.uuid4()), "x"):
            assert (await gateway.client.get(f"/runs/{run_id}/{path}")).status_code == 404


async def test_a_run_that_printed_nothing_has_an_empty_log(gateway: Gateway) -> None:
    """LOG-10"""
    run_id = await submit(gateway)
    await ended(gateway, run_id, Completed())
    assert await lines(gateway, run_id) == []


async def test_a_log_that_is_no_longer_kept_is_one_gap(gateway: Gateway) -> None:
    """LOG-20"""
    run_id = await submit(gateway)
    printer = Printer(gateway.backend.logs, run_id)
    printer.print("one")
    await printer.store(is_over=True)
    await ended(gateway, run_id, Completed())
    logs = gateway.backend.logs
    assert logs is not None
    await logs.delete(printer.number)
    later = Printer(gateway.backend.logs, await submit(gateway))
    later.print("of a later run")
    await later.store()
    (line,) = await lines(gateway, run_id)
    assert (line["event"], line["why"], line["missing_lines"], line["id"]) == ("gap", "retention", None, "1.0")
    assert await lines(gateway, run_id, stream="stdout") == []


def events_in(text: str) -> list[tuple[str, str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "data" in fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


async def test_the_stream_of_an_ended_run_begins_with_the_first_line_and_ends(gateway: Gateway, run_id: str) -> None:
    """LOG-21"""
    answer = await gateway.client.get(f"/runs/{run_id}/logs/stream")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_in(answer.text)
    assert [event[:2] for event in events] == [
        *(("line", line_id) for line_id in ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "2.4", "2.5"]),
        ("end", "end"),
    ]
    assert events[0][2]["text"] == "one"
    assert events[-1][2] == {"status": "COMPLETED", "attempt": 1}


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ({"tail": "2"}, {}, "1.3 2.4 2.5 end"),
        ({"after": "2.4"}, {}, "2.5 end"),
        ({"task": "-", "stream": "stderr"}, {}, "2.3 end"),
        ({}, {"last-event-id": "2.3"}, "2.4 2.5 end"),
        ({"tail": "1"}, {"last-event-id": "2.3"}, "2.4 2.5 end"),
        ({}, {"last-event-id": "of another server"}, "1.1 1.2 1.3 2.1 2.2 2.3 2.4 2.5 end"),
    ],
)
async def test_a_stream_begins_anywhere(
    gateway: Gateway, run_id: str, query: dict[str, str], headers: dict[str, str], expected: str
) -> None:
    """LOG-21"""
    answer = await gateway.client.get(f"/runs/{run_id}/logs/stream", params=query, headers=headers)
    assert [event[1] for event in events_in(answer.text)] == expected.split()


async def test_after_the_end_nothing_more_comes(gateway: Gateway, run_id: str) -> None:
    """LOG-21: a browser then stops to reconnect"""
    answer = await gateway.client.get(f"/runs/{run_id}/logs/stream", headers={"last-event-id": "end"})
    assert (answer.status_code, answer.content) == (204, b"")


async def test_a_stream_shows_lines_as_they_come_also_after_the_end_of_the_run(gateway: Gateway) -> None:
    """LOG-5, LOG-21: the terminal snapshot may come before the last lines"""
    run_id = await submit(gateway)
    await claimed(gateway, run_id)
    printer = Printer(gateway.backend.logs, run_id)
    seen: list[str] = []

    async def follow(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", f"{url}/runs/{run_id}/logs/stream?timeout_sec=60") as answer:
            async for line in answer.aiter_lines():
                seen.extend([line.removeprefix("id: ")] if line.startswith("id: ") else [])

    async with listening(gateway.app) as port, httpx.AsyncClient(timeout=60) as client:
        following = asyncio.create_task(follow(client, f"http://127.0.0.1:{port}"))
        printer.print("one")
        await printer.store()
        await eventually(lambda: seen == ["1.1"])
        printer.print("two")
        await printer.store()
        await eventually(lambda: seen == ["1.1", "1.2"])
        await ended(gateway, run_id, Completed())
        printer.print("late")
        await printer.store(is_over=True)
        await asyncio.wait_for(following, 30)
    assert seen == ["1.1", "1.2", "1.3", "end"]


async def test_with_logs_disabled_the_routes_answer_with_nothing(link: Any, nats_url: str, tmp_path: Any) -> None:
    """LOG-22"""
    async with fresh_gateway(link, nats_url, tmp_path, logs_enabled=False) as gateway:
        run_id = await submit(gateway)
        await ended(gateway, run_id, Completed())
        assert await lines(gateway, run_id) == []
        answer = await gateway.client.get(f"/runs/{run_id}/logs")
        assert answer.headers["pyoco-logs"] == "off"
        answer = await gateway.client.get(f"/runs/{run_id}/logs/stream")
        assert [event[1] for event in events_in(answer.text)] == ["end"]


@pytest.mark.parametrize("form", ["text", "ndjson"])
async def test_a_large_page_is_written_beside_other_requests(
    gateway: Gateway, run_id: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-10, LOG-19: ten thousand lines of 16 KiB take seconds"""
    path = f"/runs/{run_id}/logs?format={form}"
    expected = (await gateway.client.get(path)).content
    threads = set[int]()
    document, text = Line.document, line_text

    def seen_document(line: Line, number: int) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return document(line, number)

    def seen_text(line: Line) -> str:
        threads.add(threading.get_ident())
        return text(line)

    monkeypatch.setattr(run_logs, "_CHARACTERS_AT_ONCE", 0)
    monkeypatch.setattr(run_logs, "line_text", seen_text)
    monkeypatch.setattr(Line, "document", seen_document)
    assert (await gateway.client.get(path)).content == expected
    assert threads
    assert threading.get_ident() not in threads
