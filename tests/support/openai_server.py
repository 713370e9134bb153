"""A server that speaks the API of chat completions as a script says, and calls to it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pyoco_server.core.answers.answer import Ask, DocumentAnswer
from pyoco_server.ports.answerer.openai import OpenAiAnswerer
from pyoco_server.ports.answerer.port import NoAnswer

KEY = "sk-secret-7a1f"

MARKER = "marker-9c2e"

ASK = Ask(question=f"Shall we? {MARKER}", context=f"We shall. {MARKER}")


def completion(content: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}]} | more


def said(answer: Any = "Yes.", confidence: Any = 0.75) -> str:
    return json.dumps({"answer": answer, "confidence": confidence})


GOOD = json.dumps(completion(said(), usage={"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42})).encode()

YES = DocumentAnswer(text="Yes.", confidence=0.75, tokens_consumed=42)

#: Answers one request, with the handler in hand.
Play = Callable[[BaseHTTPRequestHandler], None]


def plays(status: int = 200, body: bytes = GOOD, **headers: str) -> Play:
    def play(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return play


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    """Plays its script, one answer per request, the last one again and again; and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, *script: Play) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = list(script)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        play = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        self.close_connection = True
        with contextlib.suppress(OSError):  # the answerer has gone
            play(self)

    def log_message(self, *_: object) -> None:
        """Nothing: the output is the tests'."""


@contextlib.contextmanager
def serving(*script: Play) -> Iterator[Server]:
    with Server(*script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


def nothing_is_left() -> bool:
    """No thread waits for an answer, and so no connection is held."""
    left = [thread for thread in threading.enumerate() if thread.name == "answerer"]
    for thread in left:
        thread.join(60)
    return not any(thread.is_alive() for thread in left)


def ask(
    url: str, seconds: float = 60.0, *, key: str = KEY, asked: Ask = ASK, cancelled: threading.Event | None = None
) -> DocumentAnswer:
    """However it ends, nothing of it is left, and that before anything is closed from outside."""
    with contextlib.closing(OpenAiAnswerer(url, "some-model", key)) as answerer:
        try:
            return answerer.answer(asked, seconds, cancelled or threading.Event())
        finally:
            assert nothing_is_left()


def refused(kind: type[NoAnswer], url: str, seconds: float = 60.0, **more: Any) -> str:
    with pytest.raises(NoAnswer) as caught:
        ask(url, seconds, **more)
    assert type(caught.value) is kind
    told = str(caught.value)
    assert KEY not in told
    assert MARKER not in told
    assert "127.0.0.1" not in told
    return told
