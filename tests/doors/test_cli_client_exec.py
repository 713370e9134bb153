"""`pyoco-client program run` and its kin: files in, output here, files out, and an exit code that says how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.client import waiting as client_waiting
from support.client_commands import Client, process, terminal
from support.grid.sites import GridSite, open_grid_site
from support.waiting import eventually


@pytest.fixture(scope="module")
def site(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridSite]:
    with open_grid_site(module_nats_url, tmp_path_factory.mktemp("grid")) as site:
        yield site


@pytest.fixture
def client(site: GridSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_SERVER_URL", site.url)
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


def test_a_program_runs_as_if_it_were_here(client: Client, tmp_path: Path) -> None:
    """GRID-158"""
    (tmp_path / "in.txt").write_bytes(b"hello\n")
    out = tmp_path / "new" / "results"
    ended = client(
        "exec", "calcA", "--file", str(tmp_path / "in.txt"), "--wait", "--out", str(out), "--", "--n", "3", "a b"
    )
    assert (ended.code, ended.out) == (0, "--n 3 a b\n")
    assert "noise\n" in ended.err
    assert "COMPLETED, exit code 0, 500 ms" in ended.err
    assert (out / "result.txt").read_bytes() == b"42\n"
    assert (out / "in" / "in.txt").read_bytes() == b"hello\n"


def test_without_a_word_about_waiting_it_only_submits(client: Client) -> None:
    job_id = str(uuid.uuid4())
    accepted = client("exec", "never", "--job-id", job_id, "--client-id", "anna", "--run-timeout-sec", "60").result
    assert (accepted["job_id"], accepted["status"], accepted["duplicate"]) == (job_id, "PENDING", False)
    again = client("exec", "never", "--job-id", job_id, "--client-id", "anna", "--run-timeout-sec", "60").result
    assert again == accepted | {"duplicate": True}
    other = client("exec", "never", "--job-id", job_id, "--client-id", "anna")
    assert (other.code, other.out) == (1, "")
    assert other.err.startswith("HTTP 409 ERR-PYOCO-0044: ")
    assert "JOB_ID_CONFLICT: this JobId belongs to another job" in other.err


def test_the_other_name_of_it_takes_every_part_as_an_option(client: Client, tmp_path: Path) -> None:
    """GRID-158"""
    (tmp_path / "f").write_bytes(b"x")
    ended = client(
        "submit-exec", "--exec", "calcA", "--arg", "--n", "--arg", "3", "--file", str(tmp_path / "f"), "--wait"
    )
    assert (ended.code, ended.out) == (0, "--n 3\n")


def test_a_program_that_fails_ends_with_2_and_what_there_is_comes_all_the_same(client: Client, tmp_path: Path) -> None:
    """GRID-101, GRID-120"""
    ended = client("exec", "fails", "--out", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "no\n" in ended.err
    assert "FAILED, exit code 3, exit code 3" in ended.err
    assert (tmp_path / "partial.txt").read_bytes() == b"half"


def test_a_run_that_does_not_end_in_time_ends_with_1(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_waiting, "_LOOK_SECONDS_MIN", 60.0)  # a busy machine needs longer for the first look
    ended = client("exec", "never", "--timeout-sec", "0.3")
    assert (ended.code, ended.out) == (1, "")
    assert "is still PENDING" in ended.err


def test_the_run_itself_can_be_had_instead(client: Client) -> None:
    ended = client("exec", "calcA", "--wait", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["stdout_tail"] == "\n"


def test_a_program_without_a_trace_leaves_none(client: Client, tmp_path: Path) -> None:
    ended = client("exec", "silent", "--out", str(tmp_path / "x"))
    assert (ended.code, ended.out) == (0, "")
    assert "the program has produced no files" in ended.err
    assert not (tmp_path / "x").exists()


def test_an_archive_that_would_leave_its_directory_is_refused_whole(client: Client, tmp_path: Path) -> None:
    """GRID-97"""
    ended = client("exec", "escapes", "--out", str(tmp_path / "in"))
    assert ended.code == 1
    assert "leaves the directory it is unpacked to" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_prints_cannot_take_over_a_terminal(site: GridSite) -> None:
    with terminal(site.url, "exec", "escapes", "--wait") as screen:
        assert screen.left() == 0
        assert "\\x1b[31mred" in screen.sent
        assert "\x1b[31mred" not in screen.sent


def test_in_a_pipe_output_is_as_the_program_wrote_it(site: GridSite) -> None:
    with process(site.url, "exec", "escapes", "--wait") as running:
        out, _ = running.communicate(timeout=120)
    assert out == "\x1b[31mred\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["exec"], "Missing argument 'NAME'"),
        (["exec", "calcA", "--file", "/nowhere/at/all"], "cannot send the files"),
        (["exec", "a.b"], "BAD_EXEC_NAME"),
        (["exec", "calcA", "--job-id", "x"], "BAD_JOB_ID"),
        (["exec", "calcA", "--run-timeout-sec", "0"], "--run-timeout-sec"),
        (["submit-exec"], "Missing option '--exec'"),
        (["artifacts", str(uuid.uuid4())], "HTTP 404 ERR-PYOCO-0005"),
    ],
)
def test_a_mistake_ends_with_1_and_says_what_is_wrong(client: Client, arguments: list[str], told: str) -> None:
    """FLOW-426, FLOW-427"""
    ended = client(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert told in ended.err


def test_artifacts_can_be_fetched_later(client: Client, tmp_path: Path) -> None:
    snapshot = json.loads(client("exec", "calcA", "--wait", "--json", "--", "x").out)
    run_id = snapshot["run_id"]
    listed = client("artifacts", run_id).result
    assert [each["name"] for each in listed] == ["output.zip", "stdout.txt", "stderr.txt"]
    saved = client("artifacts", run_id, "--save", str(tmp_path / "out.zip")).result
    assert saved["sha256_hex"] == listed[0]["sha256"]
    assert client("artifacts", run_id, "--out", str(tmp_path / "d")).result["files"] == ["result.txt"]
    assert (tmp_path / "d" / "result.txt").read_bytes() == b"42\n"
    waits = client("exec", "never").result["run_id"]
    refused = client("artifacts", waits, "--out", str(tmp_path / "e"))
    assert refused.code == 1
    assert "run has not ended" in refused.err


def test_jobs_are_listed_shown_and_explained(client: Client) -> None:
    name = f"c{uuid.uuid4().hex[:8]}"
    accepted = client("exec", "never", "--client-id", name).result
    for filters in (["--client-id", name], ["--job-id", accepted["job_id"]], ["--exec", "never", "--client-id", name]):
        listed = client("list", "--kind", "exec", *filters).result
        assert [line["run_id"] for line in listed] == [accepted["run_id"]]
    assert client("get", accepted["run_id"]).result["client_id"] == name
    why = client("why", accepted["run_id"]).result
    assert why["waiting"]["reason"] == "no_worker"
    assert "No worker takes the program never." in why["explanation"][0]
    client("cancel", accepted["run_id"])
    assert client("get", accepted["run_id"]).result["status"] == "CANCELLED"


def test_a_failed_job_is_explained_and_requeued(client: Client) -> None:
    """GRID-88, GRID-158"""
    name = f"c{uuid.uuid4().hex[:8]}"
    ended = client("exec", "fails", "--wait", "--client-id", name)
    (run_id,) = re.findall(r"as run (\S+)", ended.err)
    why = client("why", run_id).result["explanation"]
    assert why[0] == "It failed (EXIT_NONZERO): exit code 3"
    assert "no" in why[1]
    assert any("pyoco-client program artifacts" in line for line in why)

    def letters() -> list[Any]:
        found: list[Any] = client("dlq", "list", "--client-id", name, "--exec", "fails").result["items"]
        return found

    asyncio.run(eventually(lambda: len(letters()) > 0))  # it follows the end of its run, and a list its stream
    (letter,) = letters()
    assert client("dlq", "show", letter["id"]).result["redrivable"] is True
    again = client("dlq", "requeue", letter["id"]).result
    assert again == client("dlq", "requeue", letter["id"]).result
    assert client("get", again["run_id"]).result["retry_of"] == run_id
    assert client("dlq", "list", "--group", "other").result["items"] == []
    deleted = client("dlq", "delete", "--all-matching", "--client-id", name, "--yes").result
    assert deleted["deleted"] >= 1
