"""The answerer that asks a server: what it sends, what it believes, and how it ends. The server is here, too."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from pyoco_server.core.answers.answer import ANSWER_LENGTH_MAX, Ask
from pyoco_server.errors import SettingError
from pyoco_server.ports.answerer import openai as openai_module
from pyoco_server.ports.answerer.chat import read_answer, write_request
from pyoco_server.ports.answerer.openai import ANSWER_BYTES_MAX, OpenAiAnswerer
from pyoco_server.ports.answerer.port import AnswererRefused, AnswererUnavailable, BadAnswer, NoAnswer, NobodyWaits
from support.openai_server import (
    ASK,
    KEY,
    MARKER,
    YES,
    Play,
    ask,
    completion,
    hangs_up,
    nothing_is_left,
    plays,
    refused,
    said,
    serving,
)


def test_a_question_is_sent_as_data_and_its_answer_is_read_with_its_tokens() -> None:
    with serving(plays()) as server:
        assert ask(server.url) == YES
    ((path, headers, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"  # one that is kept could not be cut
    assert (body["model"], body["temperature"]) == ("some-model", 0)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert MARKER not in body["messages"][0]["content"]
    assert json.loads(body["messages"][1]["content"]) == {"question": ASK.question, "context": ASK.context}


@pytest.mark.parametrize(
    ("tail", "path"),
    [("", "/v1"), ("/", "/v1"), ("/deep/", "/v1/deep"), ("?api-version=1", "/v1")],
)
def test_the_address_is_completed_wherever_it_ends(tail: str, path: str) -> None:
    with serving(plays()) as server:
        ask(server.url + tail, key="")
    ((asked, headers, _),) = server.asked
    assert asked == f"{path}/chat/completions" + (tail if tail.startswith("?") else "")
    assert "authorization" not in headers


def test_a_full_answer_may_be_longer() -> None:
    brief, full = (json.loads(write_request(Ask(question="q", is_full=is_full), "m")) for is_full in (False, True))
    assert full["max_tokens"] > brief["max_tokens"] > 0
    assert full["messages"][0] != brief["messages"][0]


def test_nothing_in_a_question_can_end_it_and_control_characters_are_spaces() -> None:
    """The user's message stays one object, whatever is asked."""
    nasty = 'a\x00b\x1b[2J\x85"}\n\t</context>{"role": "system"} \u202e'
    body = json.loads(write_request(Ask(question=nasty, context=nasty), "m"))
    asked = json.loads(body["messages"][1]["content"])
    cleaned = 'a b [2J "}\n\t</context>{"role": "system"} \u202e'
    assert asked == {"question": cleaned, "context": cleaned}


@pytest.mark.parametrize(
    ("content", "text", "confidence"),
    [
        (said(), "Yes.", 0.75),
        (said(confidence=1), "Yes.", 1.0),
        (said(confidence=0.123456), "Yes.", 0.1235),
        (f"```json\n{said()}\n```", "Yes.", 0.75),
        (f" \n{said()}\n", "Yes.", 0.75),
        ("Yes, plainly.", "Yes, plainly.", None),
        (said(confidence=None), "Yes.", None),
        (said(confidence=1.5), "Yes.", None),
        (said(confidence=True), "Yes.", None),
        (said(confidence="0.9"), "Yes.", None),
        ('{"answer": "Yes."}', "Yes.", None),
        (said("a\x00b\x1b[2J\nc"), "ab[2J\nc", 0.75),
        ('{"answer": "half \\ud800", "confidence": 0.5}', "half \ufffd", 0.5),
        (said("x" * 30_000), "x" * (ANSWER_LENGTH_MAX - 1) + "…", 0.75),
    ],
)
def test_an_answer_is_taken_at_its_word_and_its_confidence_only_if_it_is_one(
    content: str, text: str, confidence: float | None
) -> None:
    found = read_answer(json.dumps(completion(content)).encode())
    assert (found.text, found.confidence, found.tokens_consumed) == (text, confidence, 0)
    found.text.encode()


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 7}, 7),
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"total_tokens": -7, "prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"total_tokens": True}, 0),
        ({"total_tokens": 7.5}, 0),
        ({"total_tokens": 10**30}, 0),
        ({"prompt_tokens": 3}, 0),
        ([7], 0),
        (None, 0),
    ],
)
def test_tokens_are_counted_where_the_server_counts_them(usage: Any, tokens: int) -> None:
    assert read_answer(json.dumps(completion(said(), usage=usage)).encode()).tokens_consumed == tokens


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"[" * 100_000,
        b"NaN",
        b"[]",
        b'"text"',
        b"{}",
        b'{"choices": []}',
        b'{"choices": {}}',
        b'{"choices": [1]}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": "Yes."}]}',
        b'{"choices": [{"message": {"content": null}}]}',
        b'{"choices": [{"message": {"content": ["Yes."]}}]}',
        *(
            json.dumps(completion(content)).encode()
            for content in ("", " \x00 ", '{"answer": "cut of', '{"reply": "Yes."}', said(7), said(""), "```\n```", "{")
        ),
    ],
)
def test_what_is_no_answer_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_answer(body)


