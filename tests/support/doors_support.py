"""A gateway that counts what it accepts, and the bytes of requests that no client would send."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx

from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, error, stock_of

__all__ = [
    "FLOW_YAML",
    "FORM",
    "GOOD",
    "JSON_BYTES_MAX",
    "NAME",
    "SOMEONE",
    "YAML_BYTES_MAX",
    "Door",
    "call",
    "check_refusal",
    "disposition",
    "endless",
    "form",
    "workflow",
]

JSON_BYTES_MAX = 1024 * 1024
YAML_BYTES_MAX = 262_144
FLOW_YAML = b"flow:\n  graph: a >> b\n  defaults: {x: 1}\n"
SOMEONE = str(uuid.UUID(int=7, version=4))
FORM = {"content-type": "multipart/form-data; boundary=B"}


class Door:
    """A gateway that keeps count of what it accepted."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        self.gateway, self._link = gateway, link
        self.accepted = 0

    async def send(self, method: str, path: str, content: Any = None, **headers: str) -> httpx.Response:
        answer = await self.gateway.client.request(method, path, content=content, headers=headers)
        if answer.status_code == 200 and method == "POST":
            self.accepted += 1
        return answer

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        return await self.send("POST", "/runs", body, **headers)

    async def upload(self, body: Any, content_type: str = "multipart/form-data; boundary=B") -> httpx.Response:
        return await self.send("POST", "/runs/yaml", body, **{"content-type": content_type})

    async def check(self) -> None:
        """FLOW-70: one record and one job for each answer of 200, and nothing else anywhere."""
        config = self.gateway.config
        stock = await stock_of(config, self._link)
        # Files of accepted uploads are kept, each once, however often it comes.
        files = stock.pop(f"OBJ_{config.workflow_object_store_bucket}")
        assert files == 0 or self.accepted
        used = {f"KV_{config.runs_kv_bucket}": self.accepted, config.work_stream: self.accepted}
        assert stock == dict.fromkeys(stock, 0) | used


def check_refusal(answer: httpx.Response, number: int = 2, status: int = 422) -> list[dict[str, Any]]:
    """FLOW-50, FLOW-59, FLOW-60: five fields, both languages, and what is wrong where. Returns the problems."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.content.decode())
    problems: list[dict[str, Any]] = body.pop("errors")
    assert problems
    for problem in problems:
        assert problem.keys() - {"nearest"} == {"loc", "msg", "type"}
        assert ("nearest" in problem) == (problem["type"] == "unknown_member")
        assert problem["msg"]
    phrase = body.pop("detail")
    assert phrase in (problems, "invalid request")
    assert body | {"detail": ""} == error(number, "")
    return problems


async def call(
    app: Any, path: str, chunks: AsyncIterator[bytes], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], int]:
    """An ASGI request whose body arrives piece by piece. Gives status, error body, and how many bytes were taken."""
    taken = 0
    answer: list[Any] = []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        if answer:  # disconnect after the answer
            return {"type": "http.disconnect"}
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}
        taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("gateway", 80),
        "client": ("test", 1),
    }
    async with asyncio.timeout(100):
        await app(scope, receive, send)
    return answer[0]["status"], json.loads(b"".join(part.get("body", b"") for part in answer[1:])), taken


async def endless(start: bytes, piece: bytes) -> AsyncIterator[bytes]:
    yield start
    while True:
        yield piece


def disposition(name: str, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'Content-Disposition: form-data; name="{name}"{file}'.encode()


def workflow(data: bytes) -> tuple[bytes, bytes]:
    return disposition("workflow", "flow.yaml") + b"\r\nContent-Type: application/yaml", data


def form(*parts: tuple[bytes, bytes], end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts) + end


NAME = (disposition("flow_name"), b"main")
GOOD = form(workflow(FLOW_YAML), NAME)
