"""`/schedules` over HTTP: create, read, replace, pause, delete, and what is refused (SCHED-21 to SCHED-26)."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.schedules.ids import trigger_id
from support.gateways import Gateway

SCHEDULE: dict[str, Any] = {
    "name": "nightly",
    "what": {"kind": "flow", "flow_name": "report", "params": {"day": "{{ scheduled_time.date }}"}, "tags": ["x"]},
    "when": {"cron": "0 6 * * *"},
    "timezone": "Asia/Tokyo",
}


async def create(gateway: Gateway, **more: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/schedules", json=SCHEDULE | more)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_schedule_is_created_once_and_shown_with_its_defaults(gateway: Gateway) -> None:
    """SCHED-9, SCHED-21, SCHED-23"""
    answer = await gateway.client.post("/schedules", json=SCHEDULE)
    assert (answer.status_code, answer.headers["location"]) == (201, "/schedules/nightly")
    shown = answer.json()
    assert {name: shown[name] for name in SCHEDULE} == SCHEDULE
    assert shown["catch_up"] == {"policy": "last", "window": 86400.0}
    assert (shown["overlap"], shown["paused"], shown["waiting_ticks"], shown["overdue"]) == ("skip", False, 0, False)
    assert len(shown["next_ticks"]) == 5
    assert "last_tick" not in shown
    read = await gateway.client.get("/schedules/nightly")
    assert (read.json(), read.headers["etag"]) == (shown, answer.headers["etag"])
    same = await gateway.client.get("/schedules/nightly", headers={"If-None-Match": read.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    taken = await gateway.client.post("/schedules", json=SCHEDULE)
    assert (taken.status_code, taken.json()["err_id"]) == (409, "ERR-PYOCO-0060")
    missing = await gateway.client.get("/schedules/other")
    assert (missing.status_code, missing.json()["err_id"]) == (404, "ERR-PYOCO-0059")


async def test_what_is_shown_can_be_sent_back(gateway: Gateway) -> None:
    """SCHED-24: equal content changes nothing."""
    shown = await create(gateway)
    etag = (await gateway.client.get("/schedules/nightly")).headers["etag"]
    answer = await gateway.client.put("/schedules/nightly", json=shown, headers={"If-Match": etag})
    assert (answer.status_code, answer.json(), answer.headers["etag"]) == (200, shown, etag)


async def test_an_idempotency_key_creates_one_schedule(gateway: Gateway) -> None:
    first = await gateway.client.post("/schedules", json=SCHEDULE, headers={"Idempotency-Key": "k1"})
    again = await gateway.client.post("/schedules", json=SCHEDULE, headers={"Idempotency-Key": "k1"})
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    other = await gateway.client.post("/schedules", json=SCHEDULE | {"name": "b"}, headers={"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["err_id"]) == (409, "ERR-PYOCO-0026")


async def test_conditions_of_put(gateway: Gateway) -> None:
    """SCHED-24, SCHED-31"""
    put = gateway.client.put
    absent = await put("/schedules/nightly", json=SCHEDULE, headers={"If-Match": "*"})
    assert (absent.status_code, absent.json()["err_id"]) == (412, "ERR-PYOCO-0062")
    made = await put("/schedules/nightly", json={name: SCHEDULE[name] for name in ("what", "when")})
    assert made.status_code == 201
    unnamed = await put("/schedules/nightly", json=SCHEDULE)
    assert (unnamed.status_code, unnamed.json()["err_id"]) == (428, "ERR-PYOCO-0062")
    exists = await put("/schedules/nightly", json=SCHEDULE, headers={"If-None-Match": "*"})
    assert exists.status_code == 412
    changed = await put("/schedules/nightly", json=SCHEDULE, headers={"If-Match": made.headers["etag"]})
    assert (changed.status_code, changed.json()["id"]) == (200, made.json()["id"])
    assert changed.headers["etag"] != made.headers["etag"]
    stale = await put("/schedules/nightly", json=SCHEDULE, headers={"If-Match": made.headers["etag"]})
    assert stale.status_code == 412
    either = {"If-Match": f"{made.headers['etag']}, {changed.headers['etag']}"}
    assert (await put("/schedules/nightly", json=SCHEDULE, headers=either)).status_code == 200
    misnamed = await put("/schedules/other", json=SCHEDULE)
    assert (misnamed.status_code, misnamed.json()["errors"][0]["loc"]) == (422, ["body", "name"])
    new = await put("/schedules/new", json=SCHEDULE | {"name": "new"}, headers={"If-None-Match": "*"})
    assert new.status_code == 201


async def test_pause_resume_and_delete(gateway: Gateway) -> None:
    """SCHED-25, SCHED-26"""
    await create(gateway)
    paused = await gateway.client.post("/schedules/nightly/pause", json={"reason": "moving"})
    assert (paused.json()["paused"], paused.json()["pause_reason"], paused.json()["next_ticks"]) == (True, "moving", [])
    again = await gateway.client.post("/schedules/nightly/pause")
    assert (again.json(), again.headers["etag"]) == (paused.json(), paused.headers["etag"])
    resumed = await gateway.client.post("/schedules/nightly/resume")
    assert (resumed.json()["paused"], len(resumed.json()["next_ticks"])) == (False, 5)
    stale = await gateway.client.delete("/schedules/nightly", headers={"If-Match": paused.headers["etag"]})
    assert stale.status_code == 412
    gone = await gateway.client.delete("/schedules/nightly", headers={"If-Match": resumed.headers["etag"]})
    assert (gone.status_code, gone.json()) == (200, {"name": "nightly", "deleted": True})
    assert (await gateway.client.delete("/schedules/nightly")).status_code == 404
    assert (await create(gateway))["id"] != resumed.json()["id"]


async def test_lists_have_filters_and_pages(gateway: Gateway) -> None:
    """SCHED-22"""
    for number in range(5):
        more: dict[str, Any] = {"labels": ["odd"]} if number % 2 else {"paused": True}
        await create(gateway, name=f"s{number}", **more)

    async def names(**query: Any) -> list[str]:
        answer = await gateway.client.get("/schedules", params=query)
        assert answer.status_code == 200, answer.text
        return [each["name"] for each in answer.json()["items"]]

    assert await names() == ["s0", "s1", "s2", "s3", "s4"]
    assert await names(label="odd") == await names(paused="false") == ["s1", "s3"]
    assert await names(kind="exec") == await names(flow="other") == []
    assert len(await names(kind="flow", flow="report")) == 5
    first = (await gateway.client.get("/schedules", params={"limit": 3})).json()
    rest = (await gateway.client.get("/schedules", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert ([each["name"] for each in rest["items"]], rest["next_cursor"]) == (["s3", "s4"], None)
    for cursor, more in ((first["next_cursor"], {"label": "odd"}), ("x", {}), (first["next_cursor"] + "A", {})):
        refused = await gateway.client.get("/schedules", params={"cursor": cursor, **more})
        assert refused.status_code == 422


async def test_a_bad_schedule_is_refused_in_both_languages(gateway: Gateway) -> None:
    """SCHED-31"""
    answer = await gateway.client.post("/schedules", json=SCHEDULE | {"when": {"cron": "0 6 * * FRY"}, "jitter": "2h"})
    body = answer.json()
    assert (answer.status_code, body["err_id"]) == (422, "ERR-PYOCO-0063")
    assert body["message_ja"] == "スケジュールが不正です"
    jitter, cron = sorted(body["errors"], key=lambda each: each["loc"])[:2]
    assert (cron["loc"], cron["field"], cron["position"]) == (["body", "when", "cron"], "day-of-week", 8)
    assert cron["msg"].isascii()
    assert not cron["message_ja"].isascii()
    assert jitter["loc"] == ["body", "jitter"]
    for body_text in (b"", b"{", b"[]"):
        assert (await gateway.client.post("/schedules", content=body_text)).status_code == 422
    assert (await gateway.client.get("/schedules")).json()["items"] == []


async def test_previews(gateway: Gateway) -> None:
    """SCHED-29, SCHED-12"""
    asked = {"what": SCHEDULE["what"], "when": {"cron": "30 2 * * *"}, "timezone": "Europe/Berlin", "jitter": 60}
    body = {"schedule": asked, "n": 2, "from": "2027-03-28T01:30:00+00:00"}
    answer = await gateway.client.post("/schedules/preview", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["items"] == [
        {"tick": 1806197400, "local": "2027-03-28T03:30:00+02:00", "dst": "gap", "latest_at": 1806197460.0},
        {"tick": 1806280200, "local": "2027-03-29T02:30:00+02:00", "dst": None, "latest_at": 1806280260.0},
    ]
    await create(gateway, paused=True)
    later = await gateway.client.get("/schedules/nightly/preview", params={"n": 1, "from": 1806267600})
    assert [each["local"] for each in later.json()["items"]] == ["2027-03-29T06:00:00+09:00"]
    bad = await gateway.client.post("/schedules/preview", json={"schedule": asked | {"timezone": "Mars/Base"}})
    assert (bad.json()["err_id"], bad.json()["errors"][0]["loc"]) == (
        "ERR-PYOCO-0063",
        ["body", "schedule", "timezone"],
    )
    for query in ({"n": 0}, {"n": 1001}):
        assert (await gateway.client.get("/schedules/nightly/preview", params=query)).status_code == 422


async def test_a_trigger_runs_now_and_once_under_a_key(gateway: Gateway) -> None:
    """SCHED-27"""
    made = await create(gateway, paused=True)
    post = gateway.client.post
    headers = {"Idempotency-Key": "deploy-42"}
    first = await post("/schedules/nightly/trigger", json={"params": {"day": "x"}}, headers=headers)
    assert first.status_code == 200, first.text
    assert first.json()["run_id"] == trigger_id(made["id"], "deploy-42")
    assert first.json()["status"] == "PENDING"
    again = await post("/schedules/nightly/trigger", json={"params": {"day": "x"}}, headers=headers)
    assert again.json() == first.json()
    other = await post("/schedules/nightly/trigger", json={"params": {"day": "y"}}, headers=headers)
    assert (other.status_code, other.json()["err_id"]) == (409, "ERR-PYOCO-0026")
    free = await post("/schedules/nightly/trigger")
    assert free.json()["run_id"] != first.json()["run_id"]
    run = (await gateway.client.get(f"/runs/{first.json()['run_id']}")).json()
    assert run["params"] == {"day": "x"}
    assert run["schedule"] == first.json()["schedule"]
    assert run["tags"] == ["x", "schedule:nightly"]
    lines = (await gateway.client.get("/runs", params={"tag": "schedule:nightly"})).json()
    assert {each["schedule"]["source"] for each in lines} == {"trigger"}
    history = (await gateway.client.get("/schedules/nightly/ticks")).json()["items"]
    assert [(each["source"], each["outcome"], each["run_status"]) for each in history] == [
        ("trigger", "run", "PENDING"),
        ("trigger", "run", "PENDING"),
    ]


@pytest.mark.parametrize("path", ["pause", "resume", "trigger", "preview", "ticks"])
async def test_an_unknown_schedule_is_not_found(gateway: Gateway, path: str) -> None:
    method = "GET" if path in {"preview", "ticks"} else "POST"
    for name in ("other", "a.b", "preview", "x" * 65):
        answer = await gateway.client.request(method, f"/schedules/{name}/{path}")
        assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0059")
