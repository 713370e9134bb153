"""`POST /jobs`: what is accepted, what is refused and with which code, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
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
from pyoco_server.doors.http.state import JOBS_OF_TENANT_MAX, State
from pyoco_server.errors import CATALOGUE, NoRoom, Unavailable
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.program_queue.port import Lane
from support.doors_support import call, disposition, endless, form
from support.gateways import Gateway, listening, open_gateway, stored
from support.grid.http_jobs import a_job_id, a_key_of, begin_job, fresh_grid_gateway, group_of, post_job, submit_job
from support.servers import NatsServer, config_for, unique
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

V5 = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
FORM = {"content-type": "multipart/form-data; boundary=B"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    link = await open_link(module_nats_url, "tests")
    limits = {"exec_http_max_bytes": 3_000_000}
    async with fresh_grid_gateway(link, module_nats_url, tmp_path_factory.mktemp("data"), limits) as gateway:
        yield gateway
    await link.close()


async def traces(gateway: Gateway) -> tuple[int, int]:
    """What a refused job must not change: records of runs, and messages of the queue."""
    programs = gateway.backend.programs
    assert programs is not None
    return await gateway.backend.runs.newest(), (await programs.queue.totals()).messages


def refusal(answer: Any, status: int, code: str) -> dict[str, Any]:
    """FLOW-50's body, with the code beside it and before the text (GRID-156)."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body.get("code")) == (status, code), answer.text
    assert body["detail"].startswith(f"{code}: ")
    assert body["err_id"] == "ERR-PYOCO-0044"
    assert (body["message"], body["message_ja"]) == (CATALOGUE[44].en, CATALOGUE[44].ja)
    return body


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

    async def test_parts_that_mean_nothing_are_passed_over(self, gateway: Gateway) -> None:
        """FLOW-44"""
        assert (await post_job(gateway, colour="red")).status_code == 200

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


#: GRID-96, as the table has it, and what forms can do besides. The last column is how it stands in the header.
BAD_NAMES = {
    "../x": "../x",
    "a/b": "a/b",
    "/etc/passwd": "/etc/passwd",
    "a backslash": "a\\b",
    "an escaped backslash": "a\\\\b",
    "a drive": "C:\\x",
    "a share": "\\\\server\\x",
    "..": "..",
    ".": ".",
    "a..b": "a..b",
    "NUL": "x\0",
    "a control character": "a\x07b",
    "DEL": "a\x7fb",
    "nothing": "",
    "a space before": " a",
    "a space behind": "a ",
    "the owner's": ".owner",
    "the owner's, and more": ".owner.txt",
    "256 bytes": "a" * 256,
    "256 bytes of UTF-8": "é" * 128,
}


