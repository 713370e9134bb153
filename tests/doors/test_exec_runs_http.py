"""Jobs among runs and dead letters: lists, waits, cancels, watches, letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pyoco_server.core.programs.names import requeued_job_id, run_id_of
from pyoco_server.ports.nats.link import open_link
from support.gateways import Gateway, submit
from support.grid.http_jobs import (
    DONE,
    FAILED,
    Closed,
    a_job_id,
    begin_job,
    buried,
    closed_grid_gateway,
    end_job,
    fresh_grid_gateway,
    group_of,
    letters,
    submit_job,
)
from support.servers import unique
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    link = await open_link(module_nats_url, "tests")
    async with fresh_grid_gateway(link, module_nats_url, tmp_path_factory.mktemp("data")) as gateway:
        yield gateway
    await link.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Closed]:
    async with closed_grid_gateway(module_nats_url, tmp_path_factory.mktemp("closed")) as closed:
        yield closed


def code_of(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("code")


class TestLists:
    async def test_jobs_are_listed_with_what_they_are(self, gateway: Gateway) -> None:
        """GRID-150, GRID-151"""
        accepted = await submit_job(gateway, "listed", client_id="anna")
        await submit(gateway)
        await end_job(gateway, await begin_job(gateway, "listed", "anna"), FAILED)
        line: dict[str, Any] = {}

        async def is_ended() -> bool:
            """It was ended behind the gateway's back: its lists follow."""
            (found,) = (await gateway.client.get("/runs", params={"exec": "listed"})).json()
            line.update(found)
            return bool(found["status"] == "FAILED")

        await eventually(is_ended)
        wanted = {
            "run_id": accepted["run_id"],
            "kind": "exec",
            "status": "FAILED",
            "flow_name": "exec:listed",
            "tag": "exec",
            "tags": ["exec", "listed"],
            "job_id": accepted["job_id"],
            "client_id": "anna",
            "group": group_of(gateway),
            "exec_name": "listed",
            "attempt": 1,
            "exit_code": 3,
            "error_code": "EXIT_NONZERO",
            "worker_id": "worker-1",
        }
        assert {name: line.get(name) for name in wanted} == wanted

    async def test_every_filter_finds_the_job_and_no_flow(self, gateway: Gateway) -> None:
        """GRID-150"""
        accepted = await submit_job(gateway, "filtered", client_id="bert")
        await submit(gateway)
        found: list[dict[str, str]] = [
            {"kind": "exec", "exec": "filtered"},
            {"flow": "exec:filtered"},
            {"flow": "exec:filtered", "exec": "filtered"},
            {"tag": "filtered"},
            {"job_id": accepted["job_id"]},
            {"job_id": accepted["job_id"].upper()},
            {"client_id": "bert"},
            {"group": group_of(gateway), "exec": "filtered", "status": "PENDING"},
        ]
        for query in found:
            listed = (await gateway.client.get("/runs", params=query)).json()
            assert [line["run_id"] for line in listed] == [accepted["run_id"]], query
        for query in ({"client_id": "nobody"}, {"group": "other"}, {"job_id": a_job_id()}, {"exec": "no"}):
            assert (await gateway.client.get("/runs", params=query)).json() == [], query
        kinds = {line["kind"] for line in (await gateway.client.get("/runs", params={"tag": "exec"})).json()}
        assert kinds == {"exec"}

    @pytest.mark.parametrize("query", ["job_id=x", "client_id=a.b", "group=a.b", "exec=-x", "exec=a&flow=exec:b"])
    async def test_a_bad_filter_is_refused(self, gateway: Gateway, query: str) -> None:
        answer = await gateway.client.get(f"/runs?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["query", query.partition("=")[0]])

    async def test_pages_of_jobs_lose_none(self, gateway: Gateway) -> None:
        ids = {(await submit_job(gateway, "paged", client_id="carl"))["run_id"] for _ in range(7)}
        seen: list[str] = []
        query: dict[str, Any] = {"client_id": "carl", "limit": 3, "envelope": True}
        while True:
            page = (await gateway.client.get("/runs", params=query)).json()
            seen += [line["run_id"] for line in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert sorted(seen) == sorted(ids)
        query["client_id"] = "other"
        assert (await gateway.client.get("/runs", params=query)).status_code == 422

    async def test_the_tasks_of_a_job_are_the_program(self, gateway: Gateway) -> None:
        """GRID-150"""
        run_id = (await submit_job(gateway, "tasks"))["run_id"]
        path = f"/runs/{run_id}/tasks"
        assert (await gateway.client.get(path)).json()["tasks"] == {"exec": "PENDING"}
        await end_job(gateway, await begin_job(gateway, "tasks"), DONE)
        assert (await gateway.client.get(path)).json()["tasks"] == {"exec": "SUCCEEDED"}

    async def test_a_job_that_waits_says_what_for(self, gateway: Gateway) -> None:
        run_id = (await submit_job(gateway, "waiting", client_id="dora"))["run_id"]
        await gateway.client.get("/runs")  # until the index has it
        waiting = (await gateway.client.get(f"/runs/{run_id}")).json()["waiting"]
        assert (waiting["reason"], waiting["position"]) == ("no_worker", 1)
        assert "pyoco-grid nworker job.assign.waiting" in waiting["message"]
        assert waiting["message_ja"]
        later = (await submit_job(gateway, "waiting", client_id="dora"))["run_id"]
        await gateway.client.get("/runs")
        assert (await gateway.client.get(f"/runs/{later}")).json()["waiting"]["position"] == 2

    async def test_jobs_wait_in_no_queue_of_flows(self, gateway: Gateway) -> None:
        await submit_job(gateway)
        await gateway.client.get("/runs")
        assert "exec" not in {queue["tag"] for queue in (await gateway.client.get("/queues")).json()["items"]}


class TestLetters:
    async def test_a_failed_job_has_a_letter_that_is_found_by_what_it_is(self, gateway: Gateway) -> None:
        """GRID-84, GRID-85"""
        accepted, letter = await buried(gateway, "fails", client_id="elsa", args=["a secret"])
        wanted = {
            "kind": "exec",
            "job_id": accepted["job_id"],
            "run_id": accepted["run_id"],
            "group": group_of(gateway),
            "exec_name": "fails",
            "flow_name": "exec:fails",
            "client_id": "elsa",
            "reason": "execution_error",
            "tag": "exec",
            "exit_code": 3,
            "error_code": "EXIT_NONZERO",
        }
        assert {name: letter.get(name) for name in wanted} == wanted
        assert "job" not in letter
        assert "secret" not in str((await gateway.client.get(f"/dlq/{letter['id']}")).json())
        for query in ({"exec": "fails"}, {"client_id": "elsa"}, {"group": group_of(gateway), "exec": "fails"}):
            assert [each["id"] for each in (await letters(gateway, **query))["items"]] == [letter["id"]], query
        assert (await letters(gateway, group="other"))["items"] == []
        assert (await gateway.client.get("/dlq?exec=a&flow=exec:b")).status_code == 422

    async def test_pages_go_on_by_number_too(self, gateway: Gateway) -> None:
        ids = [(await buried(gateway, "pages"))[1]["id"] for _ in range(3)]
        page = await letters(gateway, exec="pages", limit=2)
        assert [each["id"] for each in page["items"]] == ids[:0:-1]
        assert page["next"] == int(ids[1])
        rest = await letters(gateway, exec="pages", before=page["next"])
        assert ([each["id"] for each in rest["items"]], rest["next"]) == ([ids[0]], None)
        for query in ("before=x", f"before=1&cursor={page['next_cursor']}"):
            assert (await gateway.client.get(f"/dlq?{query}")).status_code == 422

    async def test_requeued_twice_it_is_one_new_job_and_the_letter_stays(self, gateway: Gateway) -> None:
        """GRID-88"""
        accepted, letter = await buried(gateway, "again", args=["x"], files={"f": b"1"})
        answers = [await gateway.client.post(f"/dlq/{letter['id']}/requeue") for _ in range(2)]
        job_id = requeued_job_id(accepted["run_id"], int(letter["id"]))
        wanted = {"run_id": run_id_of(job_id, group_of(gateway)), "job_id": job_id}
        assert [answer.json() for answer in answers] == [wanted, wanted]
        shown = (await gateway.client.get(f"/runs/{wanted['run_id']}")).json()
        assert (shown["retry_of"], shown["params"]["args"]) == (accepted["run_id"], ["x"])
        assert (await gateway.client.get(f"/runs/{accepted['run_id']}")).json()["status"] == "FAILED"
        assert (await gateway.client.get(f"/dlq/{letter['id']}")).status_code == 200

    async def test_inputs_that_have_expired_cannot_be_used_again(self, gateway: Gateway) -> None:
        """GRID-88"""
        _, letter = await buried(gateway, "expired", files={"f": b"1" * 20_000})
        programs = gateway.backend.programs
        assert programs is not None
        for each in (await programs.artifacts.catalogue()).objects:
            if each.name.startswith(letter["run_id"]):
                await programs.artifacts.delete(each.name)
        assert (await gateway.client.post(f"/dlq/{letter['id']}/requeue")).status_code == 410

    async def test_a_letter_that_is_not_there_is_not_found(self, gateway: Gateway) -> None:
        for letter_id in ("999999", "0", "x"):
            assert (await gateway.client.post(f"/dlq/{letter_id}/requeue")).status_code == 404

    async def test_who_may_not_submit_a_job_may_not_repeat_it(self, closed: Closed) -> None:
        """GRID-168"""
        gateway, keys, records = closed
        client = unique("c")
        path = f"/exec/acl/client/{client}"
        record = {"api_key_ids": [records["t"].key_id], "execs": ["*"]}
        await gateway.client.put(path, headers=keys["operator"], json=record)
        mine = {"headers": keys["t"], "client_id": client}
        accepted = await submit_job(gateway, "forbidden", **mine)
        await end_job(gateway, await begin_job(gateway, "forbidden", client, records["t"].tenant_id), FAILED)
        letter_id = ""

        async def is_listed() -> bool:
            nonlocal letter_id
            asked = {"run_id": accepted["run_id"]}
            items = (await gateway.client.get("/dlq", params=asked, headers=keys["t"])).json()["items"]
            letter_id = items[0]["id"] if items else ""
            return bool(items)

        await eventually(is_listed)
        await gateway.client.delete(path, headers=keys["operator"])
        repeats = [f"/dlq/{letter_id}/requeue", f"/dlq/{letter_id}/redrive", f"/runs/{accepted['run_id']}/rerun"]
        for repeat in repeats:
            assert code_of(await gateway.client.post(repeat, headers=keys["t"])) == (403, "FORBIDDEN")
            assert (await gateway.client.post(repeat, headers=keys["u"])).status_code == 404
        await gateway.client.put(path, headers=keys["operator"], json=record)
        assert (await gateway.client.post(repeats[0], headers=keys["t"])).status_code == 200

    async def test_a_letter_of_a_program_may_be_deleted(self, gateway: Gateway) -> None:
        _, letter = await buried(gateway, "deleted")
        assert (await gateway.client.delete(f"/dlq/{letter['id']}")).status_code == 200
        assert (await gateway.client.post(f"/dlq/{letter['id']}/requeue")).status_code == 404


class TestCancel:
    async def test_a_job_that_waits_is_cancelled_at_once(self, gateway: Gateway) -> None:
        """GRID-159, GRID-161"""
        run_id = (await submit_job(gateway, "stopped"))["run_id"]
        answers = [await gateway.client.post(f"/runs/{run_id}/cancel", json={"reason": "no"}) for _ in range(2)]
        assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "CANCELLED")] * 2

    async def test_a_job_that_runs_is_asked_to_stop(self, gateway: Gateway) -> None:
        """GRID-160"""
        run_id = (await submit_job(gateway, "running"))["run_id"]
        await begin_job(gateway, "running")
        answer = (await gateway.client.post(f"/runs/{run_id}/cancel")).json()
        assert answer["status"] == "CANCELLING"
        assert answer["cancel_requested_at"] > 0

    async def test_a_watcher_hears_every_change_up_to_the_end(self, gateway: Gateway) -> None:
        """GRID-152"""
        run_id = (await submit_job(gateway, "watched"))["run_id"]
        await end_job(gateway, await begin_job(gateway, "watched"), DONE)
        answer = await gateway.client.get(f"/runs/{run_id}/watch")
        assert answer.status_code == 200
        assert '"COMPLETED"' in answer.text
        assert "token" not in answer.text
