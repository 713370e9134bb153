"""`GET /runs`: which runs are shown, in which order, and how much of each."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.runs.port import Stored
from support.gateways import (
    PROGRESS,
    Gateway,
    ended,
    ids,
    open_gateway,
    shown,
    stored,
    submit,
)
from support.waiting import eventually


def run_at(updated_at: float, number: int = 0, **more: Any) -> Run:
    fields: dict[str, Any] = {"flow_name": "hello", "tag": "default", "submitted_at": 1.0, "heartbeat_at": 1.0}
    fields["run_id"] = f"00000000-0000-4000-8000-{number:012d}"
    return Run(updated_at=updated_at, **fields | more)


async def put(gateway: Gateway, *runs: Run) -> None:
    """Write these runs, and wait until lists know them."""
    for run in runs:
        assert isinstance(await gateway.backend.runs.create(run), Stored)

    async def all_there() -> bool:
        return {run.run_id for run in runs} <= set(await ids(gateway, limit=200))

    await eventually(all_there)


class TestList:
    async def test_an_empty_list_is_an_empty_array(self, gateway: Gateway) -> None:
        """FLOW-107"""
        assert (await gateway.client.get("/runs")).content == b"[]"

    async def test_whoever_was_given_an_id_finds_it_in_the_next_list(self, gateway: Gateway) -> None:
        for _ in range(30):
            run_id = await submit(gateway)
            assert run_id in await ids(gateway)

    async def test_whoever_was_shown_an_end_finds_it_in_the_next_list(self, gateway: Gateway) -> None:
        for how in ("", "/watch"):
            for _ in range(5):
                run_id = await submit(gateway)
                await ended(gateway, run_id, Completed(progress=PROGRESS))
                assert "COMPLETED" in (await gateway.client.get(f"/runs/{run_id}{how}")).text
                assert run_id in await ids(gateway, status="COMPLETED"), how

    async def test_a_summary_has_what_is_known(self, gateway: Gateway) -> None:
        """FLOW-109"""
        run_id = await submit(gateway, tag="gpu", tags=["x"])
        fresh = (await shown(gateway))[0]
        now = fresh["updated_at"]
        common = {"run_id": run_id, "kind": "flow", "flow_name": "hello", "tag": "gpu", "tags": ["x"]}
        times = {"submitted_at": now, "updated_at": now, "heartbeat_at": now}
        assert fresh == common | times | {"status": "PENDING"}
        run = await ended(gateway, run_id, Failed(message="it broke", progress=PROGRESS))

        async def has_ended() -> bool:
            return bool((await shown(gateway))[0]["status"] == "FAILED")

        await eventually(has_ended)
        assert (await shown(gateway))[0] == common | {
            "status": "FAILED",
            "submitted_at": now,
            "updated_at": run.updated_at,
            "heartbeat_at": run.heartbeat_at,
            "start_time": run.start_time,
            "end_time": run.end_time,
            "worker_id": "anna",
            "error": "it broke",
        }

    async def test_the_newest_update_comes_first_and_ties_go_by_id(self, gateway: Gateway) -> None:
        """FLOW-110"""
        runs = [run_at(when, number) for number, when in enumerate([5.0, 7.0, 5.0, 6.0, 5.0, 7.0])]
        await put(gateway, *runs)
        wanted = [runs[number].run_id for number in (5, 1, 3, 4, 2, 0)]
        assert await ids(gateway) == wanted
        assert await ids(gateway, include="full") == wanted
        assert await ids(gateway, limit=4) == wanted[:4]
        assert await ids(gateway, tag="default") == wanted

    async def test_filters_choose_and_combine(self, gateway: Gateway) -> None:
        """FLOW-97 to FLOW-99, FLOW-104, CLI-16"""
        digest = "ab12" * 16
        a = run_at(1.0, 1, flow_name="hello", tag="gpu", tags=("x",))
        b = run_at(2.0, 2, flow_name="hello", status=RunState.COMPLETED, tags=("gpu", "y"))
        c = run_at(3.0, 3, flow_name="Hello", status=RunState.FAILED, tags=("日本",), workflow_yaml_sha256=digest)
        d = run_at(4.0, 4, flow_name="x\0y", status=RunState.CANCELLED, tag="gpu", tags=("gpu",))
        await put(gateway, a, b, c, d)
        table: list[tuple[dict[str, Any], list[Run]]] = [
            ({"status": "PENDING"}, [a]),
            ({"status": "COMPLETED"}, [b]),
            ({"status": "RUNNING"}, []),
            ({"flow": "hello"}, [b, a]),
            ({"flow": "hell"}, []),
            ({"flow": "x\0y"}, [d]),
            ({"flow": "%"}, []),
            ({"tag": "gpu"}, [d, b, a]),
            ({"tag": "x"}, [a]),
            ({"tag": "日本"}, [c]),
            ({"tag": "GPU"}, []),
            ({"tag": "' OR 1=1 --"}, []),
            ({"workflow_yaml_sha256": digest}, [c]),
            ({"workflow_yaml_sha256": digest.upper()}, [c]),
            ({"workflow_yaml_sha256": "0" * 64}, []),
            ({"kind": "flow"}, [d, c, b, a]),
            ({"kind": "pack"}, []),
            ({"tag": "gpu", "flow": "hello"}, [b, a]),
            ({"tag": "gpu", "flow": "hello", "status": "COMPLETED"}, [b]),
            ({"tag": "gpu", "limit": 1}, [d]),
            ({"q": "HELLO"}, [c, b, a]),
            ({"q": "gpu hello"}, [b, a]),
            ({"q": "hello", "tag": "gpu", "status": "COMPLETED"}, [b]),
            ({"q": "日本"}, [c]),
            ({"q": "4000-8000"}, []),
            ({"q": "00000000-0000"}, [d, c, b, a]),
            ({"q": "' OR 1=1 --"}, []),
        ]
        for query, wanted in table:
            assert await ids(gateway, **query) == [run.run_id for run in wanted], query
            assert await ids(gateway, **query, include="all") == [run.run_id for run in wanted], query

    async def test_the_runs_of_each_status_are_counted_on_request(self, gateway: Gateway) -> None:
        await put(gateway, *(run_at(1.0, n, status=RunState.FAILED if n else RunState.COMPLETED) for n in range(3)))
        query: dict[str, Any] = {"include": "counts", "limit": 1}
        everything = (await gateway.client.get("/runs", params=query)).json()
        assert everything["counts"] == {"by_status": {"FAILED": 2, "COMPLETED": 1}, "counted_max": None}
        assert len(everything["items"]) == 1
        for more, bound in ({"tag": "default"}, 10_000), ({"q": "hello"}, 1_000):
            found = (await gateway.client.get("/runs", params=query | more | {"status": "FAILED"})).json()
            assert found["counts"] == {"by_status": {"FAILED": 2, "COMPLETED": 1}, "counted_max": bound}

    async def test_a_run_is_found_by_the_beginning_of_its_id(self, gateway: Gateway) -> None:
        """In either case of letters, with any other filter, in both forms, page by page"""
        starts = ("3f9a0000", "3f9a0001", "3f9b0000", "3f9a")
        runs = [
            run_at(float(n + 1), tag="ab"[n % 2], run_id=f"{start:f<8}-0000-4000-8000-{n:012x}")
            for n, start in enumerate(starts)
        ]
        await put(gateway, *runs)
        table: list[tuple[dict[str, Any], list[int]]] = [
            ({"run_id": "3f9a"}, [3, 1, 0]),
            ({"run_id": "3F9A"}, [3, 1, 0]),
            ({"run_id": "3f9a000"}, [1, 0]),
            ({"run_id": "3f9a0001-"}, [1]),
            ({"run_id": runs[2].run_id}, [2]),
            ({"run_id": runs[2].run_id.upper()}, [2]),
            ({"run_id": "3f9c"}, []),
            ({"run_id": "----"}, []),
            ({"run_id": "3f9a", "tag": "b"}, [3, 1]),
            ({"run_id": "3f9a", "tag": "b", "status": "FAILED"}, []),
            ({"run_id": "3f9a", "limit": 2}, [3, 1]),
            ({"run_id": "3f9a", "include": "full"}, [3, 1, 0]),
        ]
        for query, wanted in table:
            assert await ids(gateway, **query) == [runs[n].run_id for n in wanted], query
        first = (await gateway.client.get("/runs?run_id=3f9a&envelope=true&limit=2")).json()
        rest = await gateway.client.get("/runs", params={"run_id": "3F9A", "cursor": first["next_cursor"]})
        assert [run["run_id"] for run in rest.json()["items"]] == [runs[0].run_id]
        for other in ({}, {"run_id": "3f9b"}):
            query = {"cursor": first["next_cursor"]} | other
            assert (await gateway.client.get("/runs", params=query)).status_code == 422

    async def test_a_list_that_is_known_is_not_sent_again_until_some_run_changes(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        first = await gateway.client.get("/runs")
        known = {"If-None-Match": first.headers["ETag"]}
        again = await gateway.client.get("/runs", headers=known)
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
        assert (await gateway.client.get("/runs?include=full", headers=known)).status_code == 200
        await gateway.client.post(f"/runs/{run_id}/cancel")
        changed = await gateway.client.get("/runs", headers=known)
        assert [run["status"] for run in changed.json()] == ["CANCELLING"]

    async def test_the_limit_is_50_unless_told(self, gateway: Gateway) -> None:
        """FLOW-100"""
        await put(gateway, *(run_at(float(number), number) for number in range(60)))
        assert [len(await ids(gateway, **query)) for query in ({}, {"limit": 1}, {"limit": 200})] == [50, 1, 60]

    async def test_whole_snapshots_on_request(self, gateway: Gateway) -> None:
        """FLOW-101"""
        run_id = await submit(gateway, params={"a": 1})
        await ended(gateway, run_id, Completed(progress=PROGRESS))
        for include in ["full", "all", "records"]:
            listed = await shown(gateway, include=include)
            whole = (await gateway.client.get(f"/runs/{run_id}?include=full")).json()
            facts = {"worker_alive", "worker_heartbeat_at", "worker_tags", "worker_state"}
            assert listed == [{name: value for name, value in whole.items() if name not in facts}], include
            assert listed[0]["task_records"] == PROGRESS.task_records, include
            assert "params" not in (await shown(gateway, include="else"))[0], include

    async def test_a_run_that_has_gone_is_left_out(self, gateway: Gateway) -> None:
        """FLOW-112"""
        gone, stays = await submit(gateway), await submit(gateway)
        assert set(await ids(gateway)) == {gone, stays}
        await gateway.backend.runs.withdraw(gone, (await stored(gateway, gone)).revision)
        assert await ids(gateway, include="full") == [stays]

        async def has_left() -> bool:
            return await ids(gateway) == [stays]

        await eventually(has_left)

    async def test_a_gateway_that_has_just_started_shows_all_or_says_not_yet(self, gateway: Gateway) -> None:
        """FLOW-112: "I could not look" is never told as "there are none\""""
        await asyncio.gather(*(submit(gateway) for _ in range(150)))
        async with open_gateway(gateway.config) as other:
            first: list[httpx.Response] = []

            async def is_answered() -> bool:
                first[:] = [await other.client.get("/runs?limit=200")]
                return first[0].status_code != 503

            await eventually(is_answered)
            assert len(first[0].json()) == 150
