"""Asking for dead letters over HTTP; every answer is held against the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx

from doors.test_openapi import DOCUMENT, faults
from gateways import Gateway, error
from pyoco_server.ports.letters.jetstream import JetStreamLetters

__all__ = ["NOT_FOUND", "ask", "get", "ids", "look_often"]

NOT_FOUND = error(27, "dead letter not found")


def look_often(gateway: Gateway, seconds: float = 0.05) -> Gateway:
    assert isinstance(gateway.backend.letters, JetStreamLetters)
    gateway.backend.letters._look_seconds = seconds
    return gateway


async def ask(gateway: Gateway, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Whatever is answered is what the document says."""
    answer = await gateway.client.request(method, path, json=body, headers=headers)
    plain = path.partition("?")[0]
    if plain not in DOCUMENT["paths"]:
        plain = "/dlq/{letter_id}/redrive" if plain.endswith("/redrive") else "/dlq/{letter_id}"
    documented = DOCUMENT["paths"][plain][method.lower()]["responses"][str(answer.status_code)]
    assert faults(answer.json(), documented["content"]["application/json"]["schema"]) == []
    return answer


async def get(gateway: Gateway, path: str, **headers: str) -> Any:
    answer = await ask(gateway, "GET", path, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ids(gateway: Gateway, query: str = "", **headers: str) -> list[int]:
    return [int(item["id"]) for item in (await get(gateway, f"/dlq{query}", **headers))["items"]]