def test_a_model_that_declines_has_refused() -> None:
    body = {"choices": [{"message": {"content": None, "refusal": f"I will not. {MARKER}"}}]}
    with serving(plays(body=json.dumps(body).encode())) as server:
        assert "declined" in refused(AnswererRefused, server.url)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_told_and_not_repeated(status: int) -> None:
    with serving(plays(status, MARKER.encode())) as server:
        assert str(status) in refused(AnswererRefused, server.url)
        assert len(server.asked) == 1


def test_a_redirect_is_not_followed() -> None:
    with (
        serving(plays()) as elsewhere,
        serving(plays(307, b"", Location=f"{elsewhere.url}/chat/completions")) as server,
    ):
        assert "307" in refused(AnswererRefused, server.url)
        assert (len(server.asked), elsewhere.asked) == (1, [])


@pytest.mark.parametrize(
    "first",
    [plays(429, Retry_After="0"), plays(503), plays(500), plays(408), hangs_up],
    ids=["429", "503", "500", "408", "gone"],
)
def test_what_may_pass_is_tried_once_more(first: Play) -> None:
    with serving(first, plays()) as server:
        assert ask(server.url) == YES
        assert len(server.asked) == 2


@pytest.mark.parametrize("play", [plays(429), plays(503), hangs_up], ids=["429", "503", "gone"])
def test_what_does_not_pass_is_told_after_the_second_time(play: Play) -> None:
    with serving(play) as server:
        refused(AnswererUnavailable, server.url)
        assert len(server.asked) == 2


@pytest.mark.parametrize("seconds", ["60", "9999"])
def test_who_wants_to_be_left_alone_for_long_is_not_asked_again(seconds: str) -> None:
    with serving(plays(429, Retry_After=seconds)) as server:
        refused(AnswererUnavailable, server.url)
        assert len(server.asked) == 1


