"""`GET /runs` page by page: both forms, cursors while runs change, and the refresh of a user interface."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import ask_cancel, beat, claim, conclude
from pyoco_server.core.outcome import Completed
from pyoco_server.core.programs.record import Program
from pyoco_server.core.run import Run
from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.ports.nats.link import Link
from support.doors_support import check_refusal
from support.gateways import ANNA, PROGRESS, Gateway, ended, fresh_gateway, ids, open_gateway, stored, submit
from support.listing import page, put, run_at, walk, write
from support.waiting import eventually

SHA = "ab12" * 16
PROGRAM = Program(job_id="j", group="default", exec_name="calcA", client_id="http", fingerprint="f", max_attempts=5)


class TestForms:
    async def test_an_array_unless_something_asks_for_an_object(self, gateway: Gateway) -> None:
        """FLOW-105, FLOW-107, FLOW-108"""
        await put(gateway, *(run_at(float(n + 1), n) for n in range(3)))
        _, cursor = await page(gateway, envelope="true", limit=1)
        arrays: list[dict[str, Any]] = [{}, {"limit": 1}, {"envelope": "false"}, {"envelope": "0"}, {"include": "full"}]
        for query in arrays:
            assert isinstance((await gateway.client.get("/runs", params=query)).json(), list), query
        for flag in ("true", "1", "TRUE", "Yes", "on"):
            assert len((await page(gateway, envelope=flag))[0]) == 3
        objects: list[dict[str, Any]] = [
            {"updated_after": "0"},
            {"updated_after": "1.5", "envelope": "no"},
            {"cursor": cursor},
        ]
        for query in objects:
            await page(gateway, **query)
        assert len((await page(gateway, cursor=cursor, envelope="false"))[0]) == 2

    async def test_both_forms_hold_the_same_items(self, gateway: Gateway) -> None:
        """FLOW-557"""
        await put(gateway, *(run_at(float(n + 1), n, tag="gpu" if n % 2 else "cpu") for n in range(9)))
        queries: list[dict[str, Any]] = [{}, {"tag": "gpu"}, {"limit": 4}, {"include": "all"}]
        for query in (*queries, {"tag": "gpu", "include": "full", "limit": 2}):
            array = (await gateway.client.get("/runs", params=query)).json()
            assert (await page(gateway, **query, envelope="true"))[0] == array

    async def test_an_empty_page_is_an_empty_page(self, gateway: Gateway) -> None:
        """FLOW-108"""
        answer = await gateway.client.get("/runs?envelope=true")
        assert answer.content == b'{"items":[],"next_cursor":null}'

    async def test_whole_snapshots_come_in_pages_too(self, gateway: Gateway) -> None:
        """FLOW-101, FLOW-111, FLOW-112: a deleted record is left out, and the walk continues behind it."""
        runs = [run_at(float(n + 1), n, params={"n": n}) for n in range(6)]
        await put(gateway, *runs)
        items, cursor = await page(gateway, envelope="true", include="full", limit=2)
        assert [item["params"] for item in items] == [{"n": 5}, {"n": 4}]
        found = await stored(gateway, runs[3].run_id)
        await gateway.backend.runs.withdraw(runs[3].run_id, found.revision)
        items, cursor = await page(gateway, include="full", limit=2, cursor=cursor)
        items += (await page(gateway, include="full", limit=9, cursor=cursor))[0] if cursor else []
        assert [item["params"]["n"] for item in items] == [2, 1, 0]


class TestWalks:
    async def test_a_walk_without_changes_is_the_list(self, gateway: Gateway) -> None:
        """FLOW-110, FLOW-111, with ties"""
        runs = [run_at(float(1 + n // 4), n) for n in range(20)]
        await put(gateway, *runs)
        whole = await ids(gateway, limit=200)
        assert whole == [run.run_id for run in sorted(runs, key=lambda run: (run.updated_at, run.run_id), reverse=True)]
        for limit in (1, 3, 19, 20, 21):
            assert [item["run_id"] for item in await walk(gateway, limit=limit)] == whole

    async def test_the_next_cursor_is_null_exactly_on_the_last_page(self, gateway: Gateway) -> None:
        """FLOW-111"""
        await put(gateway, *(run_at(float(n + 1), n, tag="ab"[n % 2]) for n in range(10)))
        table: list[tuple[dict[str, Any], bool]] = [
            ({"limit": 9}, False),
            ({"limit": 10}, True),
            ({"limit": 4, "tag": "a"}, False),
            ({"limit": 5, "tag": "a"}, True),
        ]
        for query, is_last in table:
            assert ((await page(gateway, envelope="true", **query))[1] is None) == is_last, query
        _, cursor = await page(gateway, envelope="true", limit=5)
        assert cursor is not None
        rest, cursor = await page(gateway, limit=5, cursor=cursor)
        assert (len(rest), cursor) == (5, None)

    @pytest.mark.parametrize("seed", range(3))
    async def test_runs_that_change_are_neither_lost_nor_shown_twice(self, gateway: Gateway, seed: int) -> None:
        """FLOW-111, FLOW-557: submit, claim, beat, end, cancel and remove between the pages"""
        dice = random.Random(seed)
        mine = {run.run_id: run for run in (run_at(float(100 + n // 3), n) for n in range(40))}
        await put(gateway, *mine.values())
        began = set(mine)
        seen: list[dict[str, Any]] = []
        items, cursor = await page(gateway, envelope="true", limit=4)
        while True:
            seen += items
            if cursor is None:
                break
            for _ in range(dice.randrange(5)):
                await self._change(gateway, mine, dice)
            items, cursor = await page(gateway, limit=dice.randrange(1, 6), cursor=cursor)
        shown = [item["run_id"] for item in seen]
        assert len(shown) == len(set(shown))
        assert set(shown) <= began, "what was submitted meanwhile is not part of the walk"
        assert set(shown) >= began & mine.keys(), "passed over"

    @staticmethod
    async def _change(gateway: Gateway, mine: dict[str, Run], dice: random.Random) -> None:
        now = 1000.0 + time.time()
        run = mine[dice.choice(sorted(mine))]
        chance = dice.random()
        if chance < 0.2:
            run_id = await submit(gateway)
            mine[run_id] = (await stored(gateway, run_id)).run
        elif chance < 0.3:
            found = await stored(gateway, run.run_id)
            assert await gateway.backend.runs.withdraw(run.run_id, found.revision)
            del mine[run.run_id]
            await eventually(lambda: gateway.backend.index.applied(found.revision + 1, 0))
        elif not run.is_terminal:
            if run.status is RunState.PENDING:
                changed = claim(run, ANNA, "1", now)
            elif run.status is RunState.CANCELLING:
                changed = conclude(run, Completed(), now)
            else:
                changed = dice.choice(
                    [beat(run, PROGRESS, now), conclude(run, Completed(), now), ask_cancel(run, None, now)]
                )
            mine[run.run_id] = changed
            await write(gateway, changed)

    async def test_a_run_shows_its_newest_state_at_its_old_place(self, gateway: Gateway) -> None:
        """FLOW-111"""
        runs = [run_at(float(n + 1), n) for n in range(6)]
        await put(gateway, *runs)
        first, cursor = await page(gateway, envelope="true", limit=2)
        await write(gateway, replace(runs[1], status=RunState.FAILED, updated_at=99.0, error="it broke"))
        second, cursor = await page(gateway, cursor=cursor)
        assert [item["run_id"] for item in first + second] == [run.run_id for run in reversed(runs)]
        assert (second[2]["status"], second[2]["updated_at"], second[2]["error"]) == ("FAILED", 99.0, "it broke")
        assert cursor is None
        assert (await ids(gateway))[0] == runs[1].run_id

    async def test_filters_hold_for_the_newest_state(self, gateway: Gateway) -> None:
        """FLOW-97, FLOW-111"""
        runs = [run_at(float(n + 1), n) for n in range(6)]
        await put(gateway, *runs)
        _, cursor = await page(gateway, envelope="true", limit=2, status="PENDING")
        await write(gateway, replace(runs[1], status=RunState.FAILED, updated_at=99.0))
        rest, _ = await page(gateway, cursor=cursor, status="PENDING")
        assert [item["run_id"] for item in rest] == [runs[n].run_id for n in (3, 2, 0)]

    async def test_the_walk_goes_on_after_a_restart_and_at_another_gateway(
        self, gateway: Gateway, tmp_path: Path
    ) -> None:
        """FLOW-111"""
        runs = [run_at(float(n + 1), n) for n in range(12)]
        await put(gateway, *runs)
        items, cursor = await page(gateway, envelope="true", limit=3)
        elsewhere = replace(gateway.config, data_dir=str(tmp_path / "elsewhere"))
        async with open_gateway(elsewhere) as other:
            await eventually(lambda: _is_ready(other))
            await write(gateway, replace(runs[2], updated_at=50.0))
            assert await other.backend.index.applied((await stored(gateway, runs[2].run_id)).revision, 60)
            more, cursor = await page(other, limit=3, cursor=cursor)
            items += more
        async with open_gateway(elsewhere) as other:  # from what it had stored
            await eventually(lambda: _is_ready(other))
            more, cursor = await page(other, cursor=cursor)
            items += more
        assert [item["run_id"] for item in items] == [run.run_id for run in reversed(runs)]
        assert cursor is None

    async def test_every_filter_takes_a_cursor(self, gateway: Gateway) -> None:
        """FLOW-97 to FLOW-104, FLOW-111, FLOW-557"""
        dice = random.Random(8)

        def some_kind() -> dict[str, Any]:
            """A gateway sweeps programs: those that have not ended would be moved under the walk."""
            if dice.randrange(2):
                return {"status": dice.choice(list(RunState))}
            return {"status": dice.choice(sorted(TERMINAL)), "kind": "exec", "program": PROGRAM}

        runs = [
            run_at(
                float(1 + dice.randrange(30)),
                n,
                flow_name=dice.choice(["hello", "bye"]),
                tag=dice.choice(["gpu", "cpu"]),
                tags=tuple(dice.sample(["gpu", "x"], dice.randrange(3))),
                workflow_yaml_sha256=dice.choice([None, SHA]),
                **some_kind(),
            )
            for n in range(90)
        ]
        await put(gateway, *runs)
        queries: list[dict[str, Any]] = [
            {"status": "FAILED"},
            {"flow": "bye"},
            {"tag": "gpu"},
            {"tag": "x"},
            {"kind": "exec"},
            {"kind": "flow"},
            {"workflow_yaml_sha256": SHA},
            {"workflow_yaml_sha256": SHA.upper(), "tag": "gpu", "flow": "hello", "kind": "flow"},
            {"updated_after": 10},
            {"updated_after": 10.5, "tag": "x", "status": "COMPLETED"},
        ]
        for query in queries:
            wanted = [run["run_id"] for run in (await page(gateway, **query, envelope="true", limit=200))[0]]
            assert wanted
            for limit in (1, 7):
                assert [run["run_id"] for run in await walk(gateway, **query, limit=limit)] == wanted, query


async def _is_ready(gateway: Gateway) -> bool:
    return (await gateway.client.get("/runs")).status_code == 200


class TestRefresh:
    async def test_strictly_later_updates_only(self, gateway: Gateway) -> None:
        """FLOW-102"""
        runs = [run_at(float(n), n) for n in range(1, 6)]
        await put(gateway, *runs)
        table = [("0", 5), ("3", 2), ("2.9999999", 3), ("3.0000001", 2), ("5", 0), ("1e300", 0), ("0.0", 5), ("-0", 5)]
        for since, count in table:
            items, cursor = await page(gateway, updated_after=since)
            assert (len(items), cursor) == (count, None), since

    async def test_a_user_interface_stays_true(self, gateway: Gateway) -> None:
        """FLOW-189, FLOW-190, FLOW-191: load, refresh by what is newer minus five seconds, reload at times"""
        dice = random.Random(2)
        mine = {run_id: (await stored(gateway, run_id)).run for run_id in [await submit(gateway) for _ in range(12)]}
        view = {item["run_id"]: item for item in await walk(gateway, limit=5)}
        assert view.keys() == mine.keys()
        for _ in range(8):
            for _ in range(6):
                run = mine[dice.choice(sorted(mine))]
                if dice.random() < 0.4:
                    run_id = await submit(gateway)
                    mine[run_id] = (await stored(gateway, run_id)).run
                elif not run.is_terminal:
                    now = time.time() - dice.random() * 4  # clocks differ
                    running = run.status is RunState.RUNNING
                    changed = conclude(run, Completed(), now) if running else claim(run, ANNA, "1", now)
                    mine[run.run_id] = changed
                    await write(gateway, changed)
            newest = max(item["updated_at"] for item in view.values())
            view |= {item["run_id"]: item for item in await walk(gateway, updated_after=newest - 5, limit=4)}
            assert {run_id: item["status"] for run_id, item in view.items()} == {
                run_id: run.status.value for run_id, run in mine.items()
            }
        gone = min(mine)
        assert await gateway.backend.runs.withdraw(gone, (await stored(gateway, gone)).revision)

        async def has_left() -> bool:
            return {item["run_id"] for item in await walk(gateway, limit=5)} == mine.keys() - {gone}

        await eventually(has_left)

    async def test_cursor_and_updated_after_combine(self, gateway: Gateway) -> None:
        """FLOW-111"""
        await put(gateway, *(run_at(float(n + 1), n) for n in range(10)))
        items, cursor = await page(gateway, updated_after=4, limit=4)
        assert [item["updated_at"] for item in items] == [10.0, 9.0, 8.0, 7.0]
        items, cursor = await page(gateway, updated_after=4, limit=4, cursor=cursor)
        assert ([item["updated_at"] for item in items], cursor) == ([6.0, 5.0], None)

    async def test_a_run_past_its_retention_leaves_the_lists(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-112, DESIGN 6"""
        async with fresh_gateway(link, nats_url, tmp_path, runs_retention_sec=1.0) as gateway:
            run_id, stays = await submit(gateway), await submit(gateway)
            await ended(gateway, run_id, Completed(progress=PROGRESS))

            async def has_left() -> bool:
                return await ids(gateway) == [stays]

            await eventually(has_left)
            assert (await gateway.backend.index.counts()).by_status == {"PENDING": 1}


