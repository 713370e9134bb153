"""`POST /jobs`: what is accepted, what is refused and with which code, and what it leaves behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.config import GridConfig
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.errors import NoRoom, Unavailable
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.program_queue.port import ClientQueue
from support.gateways import Gateway, open_gateway, stored
from support.grid.http_jobs import a_job_id, a_key_of, begin_job, fresh_grid_gateway, group_of, post_job, submit_job
from support.grid.job_posts import V5, gateway, refusal
from support.servers import NatsServer, config_for, unique

__all__ = ["gateway"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestAccepted:
    async def test_a_job_is_recorded_and_queued_before_it_is_answered(self, gateway: Gateway) -> None:
        """GRID-49, GRID-150, GRID-151, GRID-155"""
        answer = await post_job(
            gateway, "calcA", ["--n", "3"], {"in.txt": b"hello\n"}, client_id="anna", timeout_sec="60"
        )
        assert answer.status_code == 200
        accepted = answer.json()
        assert accepted.keys() == {"run_id", "job_id", "status", "duplicate"}
        assert (accepted["status"], accepted["duplicate"]) == ("PENDING", False)
        assert accepted["run_id"] == run_id_of(accepted["job_id"], group_of(gateway))
        shown = (await gateway.client.get(f"/runs/{accepted['run_id']}")).json()
        sha256 = hashlib.sha256(b"hello\n").hexdigest()
        assert shown["params"] | {"timeout_sec": 60} == {
            "timeout_sec": 60,
            "exec_name": "calcA",
            "args": ["--n", "3"],
            "files": [{"name": "in.txt", "size": 6, "sha256": sha256}],
        }
        assert (shown["kind"], shown["flow_name"], shown["tag"], shown["tags"]) == (
            "exec",
            "exec:calcA",
            "exec",
            ["exec", "calcA"],
        )
        assert (shown["client_id"], shown["group"]) == ("anna", group_of(gateway))
        job = read_job((await stored(gateway, accepted["run_id"])).run.program.job)  # type: ignore[union-attr, arg-type]
        assert (job.args, job.timeout_sec) == (("--n", "3"), 60)
        assert gateway.backend.programs is not None
        assert await gateway.backend.programs.queue.has(job)

    async def test_what_a_door_never_shows_is_shown_nowhere(self, gateway: Gateway) -> None:
        """GRID-154"""
        accepted = await submit_job(gateway, "private", args=["a secret"])
        await begin_job(gateway, "private")
        run_id = accepted["run_id"]
        shown = [
            (await gateway.client.get(f"/runs/{run_id}", params={"include": "all"})).json(),
            *(await gateway.client.get("/runs", params={"exec": "private", "include": "full"})).json(),
            *(await gateway.client.get("/runs", params={"exec": "private"})).json(),
            (await gateway.client.post(f"/runs/{run_id}/cancel")).json(),
        ]
        assert len(shown) == 4
        for each in shown:
            assert each.keys().isdisjoint({"token", "attempt_id", "holder", "slot", "job"})

    async def test_who_names_no_client_is_the_client_http(self, gateway: Gateway) -> None:
        """GRID-155"""
        accepted = await submit_job(gateway)
        run = (await stored(gateway, accepted["run_id"])).run
        assert run.program is not None
        assert run.program.client_id == "http"

    async def test_the_same_job_again_is_the_same_job(self, gateway: Gateway) -> None:
        """GRID-1, GRID-50, GRID-155"""
        job_id = a_job_id()
        first = await submit_job(gateway, job_id=job_id, args=["x"])
        again = await submit_job(gateway, job_id=job_id.upper(), args=["x"])
        assert first == {"run_id": first["run_id"], "job_id": job_id, "status": "PENDING", "duplicate": False}
        assert again == first | {"duplicate": True}
        many = await asyncio.gather(*(submit_job(gateway, job_id=job_id, args=["x"]) for _ in range(10)))
        assert {each["run_id"] for each in many} == {first["run_id"]}

    async def test_another_job_under_the_same_id_is_refused(self, gateway: Gateway) -> None:
        """GRID-48, GRID-156"""
        job_id = a_job_id()
        await submit_job(gateway, job_id=job_id, args=["x"])
        for other in ({"args": ["y"]}, {"args": ["x"], "client_id": "bert"}, {"args": ["x"], "timeout_sec": "9"}):
            body = refusal(await post_job(gateway, job_id=job_id, **other), 409, "JOB_ID_CONFLICT")
            assert body["job_id"] == job_id

    async def test_a_group_of_its_own_has_a_run_of_its_own(self, gateway: Gateway) -> None:
        """GRID-2"""
        mine, other = a_job_id(), unique("g")
        accepted = await submit_job(gateway, job_id=mine, group=other)
        assert accepted["run_id"] == run_id_of(mine, other)
        assert accepted["run_id"] != (await submit_job(gateway, job_id=mine))["run_id"]

    async def test_large_files_become_one_object_and_come_out_as_they_went_in(self, gateway: Gateway) -> None:
        """GRID-48, GRID-147, GRID-157"""
        files = {"z first": b"small" * 1000, "a.bin": b"a" * 700_000, "empty": b"", "データ.csv": b"\0\r\n--B" * 60_000}
        files |= {".config": b"x", "a b": b"y"}
        accepted = await submit_job(gateway, "large", files=files)
        attempt = await begin_job(gateway, "large")
        assert attempt.run.run_id == accepted["run_id"]
        async with open_inputs(gateway.backend, attempt.job) as staged:
            assert [each.name for each in staged.files] == sorted(files)
            for each in staged.files:
                assert b"".join([piece async for piece in staged.read(each.name)]) == files[each.name]
                assert (each.size, each.sha256) == (len(files[each.name]), hashlib.sha256(files[each.name]).hexdigest())

    async def test_as_many_arguments_and_files_as_may_be(self, gateway: Gateway) -> None:
        files = {f"f{number}": bytes([number]) for number in range(64)}
        args = ["x" * 64] * 256
        accepted = await submit_job(gateway, args=args, files=files)
        shown = (await gateway.client.get(f"/runs/{accepted['run_id']}")).json()
        assert len(shown["params"]["files"]) == 64
        assert shown["params"]["args"] == args

    async def test_the_new_run_is_in_the_next_list(self, gateway: Gateway) -> None:
        for _ in range(5):
            accepted = await submit_job(gateway, "listed")
            listed = (await gateway.client.get("/runs", params={"exec": "listed"})).json()
            assert listed[0]["run_id"] == accepted["run_id"]


class TestKeys:
    async def test_a_repeat_under_an_idempotency_key_is_the_same_job(self, gateway: Gateway) -> None:
        """DESIGN 9.4"""
        key = {"Idempotency-Key": unique("k")}
        first = await post_job(gateway, headers=key, args=["x"], files={"f": b"1"})
        again = await post_job(gateway, headers=key, args=["x"], files={"f": b"1"})
        assert again.json() == first.json() | {"duplicate": True}
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        for other in ({"args": ["y"]}, {"args": ["x"], "files": {"f": b"2"}}, {"args": ["x"], "job_id": a_job_id()}):
            refused = await post_job(gateway, headers=key, **other)
            assert (refused.status_code, refused.json()["detail"]) == (409, "idempotency key reused")

    async def test_a_key_and_an_id_may_be_given_both(self, gateway: Gateway) -> None:
        key, job_id = {"Idempotency-Key": unique("k")}, a_job_id()
        first = await post_job(gateway, headers=key, job_id=job_id)
        again = await post_job(gateway, headers=key, job_id=job_id)
        assert first.json()["job_id"] == again.json()["job_id"] == job_id
        assert (await post_job(gateway, headers=key)).status_code == 409

    async def test_a_key_of_a_flow_is_no_key_of_a_job(self, gateway: Gateway) -> None:
        key = {"Idempotency-Key": unique("k")}
        assert (await gateway.client.post("/runs", json={"flow_name": "f"}, headers=key)).status_code == 200
        assert (await post_job(gateway, headers=key)).status_code == 409


class TestOutages:
    @pytest.mark.parametrize("key", [None, "k"])
    async def test_an_outage_tells_which_job_to_ask_for_again(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        """GRID-11, GRID-49, GRID-156"""
        headers = {} if key is None else {"Idempotency-Key": unique(key)}
        programs = gateway.backend.programs
        assert programs is not None
        with mock.patch.object(programs.queue, "put", side_effect=Unavailable("no answer")):
            answer = await post_job(gateway, headers=headers, args=["x"])
        body = answer.json()
        assert (answer.status_code, body["code"], body["detail"]) == (503, "UNAVAILABLE", "nats unavailable")
        assert answer.headers["retry-after"] == "1"
        assert body["run_id"] == run_id_of(body["job_id"], group_of(gateway))
        again = await submit_job(gateway, headers=headers, args=["x"], **({} if key else {"job_id": body["job_id"]}))
        assert again == {"run_id": body["run_id"], "job_id": body["job_id"], "status": "PENDING", "duplicate": True}

    async def test_a_full_disk_of_the_server_is_told_as_one(self, gateway: Gateway) -> None:
        programs = gateway.backend.programs
        assert programs is not None
        with mock.patch.object(programs.artifacts, "put", side_effect=NoRoom):
            answer = await post_job(gateway, files={"f": b"x" * 20_000})
        assert (answer.status_code, answer.json()["detail"]) == (503, "no room on the disk")
        assert {"job_id", "run_id", "code"} <= answer.json().keys()

    async def test_a_full_queue_refuses_and_goes_on_when_there_is_room(
        self, own_nats_server: NatsServer, tmp_path: Path
    ) -> None:
        """GRID-64, GRID-156, P29"""
        config = config_for(own_nats_server.url, data_dir=str(tmp_path))
        async with open_gateway(config, GridConfig(exec_queue_max_jobs=3)) as gateway:
            accepted = [await submit_job(gateway) for _ in range(3)]
            listed = len((await gateway.client.get("/runs")).json())
            refused = await post_job(gateway, job_id=V5)
            body = refusal(refused, 429, "QUEUE_FULL")
            assert (body["job_id"], refused.headers["retry-after"]) == (V5, "1")
            assert len((await gateway.client.get("/runs")).json()) == listed == 3
            assert (await gateway.client.get(f"/runs/{V5}")).status_code == 404
            await gateway.client.post(f"/runs/{accepted[1]['run_id']}/cancel")
            assert (await submit_job(gateway, job_id=V5))["duplicate"] is False
            programs = gateway.backend.programs
            assert programs is not None
            lane = ClientQueue("default", "calcA", "http")
            deliveries = [one for _ in range(4) for one in await programs.queue.take(lane)]
            left = {json.loads(each.data)["run_id"] for each in deliveries}
            assert left == {accepted[0]["run_id"], accepted[2]["run_id"], V5}


class TestWhoMay:
    @pytest_asyncio.fixture(loop_scope="module")
    async def closed(self, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        link = await open_link(nats_url, "tests")
        settings: dict[str, Any] = {"http_auth_mode": "api_key", "auth_pepper": "pepper"}
        async with fresh_grid_gateway(link, nats_url, tmp_path, {"exec_auth": "api_key"}, **settings) as gateway:
            yield gateway
        await link.close()

    async def test_the_acl_says_who_may_ask_for_what(self, closed: Gateway) -> None:
        """GRID-155, GRID-156, GRID-168, P24"""
        (plain, record), (other, _) = await a_key_of(closed, "t"), await a_key_of(closed, "u")
        programs = closed.backend.programs
        assert programs is not None
        client = unique("client")
        mine = {"headers": {"X-API-Key": plain}, "client_id": client}

        async def answers(**more: Any) -> tuple[int, str | None]:
            answer = await post_job(closed, **{**mine, **more})
            return answer.status_code, answer.json().get("code")

        assert (await post_job(closed)).status_code == 401
        assert await answers() == (403, "FORBIDDEN")  # no record
        await programs.acl.put("client", client, AclRecord(api_key_ids=(record.key_id,), execs=("calc*",)))
        assert await answers() == (200, None)
        assert await answers(exec_name="other") == (403, "FORBIDDEN")
        assert await answers(headers={"X-API-Key": other}) == (403, "FORBIDDEN")
        groups = AclRecord(api_key_ids=(record.key_id,), execs=("calc*",), groups=("elsewhere",))
        await programs.acl.put("client", client, groups)
        assert await answers() == (403, "FORBIDDEN")
        assert (await post_job(closed, headers={"X-API-Key": plain})).status_code == 403  # its own id has no record
        own = AclRecord(api_key_ids=(record.key_id,), execs=("*",))
        await programs.acl.put("client", record.key_id, own)
        accepted = (await post_job(closed, headers={"X-API-Key": plain})).json()
        run = (await stored(closed, accepted["run_id"])).run
        assert run.program is not None
        assert (run.program.client_id, run.tenant_id, run.api_key_id) == (record.key_id, "t", record.key_id)
        seen = await closed.client.get(f"/runs/{accepted['run_id']}", headers={"X-API-Key": other})
        assert seen.status_code == 404