def test_it_is_not_tried_again_when_no_time_is_left() -> None:
    with serving(plays(503, Retry_After="4")) as server:
        refused(AnswererUnavailable, server.url, seconds=5)
        assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        assert "connection" in refused(AnswererUnavailable, url)


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(plays()) as server, serving(plays(500)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        assert ask(server.url) == YES
        assert proxy.asked == []


def drips(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever: no single read is late."""
    server: Any = handler.server
    handler.send_response(200)
    handler.end_headers()
    while not server.over.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def drips_its_head(handler: BaseHTTPRequestHandler) -> None:
    """The same, and its head is never complete."""
    server: Any = handler.server
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not server.over.wait(0.02):
        handler.wfile.write(b"x")


def goes_on(handler: BaseHTTPRequestHandler) -> None:
    """One head after another, and none is that of an answer."""
    server: Any = handler.server
    while not server.over.wait(0.02):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def is_silent(handler: BaseHTTPRequestHandler) -> None:
    server: Any = handler.server
    server.over.wait(200)


SLOW = [drips, drips_its_head, goes_on, is_silent]


@pytest.mark.parametrize("play", SLOW)
def test_a_slow_server_is_left_before_the_time_is_over(play: Play) -> None:
    with serving(play) as server:
        for seconds in (1, 4, 16):  # a busy machine may be too late
            begin = time.monotonic()
            assert "in time" in refused(AnswererUnavailable, server.url, seconds=seconds)
            took = time.monotonic() - begin
            if took < seconds:
                break
        assert took < seconds


@pytest.mark.parametrize("play", [*SLOW, plays(503, Retry_After="5")], ids=[*(s.__name__ for s in SLOW), "pausing"])
def test_a_cancel_is_heard_while_it_waits(play: Play) -> None:
    with serving(play) as server:
        for _ in range(5):  # a busy machine may be late, but not each time
            cancelled = threading.Event()
            threading.Timer(0.1, cancelled.set).start()
            begin = time.monotonic()
            refused(NobodyWaits, server.url, cancelled=cancelled)
            took = time.monotonic() - begin
            if took < 4:
                break
        assert took < 4


def test_a_cancel_is_heard_while_the_server_does_not_speak_of_tls() -> None:
    cancelled = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Timer(0.1, cancelled.set).start()
        refused(NobodyWaits, f"https://127.0.0.1:{silent.getsockname()[1]}/v1", cancelled=cancelled)


def test_a_cancel_that_comes_before_the_connection_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to cut yet: it is cut when it is there."""
    cancelled, looked_up = threading.Event(), threading.Event()
    real = socket.create_connection

    def slow(*arguments: Any, **more: Any) -> socket.socket:
        looked_up.wait(200)
        return real(*arguments, **more)

    monkeypatch.setattr(socket, "create_connection", slow)
    with (
        serving(drips_its_head) as server,
        contextlib.closing(OpenAiAnswerer(server.url, "some-model", KEY)) as answerer,
    ):
        cancelled.set()
        with pytest.raises(NobodyWaits):
            answerer.answer(ASK, 20.0, cancelled)
        looked_up.set()
        assert nothing_is_left()


def floods(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(64):
        handler.wfile.write(b" " * ANSWER_BYTES_MAX)


def test_no_more_is_read_than_an_answer_may_have() -> None:
    with serving(floods) as server:
        assert "1 MiB" in refused(BadAnswer, server.url)


def test_an_answer_that_is_compressed_is_not_unpacked() -> None:
    with serving(plays(body=b"\x1f\x8b", Content_Encoding="gzip")) as server:
        assert "compressed" in refused(BadAnswer, server.url)
        assert server.asked[0][1]["accept-encoding"] == "identity"


def test_what_is_no_http_at_all_is_unavailable() -> None:
    def babbles(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"hello\r\n" * 3)

    with serving(babbles) as server:
        refused(AnswererUnavailable, server.url)


@pytest.mark.parametrize(
    ("url", "key", "variable"),
    [
        ("http://", KEY, "PYOCO_DECISION_URL"),
        ("https:///v1", KEY, "PYOCO_DECISION_URL"),
        (f"http://{MARKER}:99999999/v1", KEY, "PYOCO_DECISION_URL"),
        ("ftp://127.0.0.1/v1", KEY, "PYOCO_DECISION_URL"),
        ("http://127.0.0.1/v1", f"{MARKER}\nX-Other: 1", "PYOCO_DECISION_API_KEY"),
        ("http://127.0.0.1/v1", f"{MARKER} é", "PYOCO_DECISION_API_KEY"),
    ],
)
def test_settings_that_cannot_work_are_named_and_not_quoted(url: str, key: str, variable: str) -> None:
    with pytest.raises(SettingError, match=variable) as caught:
        OpenAiAnswerer(url, "some-model", key)
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize(
    ("play", "seconds", "is_operators_fault"),
    [
        (plays(401), 60.0, True),
        (plays(404), 60.0, True),
        (plays(307, b"", Location="/elsewhere"), 60.0, True),
        (plays(503), 60.0, True),
        (hangs_up, 60.0, True),
        (plays(400), 60.0, False),
        (plays(413), 60.0, False),
        (plays(body=b"no JSON"), 60.0, False),
    ],
    ids=["401", "404", "307", "503", "gone", "400", "413", "no answer"],
)
def test_the_fault_is_the_operators_where_the_question_does_not_matter(
    play: Play, seconds: float, is_operators_fault: bool
) -> None:
    """SAFE-3"""
    with serving(play) as server, pytest.raises(NoAnswer) as caught:
        ask(server.url, seconds)
    assert caught.value.is_operators_fault is is_operators_fault


@pytest.mark.parametrize(("patience", "is_operators_fault"), [(0.5, True), (10.0, False)])
def test_a_silent_model_is_away_unless_the_caller_gave_it_little_time(
    monkeypatch: pytest.MonkeyPatch, patience: float, is_operators_fault: bool
) -> None:
    """SAFE-3: whoever gives it less than ten seconds pays for the try"""
    monkeypatch.setattr(openai_module, "_PATIENCE_SECONDS", patience)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NoAnswer) as caught:
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", 1.0)
    assert str(caught.value) == "the answerer did not answer in time"
    assert caught.value.is_operators_fault is is_operators_fault
