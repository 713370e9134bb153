"""`/dlq`: how lists keep true. Other gateways, restarts, expiry, strangers in the stream, and NATS gone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.dead_letters import a_letter
from pyoco_server.ports.nats.link import Link
from support.burials import bury_letter, bury_letters, died
from support.dead_letters_http import ask, get, ids, look_often
from support.gateways import Gateway, error, fresh_gateway, open_gateway
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually


class TestOtherGateways:
    async def test_a_letter_taken_by_one_leaves_the_lists_of_the_others(self, gateway: Gateway) -> None:
        first, second, third = await bury_letters(gateway.backend, *[a_letter()] * 3)
        async with open_gateway(gateway.config) as other:
            assert await ids(other) == [third, second, first]
            look_often(other)
            await ask(gateway, "DELETE", f"/dlq/{second}")
            await ask(gateway, "DELETE", f"/dlq/{first}")

            async def is_seen() -> bool:
                return await ids(other) == [third]

            await eventually(is_seen)
            assert (await get(other, "/dlq/counts"))["total"] == 1
            assert (await ask(other, "GET", f"/dlq/{second}")).status_code == 404

    async def test_a_deletion_is_seen_within_a_few_seconds(self, gateway: Gateway) -> None:
        first, _ = await bury_letters(gateway.backend, *[a_letter()] * 2)
        await gateway.backend.dead_letters.delete(first)

        async def is_seen() -> bool:
            return first not in await ids(gateway)

        await eventually(is_seen)

    async def test_a_restart_finds_its_list_again(self, gateway: Gateway) -> None:
        letter_ids = await bury_letters(gateway.backend, *[a_letter()] * 3)
        async with open_gateway(gateway.config) as other:  # the second slot of the directory
            assert await ids(other) == letter_ids[::-1]
        await gateway.backend.dead_letters.delete(letter_ids[1])
        await bury_letter(gateway.backend, a_letter())
        async with open_gateway(gateway.config) as again:
            assert await ids(again) == [letter_ids[2] + 1, letter_ids[2], letter_ids[0]]

    async def test_what_expires_leaves_the_list(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-278"""
        async with fresh_gateway(link, nats_url, tmp_path, dlq_max_msgs=3) as gateway:
            look_often(gateway)
            for number in range(5):
                await gateway.backend.queue.bury(a_letter(), f"{number}")

            async def has(*wanted: int) -> bool:
                return await ids(gateway) == list(wanted)

            await eventually(lambda: has(5, 4, 3))
            stream = gateway.config.dlq_stream
            found = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
            soon_gone = {"max_age": 1_000_000_000, "duplicate_window": 1_000_000_000}
            await link.api(f"STREAM.UPDATE.{stream}", found["config"] | soon_gone, dict[str, Any])
            await eventually(has)
            assert await get(gateway, "/dlq/counts") == {"total": 0, "groups": []}


GARBAGE: list[bytes] = [
    b"",
    b"no JSON",
    b"[1]",
    b"\xff\xff",
    b"{}",
    b'{"reason": null, "error": 3, "tags": {"a": 1}, "run_id": [], "tenant_id": ""}',
    b'{"reason": "\\ud800", "flow_name": "\\u0000", "error": "\\udfff"}',
    b'{"timestamp": 1e999, "num_delivered": ' + b"9" * 400 + b"}",
    b'{"timestamp": "yesterday", "run_id": "../../etc/passwd", "tag": "a.b.c"}',
    b'{"reason": "' + b"r" * 100_000 + b'", "tags": ["' + b"t" * 10_000 + b'"]}',
    json.dumps({"reason": "<script>", "params": {"password": "s3cret"}, "workflow_yaml": "s3cret"}).encode(),
]


async def test_whatever_lies_in_the_stream_is_shown_or_passed_over(gateway: Gateway, link: Link) -> None:
    for body in GARBAGE:
        await link.store(f"{gateway.config.dlq_subject_prefix}.x", body)
    last = await _last_letter(gateway)
    shown = await ids(gateway, "?limit=200")
    assert shown == [last, *range(len(GARBAGE), 4, -1)]
    assert (await get(gateway, "/dlq/counts"))["total"] == len(shown)
    for letter_id in range(1, last + 1):
        answer = await ask(gateway, "GET", f"/dlq/{letter_id}")
        assert answer.status_code == (200 if letter_id in shown else 404)
        assert "s3cret" not in answer.text
        assert (await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")).status_code in {404, 409}
    assert (await ask(gateway, "POST", "/dlq/redrive", {"all": True})).json()["failed"] == len(shown)
    assert (await ask(gateway, "DELETE", "/dlq?all=true")).json()["deleted"] == len(shown)


async def _last_letter(gateway: Gateway) -> int:
    await gateway.backend.queue.bury(a_letter(worker_id="the last"), "last")

    async def is_there() -> bool:
        items = (await get(gateway, "/dlq"))["items"]
        return bool(items) and items[0].get("worker_id") == "the last"

    await eventually(is_there)
    return (await ids(gateway))[0]


@pytest.mark.virtual_time
async def test_while_nats_is_away_lists_say_so_and_are_true_again_afterwards(
    memory_nats_server: MemoryServer, tmp_path: Path
) -> None:
    """FLOW-47 to FLOW-49, FLOW-62; DESIGN 9.16"""
    async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
        letter_id, _ = await died(gateway.backend)
        memory_nats_server.kill()
        await eventually(lambda: not gateway.backend.is_up())
        requests: list[tuple[str, str, Any]] = [
            ("GET", "/dlq", None),
            ("GET", "/dlq/counts", None),
            ("GET", f"/dlq/{letter_id}", None),
            ("DELETE", f"/dlq/{letter_id}", None),
            ("DELETE", "/dlq?all=true", None),
            ("POST", f"/dlq/{letter_id}/redrive", None),
            ("POST", "/dlq/redrive", {"all": True}),
        ]

        async def ask_in_vain() -> None:
            answers = await asyncio.gather(*(ask(gateway, *request) for request in requests))
            for answer in answers:
                assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
                assert answer.headers["retry-after"] == "1"

        async with asyncio.timeout(5.0):
            await ask_in_vain()
        memory_nats_server.start()

        async def is_back() -> bool:
            return (await gateway.client.get("/dlq")).status_code == 200

        await eventually(is_back)
        assert await ids(gateway) == [letter_id]
        assert (await ask(gateway, "POST", f"/dlq/{letter_id}/redrive")).status_code == 200


async def test_a_gateway_that_has_just_started_shows_all_or_says_not_yet(gateway: Gateway) -> None:
    await bury_letters(gateway.backend, *[a_letter()] * 150)
    config = replace(gateway.config, data_dir=f"{gateway.config.data_dir}/fresh")
    async with open_gateway(config) as other:
        first: list[httpx.Response] = []

        async def is_answered() -> bool:
            first[:] = [await other.client.get("/dlq?limit=200")]
            return first[0].status_code != 503

        await eventually(is_answered)
        assert len(first[0].json()["items"]) == 150
