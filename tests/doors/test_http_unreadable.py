"""A run whose stored record cannot be decoded: 503 with its key, UNKNOWN in lists, named and removable."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.discard_record import discard_record
from pyoco_server.core.states import UNKNOWN
from pyoco_server.doors.http.state import State
from pyoco_server.errors import NotOfThisKind, RunNotFound
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, error, fresh_gateway, submit
from support.waiting import eventually

SPOILT = [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b'{"run_id": "x"}']


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        state: State = gateway.app.state.gateway
        assert await state.feeder.caught_up(60)
        yield gateway


async def spoil(gateway: Gateway, link: Link, run_id: str, data: bytes = b"{") -> None:
    await link.store(f"$KV.{gateway.config.runs_kv_bucket}.{run_id}", data or b" ")


async def listed(gateway: Gateway, **query: str) -> list[dict[str, Any]]:
    answer = await gateway.client.get("/runs", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


@pytest.mark.parametrize("data", SPOILT, ids=repr)
async def test_every_route_below_a_run_answers_503_with_its_key(gateway: Gateway, link: Link, data: bytes) -> None:
    """SAFE-16"""
    run_id = await submit(gateway)
    await spoil(gateway, link, run_id, data)
    for method, path in (
        ("GET", ""),
        ("GET", "?include=records"),
        ("GET", "/tasks"),
        ("GET", "/watch"),
        ("GET", "/artifacts"),
        ("POST", "/cancel"),
        ("POST", "/rerun"),
    ):
        body: dict[str, Any] | None = {} if method == "POST" else None
        answer = await gateway.client.request(method, f"/runs/{run_id}{path}", json=body)
        assert (answer.status_code, answer.json()) == (503, error(75, "record unreadable") | {"key": run_id}), path


MEMBERS = ("flow_name", "tag", "tags", "worker_id", "attempt", "error", "tasks", "cancel_reason", "kind", "tenant_id")


@pytest.mark.parametrize("value", [5, {}, [{}], "\ud800", {"a": [1]}], ids=repr)
async def test_a_record_with_members_of_other_types_is_shown_or_unreadable(
    gateway: Gateway, link: Link, value: Any
) -> None:
    """SAFE-16: never 500, and lists go on."""
    for member in MEMBERS:
        run_id = await submit(gateway)
        found = await gateway.backend.runs._bucket.get(run_id)  # type: ignore[attr-defined]
        assert found is not None
        await spoil(gateway, link, run_id, json.dumps(json.loads(found.value) | {member: value}).encode())
        for path in ("", "/tasks"):
            answer = await gateway.client.get(f"/runs/{run_id}{path}")
            assert answer.status_code in (200, 503), (member, answer.text)
            assert answer.status_code == 200 or answer.json()["key"] == run_id
    assert len(await listed(gateway)) == len(MEMBERS)


async def test_lists_and_search_show_it_as_unknown(gateway: Gateway, link: Link) -> None:
    """SAFE-16: in its place, with the names of the last record that could be read."""
    run_ids = [await submit(gateway) for _ in range(3)]
    assert len(await listed(gateway)) == 3
    await spoil(gateway, link, run_ids[1])

    async def is_shown() -> bool:
        return [each["run_id"] for each in await listed(gateway, status=UNKNOWN)] == [run_ids[1]]

    await eventually(is_shown)
    by_id = {each["run_id"]: each for each in await listed(gateway)}
    assert {run_id: by_id[run_id]["status"] for run_id in run_ids} == dict(
        zip(run_ids, ["PENDING", UNKNOWN, "PENDING"], strict=True)
    )
    assert by_id[run_ids[1]]["flow_name"] == by_id[run_ids[0]]["flow_name"]
    assert [each["status"] for each in await listed(gateway, run_id=run_ids[1][:8])] == [UNKNOWN]
    whole = await listed(gateway, include="full")
    assert sorted(each["status"] for each in whole) == ["PENDING", "PENDING", UNKNOWN]


async def test_a_record_that_was_never_readable_is_listed_too(gateway: Gateway, link: Link) -> None:
    """SAFE-16"""
    run_id = "6f1c2b3a-0000-4000-8000-00000000000a"
    await spoil(gateway, link, run_id)

    async def is_shown() -> bool:
        return [each["run_id"] for each in await listed(gateway, status=UNKNOWN)] == [run_id]

    await eventually(is_shown)


async def test_one_that_is_mended_is_shown_as_it_is(gateway: Gateway, link: Link) -> None:
    """SAFE-16: a restore from a backup."""
    run_id = await submit(gateway)
    found = await gateway.backend.runs._bucket.get(run_id)  # type: ignore[attr-defined]
    await spoil(gateway, link, run_id)
    await spoil(gateway, link, run_id, found.value)

    async def is_pending() -> bool:
        return [each["status"] for each in await listed(gateway)] == ["PENDING"]

    await eventually(is_pending)
    assert (await gateway.client.get(f"/runs/{run_id}")).status_code == 200
    assert await listed(gateway, status=UNKNOWN) == []


async def test_attention_names_it(gateway: Gateway, link: Link) -> None:
    """SAFE-16"""
    run_id = await submit(gateway)
    await spoil(gateway, link, run_id)
    found: list[dict[str, Any]] = []

    async def is_told() -> bool:
        items = (await gateway.client.get("/attention")).json()["items"]
        found[:] = [each for each in items if each["kind"] == "record_unreadable"]
        return bool(found)

    await eventually(is_told)
    assert found[0]["facts"] == {"run_ids": [run_id]}
    assert f"pyoco-server-admin run discard {run_id}" in found[0]["message"]


async def test_it_is_one_log_line_without_a_traceback(
    gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    """SAFE-16"""
    run_id = await submit(gateway)
    assert len(await listed(gateway)) == 1
    await spoil(gateway, link, run_id)

    async def is_shown() -> bool:
        return bool(await listed(gateway, status=UNKNOWN))

    await eventually(is_shown)
    (told,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert vars(told)["pyoco_fields"]["run_id"] == run_id
    assert told.exc_info is None
    caplog.clear()
    await gateway.client.get(f"/runs/{run_id}")
    (answered,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert answered.exc_info is None


async def test_an_operator_discards_it_and_nothing_else(gateway: Gateway, link: Link) -> None:
    """SAFE-16"""
    run_id, other = await submit(gateway), await submit(gateway)
    await spoil(gateway, link, run_id)
    done = await discard_record(gateway.backend.runs, run_id)
    assert done.run_id == run_id
    assert (await gateway.client.get(f"/runs/{run_id}")).status_code == 404

    async def has_gone() -> bool:
        return [each["run_id"] for each in await listed(gateway)] == [other]

    await eventually(has_gone)
    with pytest.raises(NotOfThisKind):
        await discard_record(gateway.backend.runs, other)
    for nobody in (run_id, "not-an-id"):
        with pytest.raises(RunNotFound):
            await discard_record(gateway.backend.runs, nobody)


async def test_two_who_discard_it_at_once_remove_it_once(gateway: Gateway, link: Link) -> None:
    run_id = await submit(gateway)
    await spoil(gateway, link, run_id)
    both = (discard_record(gateway.backend.runs, run_id) for _ in range(2))
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert sum(not isinstance(end, BaseException) for end in ends) == 1
