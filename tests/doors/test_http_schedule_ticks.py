"""Ticks through the routes: history, backfill, priced runs, programs, tenants, limits (SCHED-13 to SCHED-30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, fresh_gateway
from support.keepers import keeping
from support.schedules import end_run, keeping_backend

pytestmark = pytest.mark.virtual_time

WHAT = {"kind": "flow", "flow_name": "f"}


@pytest.fixture
async def kept(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway beside two keepers."""
    async with keeping_backend(gateway.config) as backend, keeping(backend, tmp_path, count=2):
        yield gateway


async def create(gateway: Gateway, name: str = "s", **more: Any) -> dict[str, Any]:
    body = {"name": name, "what": WHAT, "when": {"every": 60}} | more
    answer = await gateway.client.post("/schedules", json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ticks(gateway: Gateway, name: str = "s", **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.client.get(f"/schedules/{name}/ticks", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def until(gateway: Gateway, instant: float) -> None:
    await asyncio.sleep(max(0.0, instant - gateway.backend.clock()))


async def test_the_history_is_complete_in_pages_and_filters(kept: Gateway) -> None:
    """SCHED-19, SCHED-30"""
    first = (await create(kept, overlap="queue_one", when={"every": 4}))["next_ticks"][0]
    await until(kept, first + 4 * 34.5)
    everything = await ticks(kept, limit=200)
    assert [each["tick"] for each in everything if each["outcome"] == "skipped"] == [
        first + 4 * n for n in range(34, 1, -1)
    ]
    assert [each["outcome"] for each in everything[-2:]] == ["waiting", "run"]
    shown = (await kept.client.get("/schedules/s")).json()
    assert (shown["waiting_ticks"], shown["last_tick"]["tick"]) == (1, first + 4 * 34)
    pages: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = {"limit": 7} | ({} if cursor is None else {"cursor": cursor})
        page = (await kept.client.get("/schedules/s/ticks", params=query)).json()
        pages += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == everything
    assert len(await ticks(kept, outcome="skipped", **{"from": first + 40, "to": first + 48})) == 2
    bounds: dict[str, Any] = {"from": first + 40, "to": first + 48, "limit": 1}
    page = (await kept.client.get("/schedules/s/ticks", params=bounds)).json()
    page = (await kept.client.get("/schedules/s/ticks", params=bounds | {"cursor": page["next_cursor"]})).json()
    assert ([each["tick"] for each in page["items"]], page["next_cursor"]) == ([first + 40], None)
    run_id = everything[-1]["run_id"]
    await end_run(kept.backend, run_id)
    await asyncio.sleep(1)
    newest = next(each for each in await ticks(kept) if each["outcome"] == "run")
    assert (newest["tick"], newest["outcome"], newest["run_status"]) == (first + 4, "run", "PENDING")


@pytest.mark.parametrize(
    ("day", "tick", "local"),
    [
        ("2025-03-30", 1743298200, "2025-03-30T03:30:00+02:00"),
        ("2025-10-26", 1761438600, "2025-10-26T02:30:00+02:00"),
    ],
)
async def test_the_night_of_a_clock_change_through_the_routes(kept: Gateway, day: str, tick: int, local: str) -> None:
    """SCHED-12: one run for 02:30 in either night, and what it is told."""
    what = WHAT | {"params": {"at": "{{ scheduled_time }}"}}
    await create(kept, what=what, when={"cron": "30 2 * * *"}, timezone="Europe/Berlin")
    body = {"from": f"{day}T00:00", "to": f"{day}T12:00"}
    done = (await kept.client.post("/schedules/s/backfill", json=body)).json()
    assert (done["matched"], done["created"]) == (1, 1)
    (entry,) = await ticks(kept)
    assert (entry["tick"], entry["source"]) == (tick, "backfill")
    run = (await kept.client.get(f"/runs/{entry['run_id']}")).json()
    assert run["params"] == {"at": local}


async def test_a_backfill_runs_each_tick_once(kept: Gateway) -> None:
    """SCHED-28"""
    await create(kept, paused=True)
    now = int(kept.backend.clock()) // 60 * 60
    body = {"from": now - 600, "to": now, "overlap": "allow"}

    async def backfill(**more: Any) -> Any:
        return (await kept.client.post("/schedules/s/backfill", json=body | more)).json()

    counts = {"matched": 10, "created": 10, "waiting": 0, "existing": 0, "skipped": 0, "refused": 0}
    assert await backfill() == counts
    assert await backfill() == counts | {"created": 0, "existing": 10}
    more = await backfill(**{"from": now - 900, "overlap": "queue_all"})
    assert more == counts | {"matched": 15, "created": 0, "existing": 10, "waiting": 5}
    for entry in await ticks(kept, outcome="run"):
        await end_run(kept.backend, entry["run_id"])
    await asyncio.sleep(6)
    started = [each for each in await ticks(kept) if each["outcome"] == "run"]
    assert len(started) == 11
    skipped = await backfill(**{"from": now - 1200, "overlap": "skip"})
    assert skipped["skipped"] == 5
    for wrong in ({"to": now + 3600}, {"from": 0}, {"from": "soon"}, {"overlap": "never"}):
        answer = await kept.client.post("/schedules/s/backfill", json=body | wrong)
        assert answer.status_code == 422, answer.text


async def test_a_large_backfill_is_complete(kept: Gateway) -> None:
    """SCHED-28: more than one batch."""
    await create(kept, paused=True)
    now = int(kept.backend.clock()) // 60 * 60
    body = {"from": now - 60 * 250, "to": now, "overlap": "allow"}
    done = (await kept.client.post("/schedules/s/backfill", json=body)).json()
    assert (done["matched"], done["created"]) == (250, 250)
    runs = {each["run_id"] for each in await ticks(kept, limit=200)}
    assert len(runs) == 200


async def test_programs_are_submitted_under_the_id_of_the_tick(kept: Gateway) -> None:
    """SCHED-2, SCHED-13, SCHED-14"""
    what = {"kind": "exec", "exec_name": "tool", "args": ["--day={{ scheduled_time.date }}"], "client_id": "c1"}
    await create(kept, what=what, paused=True)
    triggered = (await kept.client.post("/schedules/s/trigger")).json()
    run = (await kept.client.get(f"/runs/{triggered['run_id']}")).json()
    assert (run["kind"], run["client_id"], run["schedule"]["name"]) == ("exec", "c1", "s")
    assert "schedule:s" in run["tags"]
    refused = await kept.client.post("/schedules/s/trigger", json={"params": {"a": 1}})
    assert refused.status_code == 422


@pytest.mark.parametrize("of_the_kind", [{"kind": "flow", "flow_name": "f"}, {"kind": "exec", "exec_name": "tool"}])
async def test_the_run_of_a_tick_has_the_policy_and_the_timeout(kept: Gateway, of_the_kind: dict[str, Any]) -> None:
    """SCHED-2, RETRY-12, RETRY-16"""
    tries = {"retry": {"tries": 3, "backoff": "fixed", "delay": "2s"}, "timeout": "5m"}
    stored = (await create(kept, what=of_the_kind | tries, paused=True))["what"]
    assert (stored["retry"]["delay"], stored["timeout"]) == (2.0, 300.0)
    triggered = (await kept.client.post("/schedules/s/trigger")).json()
    run = (await kept.client.get(f"/runs/{triggered['run_id']}")).json()
    assert run["retry"] == stored["retry"]
    assert run.get("timeout") == (300.0 if run["kind"] == "flow" else None)  # that of a program is in its job alone
    etag = (await kept.client.get("/schedules/s")).headers["ETag"]
    shown = (await kept.client.get("/schedules/s")).json()
    again = await kept.client.put("/schedules/s", json=shown, headers={"If-Match": etag})
    assert (again.status_code, again.headers["ETag"]) == (200, etag)


async def test_a_tenant_has_so_many_schedules_at_most(link: Link, nats_url: str, tmp_path: Path) -> None:
    """SCHED-21"""
    async with fresh_gateway(link, nats_url, tmp_path, schedules_max=2) as gateway:
        await create(gateway, "a")
        await create(gateway, "b")
        body = {"name": "c", "what": WHAT, "when": {"every": 60}}
        above = await gateway.client.post("/schedules", json=body)
        assert (above.status_code, above.json()["err_id"]) == (409, "ERR-PYOCO-0061")
        taken = await gateway.client.post("/schedules", json=body | {"name": "a"})
        assert taken.json()["err_id"] == "ERR-PYOCO-0060"
