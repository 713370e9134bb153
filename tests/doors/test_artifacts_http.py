"""`/runs/{run_id}/artifacts`: what a program has left behind, and when there is nothing to be had."""

from __future__ import annotations

import base64
import hashlib
import io
import uuid
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pyoco_server.core.programs.report import Report
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.link import open_link
from support.gateways import Gateway, error, stored, submit
from support.grid.http_jobs import DONE, a_key_of, archive, begin_job, end_job, fresh_grid_gateway, submit_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

ZIP = archive({"result.txt": b"42\n", "more/deep.bin": bytes(range(256)) * 4000})
LONG = b"line\n" * 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    link = await open_link(module_nats_url, "tests")
    async with fresh_grid_gateway(link, module_nats_url, tmp_path_factory.mktemp("data")) as gateway:
        yield gateway
    await link.close()


async def ended(gateway: Gateway, report: Report = DONE, zipped: bytes | None = ZIP) -> str:
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    accepted = await submit_job(gateway, exec_name)
    await end_job(gateway, await begin_job(gateway, exec_name), report, zipped)
    return str(accepted["run_id"])


async def get(gateway: Gateway, run_id: str, more: str = "", **headers: str) -> httpx.Response:
    return await gateway.client.get(f"/runs/{run_id}/artifacts{more}", headers=headers)


async def test_the_archive_comes_as_it_was_made(gateway: Gateway) -> None:
    """GRID-145, GRID-157"""
    run_id = await ended(gateway)
    sha256 = hashlib.sha256(ZIP)
    for more in ("", "/output.zip", "?list=0"):
        answer = await get(gateway, run_id, more)
        assert (answer.status_code, answer.content) == (200, ZIP)
        assert answer.headers["content-type"] == "application/zip"
        assert answer.headers["content-length"] == str(len(ZIP))
        assert answer.headers["etag"] == f'"{sha256.hexdigest()}"'
        assert answer.headers["content-disposition"] == f'attachment; filename="{run_id}-output.zip"'
        assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(sha256.digest()).decode()}:"
        assert answer.headers["x-content-type-options"] == "nosniff"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as zipped:
        assert zipped.read("result.txt") == b"42\n"


async def test_who_has_it_already_gets_nothing_again(gateway: Gateway) -> None:
    run_id = await ended(gateway)
    etag = (await get(gateway, run_id)).headers["etag"]
    again = await get(gateway, run_id, **{"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    head = await gateway.client.head(f"/runs/{run_id}/artifacts")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(ZIP)))


async def test_output_comes_from_the_record_or_from_its_object(gateway: Gateway) -> None:
    """GRID-145"""
    report = replace(DONE, stdout=LONG, stderr=b"<script>alert(1)</script>")
    run_id = await ended(gateway, report, None)
    stdout, stderr = [await get(gateway, run_id, f"/{name}") for name in ("stdout.txt", "stderr.txt")]
    assert (stdout.content, stderr.content) == (LONG, report.stderr)
    for answer in (stdout, stderr):
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"].startswith("attachment; ")
        assert answer.headers["content-length"] == str(len(answer.content))
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'


async def test_the_list_tells_what_there_is(gateway: Gateway) -> None:
    run_id = await ended(gateway, replace(DONE, stdout=LONG))
    listed = await get(gateway, run_id, "?list=1")
    assert listed.json() == [
        {
            "name": name,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "href": f"/runs/{run_id}/artifacts/{name}",
        }
        for name, data in (("output.zip", ZIP), ("stdout.txt", LONG))
    ]
    for each in listed.json():
        assert (await gateway.client.get(each["href"])).status_code == 200
    assert (await get(gateway, run_id, "?list=maybe")).status_code == 422


async def test_what_has_not_ended_has_nothing_yet(gateway: Gateway) -> None:
    """GRID-147"""
    run_id = (await submit_job(gateway, "waits"))["run_id"]
    for status in ("PENDING", "RUNNING"):
        assert (await gateway.client.get(f"/runs/{run_id}")).json()["status"] == status
        answer = await get(gateway, run_id)
        assert (answer.status_code, answer.json()) == (409, error(2, "run has not ended"))
        assert (await get(gateway, run_id, "?list=1")).json() == []
        if status == "PENDING":
            await begin_job(gateway, "waits")


async def test_what_is_not_there_is_not_found(gateway: Gateway) -> None:
    run_id, silent = await ended(gateway), await ended(gateway, Report(status=RunState.COMPLETED, exit_code=0), None)
    flow = await submit(gateway)
    nobody = str(uuid.uuid4())
    missing = [(run_id, "/stderr.txt"), (run_id, "/other.txt"), (run_id, "/..%2Foutput.zip"), (silent, "")]
    missing += [(silent, "/stdout.txt"), (flow, ""), (nobody, ""), (nobody, "?list=1"), ("nonsense", "/output.zip")]
    for each, more in missing:
        answer = await get(gateway, each, more)
        assert answer.status_code == 404, (each, more, answer.text)
    assert (await get(gateway, silent, "?list=1")).json() == []
    assert (await get(gateway, flow, "?list=1")).json() == []


async def test_what_has_expired_is_gone_and_its_run_is_not(gateway: Gateway) -> None:
    """GRID-149"""
    run_id = await ended(gateway, replace(DONE, stdout=LONG))
    programs = gateway.backend.programs
    assert programs is not None
    program = (await stored(gateway, run_id)).run.program
    assert program is not None
    for artifact in program.artifacts:
        assert await programs.artifacts.delete(artifact.object)
    for more in ("", "/stdout.txt"):
        answer = await get(gateway, run_id, more)
        assert (answer.status_code, answer.json()) == (410, error(46, "artifact expired"))
    shown: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    assert shown["status"] == "COMPLETED"
    assert shown["stdout_tail"].endswith("line\n")


async def test_another_tenants_files_are_not_to_be_found(
    nats_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """GRID-169"""
    link = await open_link(nats_url, "tests")
    settings: dict[str, Any] = {"http_auth_mode": "api_key", "auth_pepper": "pepper"}
    async with fresh_grid_gateway(link, nats_url, tmp_path_factory.mktemp("data"), **settings) as gateway:
        (mine, _), (other, _) = await a_key_of(gateway, "t"), await a_key_of(gateway, "u")
        accepted = await submit_job(gateway, headers={"X-API-Key": mine}, client_id="c")
        await end_job(gateway, await begin_job(gateway, client_id="c", tenant_id="t"), DONE, ZIP)
        for more in ("", "?list=1", "/stdout.txt"):
            assert (await get(gateway, accepted["run_id"], more, **{"X-API-Key": other})).status_code == 404
            assert (await get(gateway, accepted["run_id"], more, **{"X-API-Key": mine})).status_code == 200
            assert (await get(gateway, accepted["run_id"], more)).status_code == 401
    await link.close()