class TestRefused:
    @pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
    async def test_a_bad_file_name_is_refused_and_leaves_nothing(self, gateway: Gateway, name: str) -> None:
        """GRID-96, GRID-156, P20"""
        before = await traces(gateway)
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"'.encode()
        body = form((disposition("exec_name"), b"calcA"), (head, b"x"))
        answer = await gateway.client.post("/jobs", content=body, headers=FORM)
        assert refusal(answer, 422, "BAD_FILE_NAME")["errors"][0]["loc"] == ["file"]
        assert await traces(gateway) == before

    @pytest.mark.parametrize("names", [("a", "a"), ("a.TXT", "A.txt"), ("straße", "STRASSE")])
    async def test_two_files_that_one_file_system_may_take_for_one_are_refused(
        self, gateway: Gateway, names: tuple[str, str]
    ) -> None:
        """GRID-96"""
        parts = [(f'Content-Disposition: form-data; name="file"; filename="{name}"'.encode(), b"x") for name in names]
        answer = await gateway.client.post(
            "/jobs", content=form((disposition("exec_name"), b"calcA"), *parts), headers=FORM
        )
        refusal(answer, 422, "BAD_FILE_NAME")

    async def test_a_name_that_is_no_utf8_is_refused(self, gateway: Gateway) -> None:
        head = b'Content-Disposition: form-data; name="file"; filename="\xff\xfe"'
        body = form((disposition("exec_name"), b"calcA"), (head, b"x"))
        refusal(await gateway.client.post("/jobs", content=body, headers=FORM), 422, "BAD_FILE_NAME")

    @pytest.mark.parametrize(
        "name", ["in.txt", "データ.csv", ".config", "a b.txt", 'quo"ted', "a" * 255, "C:x", "a%2Fb"]
    )
    async def test_a_good_file_name_is_kept_as_it_is(self, gateway: Gateway, name: str) -> None:
        """GRID-96"""
        sent = name.replace('"', '\\"')
        head = f'Content-Disposition: form-data; name="file"; filename="{sent}"'.encode()
        body = form((disposition("exec_name"), b"calcA"), (head, b"x"))
        answer = await gateway.client.post("/jobs", content=body, headers=FORM)
        assert answer.status_code == 200, answer.text
        shown = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
        assert [each["name"] for each in shown["params"]["files"]] == [name]

    @pytest.mark.parametrize(
        ("fields", "code", "place"),
        [
            ({"exec_name": ""}, "BAD_EXEC_NAME", "exec_name"),
            ({"exec_name": "-x"}, "BAD_EXEC_NAME", "exec_name"),
            ({"exec_name": "a.b"}, "BAD_EXEC_NAME", "exec_name"),
            ({"exec_name": "計算"}, "BAD_EXEC_NAME", "exec_name"),
            ({"exec_name": "x" * 65}, "BAD_EXEC_NAME", "exec_name"),
            ({"exec_name": "x" * 5000}, "BAD_SCHEMA", "exec_name"),
            ({"job_id": "nonsense"}, "BAD_JOB_ID", "job_id"),
            ({"job_id": "00000000-0000-0000-0000-000000000000"}, "BAD_JOB_ID", "job_id"),
            ({"job_id": V5.replace("-", "")}, "BAD_JOB_ID", "job_id"),
            ({"job_id": f"{{{V5}}}"}, "BAD_JOB_ID", "job_id"),
            ({"client_id": "a.b"}, "BAD_SCHEMA", "client_id"),
            ({"client_id": ""}, "BAD_SCHEMA", "client_id"),
            ({"group": "a b"}, "BAD_SCHEMA", "group"),
            ({"group": "x" * 33}, "BAD_SCHEMA", "group"),
            ({"timeout_sec": "soon"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "0"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "86401"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "-1"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "nan"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "1e999"}, "BAD_SCHEMA", "timeout_sec"),
            ({"timeout_sec": "9" * 400}, "BAD_SCHEMA", "timeout_sec"),
            ({"args": ["a\0b"]}, "BAD_SCHEMA", "arg"),
            ({"args": ["x"] * 257}, "BAD_SCHEMA", "arg"),
            ({"args": ["x" * 16385]}, "BAD_SCHEMA", "arg"),
        ],
        ids=str,
    )
    async def test_a_bad_value_is_refused_with_its_code_and_its_place(
        self, gateway: Gateway, fields: dict[str, Any], code: str, place: str
    ) -> None:
        """GRID-1, GRID-3, GRID-155, GRID-156, GRID-196"""
        before = await traces(gateway)
        body = refusal(await post_job(gateway, **{"exec_name": "calcA"} | fields), 422, code)
        assert [problem["loc"] for problem in body["errors"]] == [[place]]
        assert await traces(gateway) == before
        secret = fields.get("args", ["-"])[0]
        assert len(secret) < 3 or secret not in body["detail"]

    @pytest.mark.parametrize(
        ("content", "content_type"),
        [
            (b"{}", "application/json"),
            (b"", "multipart/form-data"),
            (b"", "multipart/form-data; boundary=B"),
            (b"nonsense", "multipart/form-data; boundary=B"),
            (form(end=b""), "multipart/form-data; boundary=B"),
            (form((disposition("exec_name"), b"calcA"), end=b""), "multipart/form-data; boundary=B"),
            (form((b"X: y", b"calcA")), "multipart/form-data; boundary=B"),
            (form((disposition("arg"), b"calcA")), "multipart/form-data; boundary=B"),
            (form((disposition("exec_name", "f"), b"calcA")), "multipart/form-data; boundary=B"),
            (
                form((disposition("exec_name"), b"a"), (disposition("exec_name"), b"a")),
                "multipart/form-data; boundary=B",
            ),
            (form((disposition("exec_name"), b"a"), (disposition("file"), b"a")), "multipart/form-data; boundary=B"),
            (form((disposition("exec_name"), b"\xff")), "multipart/form-data; boundary=B"),
            (form((disposition("exec_name"), b"a"), (disposition("arg"), b"\xff")), "multipart/form-data; boundary=B"),
            (form(*[(disposition("x"), b"")] * 400), "multipart/form-data; boundary=B"),
            (form((b"X: " + b"y" * 20_000, b"")), "multipart/form-data; boundary=B"),
        ],
        ids=range(15),
    )
    async def test_a_form_that_is_none_is_refused(self, gateway: Gateway, content: bytes, content_type: str) -> None:
        """GRID-156, GRID-196"""
        before = await traces(gateway)
        answer = await gateway.client.post("/jobs", content=content, headers={"content-type": content_type})
        refusal(answer, 422, "BAD_SCHEMA")
        assert await traces(gateway) == before

    async def test_more_files_than_may_be_are_too_many(self, gateway: Gateway) -> None:
        """GRID-156"""
        answer = await post_job(gateway, files={f"f{number}": b"" for number in range(65)})
        refusal(answer, 413, "TOO_LARGE")

    async def test_a_body_over_the_limit_is_read_no_further(self, gateway: Gateway) -> None:
        """GRID-156, GRID-196"""
        before = await traces(gateway)
        start = (
            form((disposition("exec_name"), b"calcA"), end=b"") + b"--B\r\n" + disposition("file", "f") + b"\r\n\r\n"
        )
        status, body, taken = await call(gateway.app, "/jobs", endless(start, b"x" * 65_536), FORM)
        assert (status, body["code"]) == (413, "TOO_LARGE")
        assert taken < 3_000_000 + 10 * 65_536
        declared = await gateway.client.post("/jobs", content=b"", headers={**FORM, "content-length": "3000001"})
        refusal(declared, 413, "TOO_LARGE")
        assert await traces(gateway) == before

    async def test_who_goes_away_in_the_middle_leaves_no_run_and_no_object(
        self, gateway: Gateway, tmp_path: Path
    ) -> None:
        """GRID-157"""
        before = await traces(gateway)
        assert gateway.backend.programs is not None
        objects = len((await gateway.backend.programs.artifacts.catalogue()).objects)
        state: State = gateway.app.state.gateway
        async with listening(gateway.app) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                form((disposition("exec_name"), b"calcA"), end=b"")
                + b"--B\r\n"
                + disposition("file", "f")
                + b"\r\n\r\n"
            )
            writer.write(
                b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\n"
                b"Content-Length: 2000000\r\n\r\n" + head + b"x" * 600_000
            )
            await writer.drain()
            await eventually(lambda: state.jobs.taken == 1)
            writer.transport.abort()
            await eventually(lambda: state.jobs.taken == 0)
        assert await traces(gateway) == before
        assert len((await gateway.backend.programs.artifacts.catalogue()).objects) == objects

    async def test_one_tenant_has_so_many_large_jobs_under_way_and_no_more(self, gateway: Gateway) -> None:
        state: State = gateway.app.state.gateway
        with contextlib.ExitStack() as turns:
            for _ in range(JOBS_OF_TENANT_MAX):
                turns.enter_context(state.jobs.turn(""))
            answer = await post_job(gateway, files={"f": b"x" * 300_000})
            assert (answer.status_code, answer.json()["detail"]) == (503, "too many transfers")
            assert (await post_job(gateway, files={"f": b"x" * 3_000})).status_code == 200


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
            lane = Lane("default", "calcA", "http")
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
