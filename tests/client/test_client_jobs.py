"""Both clients and programs: what is sent, what is sent again, and what comes back whole."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.http_client import AnswerDamaged, SourceChanged
from pyoco_server.ports.nats.link import Link
from support.client_twins import MakeClient
from support.gateways import Gateway, listening
from support.grid.http_jobs import DONE, FAILED, archive, begin_job, end_job, fresh_grid_gateway, group_of
from support.scripted_gateway import answer, cut, raw, scripted
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("hurried")

AWAY = {"detail": "nats unavailable", "err_id": "ERR-PYOCO-0003", "code": "UNAVAILABLE"}
ACCEPTED = {"run_id": "r", "job_id": "j", "status": "PENDING", "duplicate": False}


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_grid_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    async with listening(gateway.app) as port:
        yield f"http://127.0.0.1:{port}"


async def test_a_job_goes_out_with_its_files_and_its_archive_comes_back(
    make: MakeClient, gateway: Gateway, url: str, tmp_path: Path
) -> None:
    """GRID-155, GRID-157, GRID-158"""
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(range(256)) * 3000)
    files = {'quo"ted データ.txt': b"hello", "large.bin": large, "empty": b""}
    seen: list[tuple[int, int | None]] = []
    zipped = archive({"result.txt": b"42"})
    async with make(url) as client:
        more = {"client_id": "anna", "timeout_sec": 60}
        accepted = await client.submit_job(
            "calcA", ["--n", "3", ""], files, progress=lambda *at: seen.append(at), **more
        )
        assert seen[-1][0] == seen[-1][1]
        assert seen[-1][0] > large.stat().st_size
        attempt = await begin_job(gateway, "calcA", "anna")
        assert (attempt.job.args, attempt.job.timeout_sec) == (("--n", "3", ""), 60)
        async with open_inputs(gateway.backend, attempt.job) as staged:
            contents = {each.name: b"".join([piece async for piece in staged.read(each.name)]) for each in staged.files}
        assert contents == {'quo"ted データ.txt': b"hello", "large.bin": large.read_bytes(), "empty": b""}
        await end_job(gateway, attempt, DONE, zipped)
        run_id = accepted["run_id"]
        assert (await client.wait_run(run_id, 120))["exit_code"] == 0
        listed = await client.get_artifacts(run_id)
        assert [(each["name"], each["size"]) for each in listed] == [("output.zip", len(zipped)), ("stdout.txt", 5)]
        saved = await client.save_artifact(run_id, tmp_path)
        assert saved == {
            "name": "output.zip",
            "path": str(tmp_path / "output.zip"),
            "size_bytes": len(zipped),
            "sha256_hex": hashlib.sha256(zipped).hexdigest(),
        }
        assert (tmp_path / "output.zip").read_bytes() == zipped
        assert await client.read_artifact(run_id, "stdout.txt") == b"done\n"
        (line,) = await client.list_runs(kind="exec", client_id="anna", exec_name="calcA")
        assert (line["job_id"], line["client_id"]) == (accepted["job_id"], "anna")
        assert [run["run_id"] async for run in client.iter_runs(group=group_of(gateway))] == [run_id]
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await client.save_artifact(run_id, tmp_path / "x", "stderr.txt")
        assert not (tmp_path / "x").exists()


async def the_letter(client: Any, **filters: str) -> Any:
    """The only one there is: a list follows its stream."""
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = (await client.list_letters(**filters))["items"]
        return len(found) > 0

    await eventually(is_there)
    (letter,) = found
    return letter


async def test_caps_acl_events_state_and_requeue(make: MakeClient, gateway: Gateway, url: str) -> None:
    """GRID-88, GRID-168, GRID-172, GRID-173"""
    async with make(url) as client:
        assert (await client.get_client_cap("bert"))["cap"] == 4
        assert (await client.set_client_cap("bert", 7))["cap"] == 7
        assert (await client.set_client_cap("bert", 2, group="other"))["group"] == "other"
        name = f"c{uuid.uuid4().hex[:8]}"
        record: Any = {"api_key_ids": ["k"], "execs": ["*"]}
        written = await client.set_acl("client", name, record)
        assert (
            await client.get_acl("client", name)
            == written
            == {
                "kind": "client",
                "id": name,
                "api_key_ids": ["k"],
                "execs": ["*"],
                "max_cap": None,
                "groups": ["*"],
            }
        )
        assert (await client.delete_acl("client", name))["deleted"] is True
        accepted = await client.submit_job("fails", client_id="bert")
        state = (await client.exec_state(group_of(gateway)))["groups"][group_of(gateway)]
        assert state["queues"]["fails"]["queued"] == 1
        assert state["client_cap"] == {"bert": 7}
        await end_job(gateway, await begin_job(gateway, "fails", "bert"), FAILED)

        async def is_told() -> bool:
            events = (await client.exec_events(accepted["job_id"]))["items"]
            return {"enqueue", "dlq"} <= {event["event"] for event in events}

        await eventually(is_told)
        letter = await the_letter(client, exec_name="fails", client_id="bert")
        again = await client.requeue_letter(letter["id"])
        assert again == await client.requeue_letter(letter["id"])
        assert (await client.get_run(again["run_id"]))["retry_of"] == accepted["run_id"]


class TestTries:
    async def test_what_was_lost_is_sent_again_whole_under_the_same_id(self, make: MakeClient, tmp_path: Path) -> None:
        """GRID-49, GRID-122"""
        path = tmp_path / "f.bin"
        path.write_bytes(b"x" * 1_000_000)
        async with scripted(answer(AWAY, 503), cut, answer(ACCEPTED)) as server, make(server.url) as client:
            assert await client.submit_job("calcA", ["a"], [path]) == ACCEPTED
        first, *others = server.asked
        assert [each.body for each in others] == [first.body] * 2
        assert b'name="job_id"\r\n\r\n' in first.body
        assert int(first.headers["content-length"]) == len(first.body)
        assert "idempotency-key" not in first.headers

    async def test_a_key_is_sent_when_it_is_given(self, make: MakeClient) -> None:
        async with scripted(answer(ACCEPTED)) as server, make(server.url) as client:
            await client.submit_job("calcA", idempotency_key="k", job_id="j")
        assert server.asked[0].headers["idempotency-key"] == "k"
        assert b'name="job_id"\r\n\r\nj\r\n' in server.asked[0].body

    async def test_what_is_refused_is_not_sent_again(self, make: MakeClient) -> None:
        refused = {"detail": "JOB_ID_CONFLICT: x", "err_id": "ERR-PYOCO-0044", "code": "JOB_ID_CONFLICT"}
        async with scripted(answer(refused, 409)) as server, make(server.url) as client:
            with pytest.raises(httpx.HTTPStatusError) as caught:
                await client.submit_job("calcA")
            assert caught.value.response.json()["code"] == "JOB_ID_CONFLICT"
        assert len(server.asked) == 1


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a\nb", ".owner"])
async def test_a_name_that_no_server_takes_is_not_sent(make: MakeClient, name: str) -> None:
    """GRID-96"""
    async with scripted() as server, make(server.url) as client:
        with pytest.raises(GridRefused):
            await client.submit_job("calcA", files={name: b""})
    assert server.asked == []


async def test_files_that_cannot_be_sent_are_told_of(make: MakeClient, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for folder in (tmp_path, tmp_path / "a"):
        (folder / "f").write_bytes(b"x")
    async with scripted() as server, make(server.url) as client:
        with pytest.raises(FileNotFoundError):
            await client.submit_job("calcA", files=[tmp_path / "missing"])
        with pytest.raises(ValueError, match="same name"):
            await client.submit_job("calcA", files=[tmp_path / "f", tmp_path / "a" / "f"])
        with pytest.raises(TypeError, match="not one path"):
            await client.submit_job("calcA", files=str(tmp_path / "f"))
        with pytest.raises(TypeError, match="not one word"):
            await client.submit_job("calcA", "word")
    assert server.asked == []


async def test_a_file_that_changes_while_it_is_sent_is_no_job(make: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1_000_000)

    def grow(done: int, _: int | None) -> None:
        with path.open("ab") as file:
            file.write(b"y" * 1_000_000)

    async with scripted(answer(ACCEPTED)) as server, make(server.url, retries=0) as client:
        with pytest.raises(SourceChanged):
            await client.submit_job("calcA", files=[path], progress=grow)


async def test_an_archive_that_is_damaged_is_not_kept(make: MakeClient, tmp_path: Path) -> None:
    damaged = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRepr-Digest: sha-256=:" + b"A" * 43 + b"=:\r\n\r\n{}")
    async with scripted(damaged) as server, make(server.url, retries=0) as client:
        with pytest.raises(AnswerDamaged):
            await client.save_artifact("r", tmp_path)
    assert list(tmp_path.iterdir()) == []
