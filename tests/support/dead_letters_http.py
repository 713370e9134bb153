"""Asking for dead letters over HTTP; every answer is held against the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx

from doors.test_openapi import DOCUMENT, faults
from pyoco_server.ports.dead_letters.jetstream import JetStreamDeadLetters
from support.gateways import Gateway, error
from support.waiting import eventually

__all__ = ["NOT_FOUND", "ask", "get", "ids", "look_often"]

NOT_FOUND = error(27, "dead letter not found")


def look_often(gateway: Gateway, seconds: float = 0.05) -> Gateway:
    assert isinstance(gateway.backend.dead_letters, JetStreamDeadLetters)
    gateway.backend.dead_letters._look_seconds = seconds
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
    """As soon as letters can be told: on a busy machine the gateway may not have heard NATS for a while."""
    answers: list[httpx.Response] = []

    async def is_answered() -> bool:
        answers.append(await ask(gateway, "GET", path, **headers))
        return answers[-1].status_code != 503

    await eventually(is_answered)
    assert answers[-1].status_code == 200, answers[-1].text
    return answers[-1].json()


async def ids(gateway: Gateway, query: str = "", **headers: str) -> list[int]:
    return [int(item["id"]) for item in (await get(gateway, f"/dlq{query}", **headers))["items"]]
