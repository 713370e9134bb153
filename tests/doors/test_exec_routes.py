"""`/exec/…`: caps, ACL, events, state, and who sees and sets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pyoco_server.actions.programs.show_state import GridState, GroupState
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.shown_grid import document_of
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.program_events.port import Event, EventName
from support.gateways import Gateway
from support.grid.http_jobs import (
    DONE,
    Closed,
    a_job_id,
    a_key_of,
    begin_job,
    buried,
    closed_grid_gateway,
    end_job,
    fresh_grid_gateway,
    group_of,
    post_job,
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


class TestCaps:
    async def test_a_client_that_never_said_a_cap_has_the_default(self, gateway: Gateway) -> None:
        """GRID-71"""
        client = unique("c")
        answer = await gateway.client.get(f"/exec/clients/{client}")
        assert answer.json() == {
            "client_id": client,
            "group": group_of(gateway),
            "cap": 4,
            "source": "default",
            "updated_at": None,
            "inflight": 0,
        }

    async def test_the_last_word_wins_and_each_group_has_its_own(self, gateway: Gateway) -> None:
        """GRID-71, GRID-75"""
        client, path = unique("c"), "/exec/clients/"
        for cap in (7, 1, 10_000):
            answer = await gateway.client.put(path + client, json={"cap": cap})
            assert (answer.json()["cap"], answer.json()["source"]) == (cap, "http")
        other = await gateway.client.put(path + client, params={"group": "other"}, json={"cap": 2})
        assert other.json()["group"] == "other"
        assert (await gateway.client.get(path + client)).json()["cap"] == 10_000
        await submit_job(gateway, "capped", client_id=client)
        attempt = await begin_job(gateway, "capped", client)
        assert (await gateway.client.get(path + client)).json()["inflight"] == 1
        await end_job(gateway, attempt)
        assert (await gateway.client.get(path + client)).json()["inflight"] == 0

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b'{"cap": 0}', "BAD_SCHEMA"),
            (b'{"cap": 10001}', "BAD_SCHEMA"),
            (b'{"cap": 4.0}', "BAD_SCHEMA"),
            (b'{"cap": "4"}', "BAD_SCHEMA"),
            (b'{"cap": true}', "BAD_SCHEMA"),
            (b"{}", "BAD_SCHEMA"),
            (b"", "BAD_JSON"),
            (b"[]", "BAD_JSON"),
            (b'{"cap": 1, "cap": 2}', "BAD_JSON"),
            (b'{"cap": NaN}', "BAD_JSON"),
        ],
    )
    async def test_what_is_no_cap_is_refused(self, gateway: Gateway, body: bytes, code: str) -> None:
        """GRID-196, GRID-197"""
        assert code_of(await gateway.client.put("/exec/clients/c", content=body)) == (422, code)

    @pytest.mark.parametrize("path", ["a.b", "x" * 65, "%20", "c?group=a.b"])
    async def test_a_name_that_is_none_is_refused(self, gateway: Gateway, path: str) -> None:
        assert code_of(await gateway.client.get(f"/exec/clients/{path}")) == (422, "BAD_SCHEMA")
        assert code_of(await gateway.client.put(f"/exec/clients/{path}", json={"cap": 1})) == (422, "BAD_SCHEMA")

    async def test_who_may_be_the_client_may_set_its_cap_up_to_what_it_may_have(self, closed: Closed) -> None:
        """GRID-168"""
        gateway, keys, records = closed
        client = unique("c")
        path = f"/exec/clients/{client}"
        assert (await gateway.client.get(path)).status_code == 401
        assert code_of(await gateway.client.get(path, headers=keys["t"])) == (403, "FORBIDDEN")
        record = {"api_key_ids": [records["t"].key_id], "execs": ["*"], "max_cap": 5}
        await gateway.client.put(f"/exec/acl/client/{client}", headers=keys["operator"], json=record)
        answer = await gateway.client.put(path, headers=keys["t"], json={"cap": 50})
        assert (answer.status_code, answer.json()["cap"]) == (200, 5)
        assert code_of(await gateway.client.put(path, headers=keys["u"], json={"cap": 1})) == (403, "FORBIDDEN")
        assert (await gateway.client.put(path, headers=keys["operator"], json={"cap": 3})).json()["cap"] == 3


class TestTenants:
    async def test_caps_of_one_client_id_are_apart_without_exec_auth_too(self, gateway: Gateway) -> None:
        """SAFE-4, SAFE-5: a valid key counts in mode none"""
        client, path = unique("c"), "/exec/clients/"
        keys = {who: {"X-API-Key": (await a_key_of(gateway, who))[0]} for who in ("team-a", "team-b")}
        for who, cap in (("team-a", 11), ("team-b", 12)):
            answer = await gateway.client.put(path + client, headers=keys[who], json={"cap": cap})
            assert (answer.status_code, answer.json()["cap"], answer.json()["client_id"]) == (200, cap, client)
        await gateway.client.put(path + client, json={"cap": 13})
        seen = [(await gateway.client.get(path + client, headers=each)).json()["cap"] for each in (*keys.values(), {})]
        assert seen == [11, 12, 13]
        for each in (*keys.values(), {}):  # none of them is an operator's key
            for method in ("GET", "PUT"):
                address, body = f"{path}{client}?tenant=team-z", b'{"cap": 1}'
                answer = await gateway.client.request(method, address, headers=each, content=body)
                assert code_of(answer) == (403, "FORBIDDEN")

    async def test_an_operators_key_names_another_tenant(self, closed: Closed) -> None:
        """SAFE-4"""
        gateway, keys, records = closed
        client = unique("c")
        record = {"api_key_ids": [records["t"].key_id], "execs": ["*"]}
        await gateway.client.put(f"/exec/acl/client/{client}", headers=keys["operator"], json=record)
        path = f"/exec/clients/{client}"
        answer = await gateway.client.put(f"{path}?tenant=t", headers=keys["operator"], json={"cap": 9})
        assert (answer.status_code, answer.json()["cap"]) == (200, 9)
        assert (await gateway.client.get(path, headers=keys["t"])).json()["cap"] == 9
        assert (await gateway.client.get(path, headers=keys["operator"])).json()["cap"] == 4
        answer = await gateway.client.get(f"{path}?tenant=a.b", headers=keys["operator"])
        assert code_of(answer) == (422, "BAD_SCHEMA")


class TestAcl:
    @pytest.mark.parametrize(
        ("kind", "more"), [("client", {"max_cap": 3, "groups": ["g*"]}), ("client", {}), ("worker", {})]
    )
    async def test_a_record_is_written_read_and_deleted(
        self, gateway: Gateway, kind: str, more: dict[str, Any]
    ) -> None:
        """GRID-168"""
        name = unique("n")
        path, record = f"/exec/acl/{kind}/{name}", {"api_key_ids": ["0" * 16], "execs": ["calc*", "[ab]?"]} | more
        assert code_of(await gateway.client.get(path)) == (404, "NOT_FOUND")
        written = await gateway.client.put(path, json=record)
        shown: dict[str, Any] = {"kind": kind, "id": name} | record
        if kind == "client":
            shown = {"max_cap": None, "groups": ["*"]} | shown
        assert (written.status_code, written.json()) == (200, shown)
        assert (await gateway.client.get(path)).json() == shown
        assert (await gateway.client.delete(path)).json() == {"kind": kind, "id": name, "deleted": True}
        assert code_of(await gateway.client.delete(path)) == (404, "NOT_FOUND")
        assert code_of(await gateway.client.get(path)) == (404, "NOT_FOUND")

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"api_key_ids": []},
            {"api_key_ids": "k", "execs": []},
            {"api_key_ids": [1], "execs": []},
            {"api_key_ids": ["a b"], "execs": []},
            {"api_key_ids": [], "execs": ["a/b"]},
            {"api_key_ids": [], "execs": ["x" * 65]},
            {"api_key_ids": [], "execs": ["*"] * 257},
            {"api_key_ids": [], "execs": [], "max_cap": 0},
            {"api_key_ids": [], "execs": [], "max_cap": 1.0},
            {"api_key_ids": [], "execs": [], "groups": ["a.b"]},
            {"api_key_ids": [], "execs": [], "maxcap": 1},
        ],
        ids=str,
    )
    async def test_a_record_that_is_none_is_refused(self, gateway: Gateway, body: dict[str, Any]) -> None:
        """A misspelt limit would be none."""
        assert code_of(await gateway.client.put("/exec/acl/client/c", json=body)) == (422, "BAD_SCHEMA")

    async def test_a_worker_has_no_cap_and_no_groups(self, gateway: Gateway) -> None:
        for more in ({"max_cap": 1}, {"groups": ["*"]}):
            answer = await gateway.client.put("/exec/acl/worker/w", json={"api_key_ids": [], "execs": []} | more)
            assert code_of(answer) == (422, "BAD_SCHEMA")

    async def test_what_has_no_records_is_not_found(self, gateway: Gateway) -> None:
        for method in ("GET", "DELETE"):
            assert code_of(await gateway.client.request(method, "/exec/acl/door/d")) == (404, "NOT_FOUND")
            assert code_of(await gateway.client.request(method, "/exec/acl/client/a.b")) == (422, "BAD_SCHEMA")

    async def test_records_are_for_operators_alone(self, closed: Closed) -> None:
        """Closed by default: no key of a tenant can open a program to itself."""
        gateway, keys, records = closed
        path = f"/exec/acl/client/{unique('c')}"
        record = {"api_key_ids": [records["t"].key_id], "execs": ["*"]}
        for method, body in (("GET", None), ("PUT", record), ("DELETE", None)):
            assert (await gateway.client.request(method, path, json=body)).status_code == 401
            refused = await gateway.client.request(method, path, json=body, headers=keys["t"])
            assert code_of(refused) == (403, "FORBIDDEN")
        assert (await gateway.client.put(path, json=record, headers=keys["operator"])).status_code == 200
        assert (await gateway.client.get(path, headers=keys["operator"])).status_code == 200
        assert (await gateway.client.delete(path, headers=keys["operator"])).status_code == 200


async def tell(gateway: Gateway, job_id: str, name: EventName, attempt: int = 0, **more: Any) -> None:
    programs = gateway.backend.programs
    assert programs is not None
    group = more.pop("group", group_of(gateway))
    run_id = run_id_of(job_id, group)
    await programs.events.record(
        Event(ts=1.0, event=name, group=group, run_id=run_id, job_id=job_id, attempt=attempt, **more)
    )


class TestEvents:
    async def test_the_newest_come_first_and_filters_hold(self, gateway: Gateway) -> None:
        """GRID-173"""
        job_id, group = a_job_id(), group_of(gateway)
        for attempt, name in enumerate((EventName.ENQUEUE, EventName.ASSIGN, EventName.ACK)):
            await tell(gateway, job_id, name, attempt, detail="x")
        await tell(gateway, a_job_id(), EventName.ENQUEUE)

        async def told(**query: Any) -> list[str]:
            answer = await gateway.client.get("/exec/events", params={"group": group} | query)
            assert answer.status_code == 200, answer.text
            return [event["event"] for event in answer.json()["items"]]

        assert await told(job_id=job_id) == ["ack", "assign", "enqueue"]
        assert await told(job_id=job_id.upper(), event="assign") == ["assign"]
        assert await told(job_id=job_id, limit=1) == ["ack"]
        assert (await told())[0] == "enqueue"
        (event,) = (await gateway.client.get("/exec/events", params={"job_id": job_id, "event": "ack"})).json()["items"]
        assert event == {
            "ts": 1.0,
            "event": "ack",
            "group": group,
            "run_id": run_id_of(job_id, group),
            "job_id": job_id,
            "attempt": 2,
            "detail": "x",
        }

    @pytest.mark.parametrize("query", ["job_id=x", "event=x", "group=a.b", "limit=0", "limit=1001", "limit=1&limit=2"])
    async def test_a_bad_query_is_refused(self, gateway: Gateway, query: str) -> None:
        answer = await gateway.client.get(f"/exec/events?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["query", query.partition("=")[0]])

    async def test_others_than_operators_see_the_events_of_their_own_jobs(self, closed: Closed) -> None:
        """GRID-169"""
        gateway, keys, records = closed
        record = {"api_key_ids": [records["t"].key_id], "execs": ["*"]}
        own = records["t"].key_id
        await gateway.client.put(f"/exec/acl/client/{own}", headers=keys["operator"], json=record)
        job_id = (await submit_job(gateway, headers=keys["t"]))["job_id"]
        asked = {"job_id": job_id}
        assert code_of(await gateway.client.get("/exec/events", headers=keys["t"])) == (403, "FORBIDDEN")
        counts = {}
        for who in ("t", "u", "operator"):
            answer = await gateway.client.get("/exec/events", params=asked, headers=keys[who])
            counts[who] = len(answer.json()["items"])
        assert counts == {"t": 1, "u": 0, "operator": 1}
        assert (await gateway.client.get("/exec/events", headers=keys["operator"])).status_code == 200


class TestState:
    async def test_it_tells_what_waits_what_runs_who_may_and_who_failed(
        self, nats_url: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """GRID-172, GRID-75"""
        link = await open_link(nats_url, "tests")
        async with fresh_grid_gateway(link, nats_url, tmp_path_factory.mktemp("data")) as gateway:
            group = group_of(gateway)
            empty = (await gateway.client.get("/exec/state")).json()["groups"][group]
            first_five = ("queues", "inflight", "dlq", "client_cap", "client_inflight")
            assert [empty[name] for name in first_five] == [{}, {}, {"count": 0, "last_sequence": None}, {}, {}]
            await gateway.client.put("/exec/clients/anna", json={"cap": 3})
            jobs = [await submit_job(gateway, "calcA", client_id="anna") for _ in range(3)]
            await submit_job(gateway, "other", client_id="bert")
            attempt = await begin_job(gateway, "calcA", "anna")
            _, letter = await buried(gateway, "broken")
            attempts = [await begin_job(gateway, "calcA", "anna")]
            await end_job(gateway, attempts[0], replace(DONE, run_seconds=2.5))

            async def told() -> dict[str, Any]:
                answer = await gateway.client.get("/exec/state", params={"group": group})
                assert answer.status_code == 200, answer.text
                assert list(answer.json()["groups"]) == [group]
                state: dict[str, Any] = answer.json()["groups"][group]
                return state

            async def is_up_to_date() -> bool:
                state = await told()
                return bool(state["queues"]["calcA"]["queued"] == 1 and state["p95"].get("calcA") == 2.5)

            await eventually(is_up_to_date)
            state = await told()
            assert {name: (each["queued"], each["inflight"]) for name, each in state["queues"].items()} == {
                "calcA": (1, 1),
                "other": (1, 0),
            }
            assert 0 <= state["queues"]["calcA"]["oldest_age_seconds"] < 300
            (running,) = state["inflight"].items()
            assert running[0] == jobs[0]["job_id"]
            assert {name: running[1][name] for name in ("exec", "client", "worker", "attempt", "status")} == {
                "exec": "calcA",
                "client": "anna",
                "worker": "worker-1",
                "attempt": 1,
                "status": "RUNNING",
            }
            assert state["dlq"] == {"count": 1, "last_sequence": int(letter["id"])}
            assert (state["client_cap"], state["client_inflight"]) == ({"anna": 3}, {"anna": 1})
            assert (state["doors"], state["workers"]) == ([], [])
            assert {each["leader"] for each in state["replicas"]["PYOCO_EXEC"]} == {True}
            await end_job(gateway, attempt)
            assert (await gateway.client.get("/exec/state", params={"group": "a.b"})).status_code == 422
        await link.close()

    async def test_a_worker_is_told_of_in_its_own_group(self) -> None:
        """GRID-172: however many groups there are, each of many workers is in the answer once"""
        worker = WorkerRecord(
            worker_id="", instance_id="", state=WorkerState.IDLE, tags=(), last_seen_at=1.0, last_heartbeat_at=1.0
        )
        groups = {"a": "g1", "b": "g2", "old": None}
        workers = [replace(worker, worker_id=name, group=group) for name, group in groups.items()]
        empty = GroupState(
            group="", queues=[], inflight=[], dead_letters=0, last_dead_letter=None, caps={}, held={}, doors=[], p95={}
        )
        shown = [replace(empty, group=group) for group in ("g1", "g2")]
        document = document_of(GridState(at=2.0, groups=shown, workers=workers, replicas=[]), 20.0)
        names = {group: [each["worker_id"] for each in told["workers"]] for group, told in document["groups"].items()}
        assert names == {"g1": ["a", "old"], "g2": ["b", "old"]}

    async def test_others_than_operators_see_their_own_jobs_and_clients(self, closed: Closed) -> None:
        """GRID-169"""
        gateway, keys, records = closed
        group = group_of(gateway)
        clients = {who: unique(who) for who in ("t", "u")}
        for who, client in clients.items():
            record = {"api_key_ids": [records[who].key_id], "execs": ["*"]}
            await gateway.client.put(f"/exec/acl/client/{client}", headers=keys["operator"], json=record)
            await gateway.client.put(f"/exec/clients/{client}", headers=keys[who], json={"cap": 2})
            await submit_job(gateway, "shared", headers=keys[who], client_id=client)
            await begin_job(gateway, "shared", client, records[who].tenant_id)
        seen = {}
        for who in ("t", "u", "operator"):
            asked = {"group": group}

            async def is_told(asked: dict[str, str] = asked, who: str = who) -> bool:
                answer = await gateway.client.get("/exec/state", params=asked, headers=keys[who])
                state = answer.json()["groups"][group]
                running = {job["client"] for job in state["inflight"].values() if job["exec"] == "shared"}
                mine = set(clients.values())
                seen[who] = (running, mine & set(state["client_cap"]), mine & set(state["client_inflight"]))
                return bool(state["queues"]["shared"]["inflight"] == 2)

            await eventually(is_told)
        both = set(clients.values())
        assert seen == {who: ({client},) * 3 for who, client in clients.items()} | {"operator": (both,) * 3}
        assert (await gateway.client.get("/exec/state")).status_code == 401


class TestDefaults:
    async def test_without_keys_nobody_is_told_apart(self, gateway: Gateway) -> None:
        assert (await post_job(gateway, client_id="anybody")).status_code == 200