class TestTenants:
    @pytest.fixture
    async def closed(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key", auth_pepper="p") as gateway:
            yield gateway

    @staticmethod
    async def key(gateway: Gateway, tenant: str) -> dict[str, str]:
        plain, record = make_key(tenant, "p", time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.backend.keys.add(record)
        return {"X-API-Key": plain}

    async def test_a_walk_shows_the_tenants_runs_and_fills_its_pages(self, closed: Gateway) -> None:
        """FLOW-113, FLOW-274, FLOW-275"""
        tenants = ["a", "b", None]
        await put(
            closed, *(run_at(float(1 + n // 2), n, tenant_id=tenants[n % 3], flow_name="fg"[n % 2]) for n in range(60))
        )
        for tenant, first in (("a", 0), ("b", 1)):
            headers = await self.key(closed, tenant)
            for query, step in (({}, 3), ({"flow": "f"}, 6), ({"status": "PENDING"}, 3), ({"tag": "default"}, 3)):
                seen: list[str] = []
                cursor: str | None = None
                while cursor is not None or not seen:
                    asked: dict[str, Any] = (
                        query | {"envelope": "1", "limit": 4} | ({"cursor": cursor} if cursor else {})
                    )
                    body = (await closed.client.get("/runs", params=asked, headers=headers)).json()
                    seen += [item["run_id"] for item in body["items"]]
                    cursor = body["next_cursor"]
                    assert len(body["items"]) == 4 or cursor is None
                begin = first if step == 3 or first % 2 == 0 else first + 3
                assert seen == [run_at(0, n).run_id for n in reversed(range(begin, 60, step))]

    async def test_what_one_tenant_knows_is_sent_to_another(self, closed: Gateway) -> None:
        """FLOW-273: the same address shows something else with another key"""
        mine, yours = await self.key(closed, "a"), await self.key(closed, "b")
        known = {"If-None-Match": (await closed.client.get("/runs", headers=mine)).headers["ETag"]}
        answers = [await closed.client.get("/runs", headers=key | known) for key in (mine, yours)]
        assert [answer.status_code for answer in answers] == [304, 200]

    async def test_a_list_stays_known_while_only_other_tenants_runs_change(self, closed: Gateway) -> None:
        """SAFE-11"""
        mine, yours = await self.key(closed, "a"), await self.key(closed, "b")
        for headers in (mine, yours):
            assert (await closed.client.post("/runs", json={"flow_name": "f"}, headers=headers)).status_code == 200
        for query in ("", "?flow=f&envelope=1"):
            tag = (await closed.client.get(f"/runs{query}", headers=mine)).headers["ETag"]
            theirs = await closed.client.post("/runs", json={"flow_name": "f"}, headers=yours)
            assert (await closed.client.get("/runs", headers=yours)).json()[0]["run_id"] == theirs.json()["run_id"]
            again = await closed.client.get(f"/runs{query}", headers=mine | {"If-None-Match": tag})
            assert (again.status_code, again.headers["ETag"]) == (304, tag)
            assert (await closed.client.post("/runs", json={"flow_name": "f"}, headers=mine)).status_code == 200
            again = await closed.client.get(f"/runs{query}", headers=mine | {"If-None-Match": tag})
            assert again.status_code == 200
            assert again.headers["ETag"] != tag

    async def test_a_cursor_of_another_tenant_is_refused(self, closed: Gateway) -> None:
        """FLOW-111, FLOW-274"""
        await put(closed, *(run_at(float(1 + n), n, tenant_id="ab"[n % 2]) for n in range(6)))
        mine, other = await self.key(closed, "a"), await self.key(closed, "b")
        token = (await closed.client.get("/runs?envelope=1&limit=1", headers=mine)).json()["next_cursor"]
        assert (await closed.client.get(f"/runs?cursor={token}", headers=mine)).status_code == 200
        problems = check_refusal(await closed.client.get(f"/runs?cursor={token}", headers=other), number=17)
        assert "other filters" in problems[0]["msg"]


class TestOwnWrites:
    async def test_whoever_was_given_an_id_finds_it_in_both_forms(self, gateway: Gateway) -> None:
        """DESIGN 9.6: on the gateway that took it, at once"""
        for _ in range(20):
            since = time.time() - 1
            run_id = await submit(gateway, tag="own")
            assert run_id in await ids(gateway)
            assert run_id in {item["run_id"] for item in (await page(gateway, envelope="true", tag="own"))[0]}
            assert run_id in {item["run_id"] for item in (await page(gateway, updated_after=since))[0]}
            assert (await gateway.client.post(f"/runs/{run_id}/cancel")).status_code == 200
            assert run_id in await ids(gateway, status="CANCELLING", limit=200)
