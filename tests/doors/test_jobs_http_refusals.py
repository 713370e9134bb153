"""`POST /jobs`: what is refused and with which code."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.doors.http.state import JOBS_OF_TENANT_MAX, State
from support.doors_support import call, disposition, endless, form
from support.gateways import Gateway, listening
from support.grid.http_jobs import post_job
from support.grid.job_posts import V5, gateway, refusal
from support.waiting import eventually

__all__ = ["gateway"]

pytestmark = pytest.mark.asyncio(loop_scope="module")
FORM = {"content-type": "multipart/form-data; boundary=B"}


async def traces(gateway: Gateway) -> tuple[int, int]:
    """What a refused job must not change: records of runs, and messages of the queue."""
    programs = gateway.backend.programs
    assert programs is not None
    return await gateway.backend.runs.newest(), (await programs.queue.totals()).messages


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
