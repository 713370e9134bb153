"""`pyoco-client` with a real gateway and a real worker: runs, dead letters and workers (section 19.2)."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from pyoco_server.client import waiting as client_waiting
from pyoco_server.http_client import PyocoHttpClient
from support.client_commands import Client
from support.client_runs import client, own_tag
from support.sites import Site
from support.waiting import eventually

__all__ = ["client", "own_tag"]

FLOW_YAML = "tasks: {a: {callable: 'json:dumps', inputs: {obj: 1}}}\nflow: {graph: a}\n"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    return give


# Submissions


def test_a_run_is_submitted_read_and_listed(client: Client, own_tag: str) -> None:
    """FLOW-430, FLOW-431, FLOW-433 to FLOW-435"""
    accepted = client(
        "submit", "--flow-name", "hello", "--tag", own_tag, "--tags", "x, y,", "--param", "name=あ"
    ).result
    assert accepted == {"run_id": accepted["run_id"], "status": "PENDING"}
    run_id = accepted["run_id"]
    for words in (["--run-id", run_id], [run_id]):
        run = client("get", *words).result
        assert (run["params"], run["tag"], run["tags"]) == ({"name": "あ"}, own_tag, ["x", "y"])
        assert "task_records" not in run
    assert client("get", run_id, "--include", "records").result["task_records"] == {}
    assert client("tasks", run_id).result["tasks"] == {}
    assert [run["run_id"] for run in client("list", "--tag", own_tag, "--status", "PENDING").result] == [run_id]
    assert client("list", "--tag", own_tag, "--flow", "other").result == []
    for command in ("list", "list-vnext"):
        found = client(command, "--tag", own_tag, "--run-id", run_id[:8].upper()).result
        assert [run["run_id"] for run in (found if command == "list" else found["items"])] == [run_id]
        found = client(command, "--tag", own_tag, "--search", "HELLO あ").result  # CLI-16
        assert [run["run_id"] for run in (found if command == "list" else found["items"])] == [run_id]
    assert client("list", "--tag", own_tag, "--search", "hello ほか").result == []
    assert client("list", "--run-id", "abc").code != 0


def test_params_are_merged_and_later_ones_win(
    client: Client, own_tag: str, tmp_path: Path, stdin: Callable[[str], None]
) -> None:
    """FLOW-446"""
    file = tmp_path / "params.json"
    file.write_text('{"a": 1, "b": {"x": 1}, "c": 1}')
    words = ["--params-file", str(file), "--params", '{"b": {"y": 2}, "c": 2}']
    pairs = ["--param", "c=3", "--param", "d=NaN", "--param", 'e={"z": [true]}', "--param", "f=a=b"]
    accepted = client("submit", "--flow-name", "f", "--tag", own_tag, *pairs, *words).result
    expected = {"a": 1, "b": {"y": 2}, "c": 3, "d": "NaN", "e": {"z": [True]}, "f": "a=b"}
    assert client("get", accepted["run_id"]).result["params"] == expected
    stdin('{"from": "stdin"}')
    accepted = client("submit", "--flow-name", "f", "--tag", own_tag, "--params-file", "-").result
    assert client("get", accepted["run_id"]).result["params"] == {"from": "stdin"}


def test_a_flow_file_is_uploaded(client: Client, own_tag: str, tmp_path: Path, stdin: Callable[[str], None]) -> None:
    """FLOW-432"""
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW_YAML)
    stdin(FLOW_YAML)
    for path in (str(file), "-"):
        asked = ["--workflow-file", path, "--flow-name", "mine", "--tag", own_tag]
        run = client("get", client("submit-yaml", *asked).result["run_id"]).result
        assert (run["flow_name"], run["tag"]) == ("mine", own_tag)
    sha256 = run["workflow_yaml_sha256"]
    assert len(client("list", "--workflow-yaml-sha256", sha256, "--tag", own_tag).result) == 2


def test_a_submission_under_one_key_is_one_run(client: Client, own_tag: str) -> None:
    asked = ["submit", "--flow-name", "f", "--tag", own_tag, "--idempotency-key", own_tag]
    assert client(*asked).result == client(*asked).result


@pytest.mark.parametrize(
    ("flow", "options", "code", "status"),
    [
        ("hello", ["--wait"], 0, "COMPLETED"),
        ("hello", ["--wait", "--fail"], 0, "COMPLETED"),
        ("broken", ["--wait"], 0, "FAILED"),
        ("broken", ["--wait", "--fail"], 1, "FAILED"),
        ("broken", ["--fail"], 1, "FAILED"),
    ],
)
def test_a_wait_prints_the_outcome_and_ends_by_it_when_asked(
    client: Client, flow: str, options: list[str], code: int, status: str
) -> None:
    """FLOW-423, FLOW-424, FLOW-430"""
    ended = client("submit", "--flow-name", flow, *options)
    assert ended.code == code
    run = json.loads(ended.out)
    assert run["status"] == status
    assert ended.err.startswith(f"run {run['run_id']} is submitted\n")
    assert ("is FAILED: RuntimeError: on \\x1b[31mpurpose" in ended.err) == (code == 1)


def test_a_flow_file_is_waited_for(client: Client, tmp_path: Path) -> None:
    """FLOW-432"""
    file = tmp_path / "flow.yaml"
    file.write_text("tasks: {a: {use: no/such}}\nflow: {graph: a}\n")
    ended = client("submit-yaml", "--workflow-file", str(file), "--flow-name", "main", "--wait", "--fail")
    assert (ended.code, json.loads(ended.out)["status"]) == (1, "FAILED")


def test_time_that_runs_out_ends_the_wait_and_not_the_run(
    client: Client, site: Site, own_tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-424, FLOW-450"""
    monkeypatch.setattr(client_waiting, "_LOOK_SECONDS_MIN", 60.0)  # a busy machine needs longer for the first look
    run_id = site.submitted("hello", tag=own_tag)
    for words in (["wait", run_id], ["cancel", run_id, "--wait"]):
        ended = client(*words, "--timeout-sec", "0.2")
        assert (ended.code, ended.out) == (1, "")
        assert f"run {run_id} is still " in ended.err
        assert site.status(run_id) == ("PENDING" if words[0] == "wait" else "CANCELLING")


def test_a_run_is_repeated(client: Client, own_tag: str) -> None:
    first = client("submit", "--flow-name", "f", "--tag", own_tag, "--params", '{"a": 1, "b": 1}').result["run_id"]
    again = client("rerun", first, "--param", "b=2").result
    assert again == {"run_id": again["run_id"], "status": "PENDING", "rerun_of": first}
    assert client("get", again["run_id"]).result["params"] == {"a": 1, "b": 2}
    assert client("rerun", "--run-id", first).result["rerun_of"] == first


# Many at once


def lines_of(*submissions: Any) -> str:
    return "".join(json.dumps(each) + "\n" for each in submissions)


def test_a_batch_tells_of_each_line_and_ends_with_1_when_one_is_refused(
    client: Client, own_tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-423, FLOW-424"""
    monkeypatch.setattr("pyoco_server.doors.cli.client.batch._RUNS_MAX", 2)  # three requests
    file = tmp_path / "runs.jsonl"
    good = {"flow_name": "f", "tag": own_tag}
    file.write_text(lines_of(good, good) + "\n" + lines_of({"flow_name": ""}, good, good))
    ended = client("batch", "--file", str(file))
    assert (ended.code, ended.err) == (1, "accepted: 4, refused: 1\n")
    assert [line["index"] for line in ended.lines] == [0, 1, 2, 3, 4]
    assert ["error" in line for line in ended.lines] == [False, False, True, False, False]
    assert ended.lines[2]["error"]["errors"][0]["loc"] == ["body", "runs", 2, "flow_name"]
    assert {run["run_id"] for run in client("list", "--tag", own_tag).result} == {
        line["run_id"] for line in ended.lines if "run_id" in line
    }


def test_a_batch_under_a_key_is_accepted_once(
    client: Client, own_tag: str, tmp_path: Path, stdin: Callable[[str], None]
) -> None:
    text = lines_of(*[{"flow_name": "f", "tag": own_tag, "params": {"n": n}} for n in range(3)])
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    first = client("batch", str(file), "--idempotency-key", own_tag)
    stdin(text)
    second = client("batch", "-", "--idempotency-key", own_tag)
    assert (first.code, second.code) == (0, 0)
    assert [line["run_id"] for line in first.lines] == [line["run_id"] for line in second.lines]
    assert len(client("list", "--tag", own_tag).result) == 3


def test_a_long_key_of_a_batch_stays_a_key(client: Client, own_tag: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(lines_of(*[{"flow_name": "f", "tag": own_tag, "params": {"n": n}} for n in range(12)]))
    key = own_tag.ljust(253, "k")  # with `.9` it fits, with `.10` it does not
    first, second = (
        client("batch", str(file), "--idempotency-key", key),
        client("batch", str(file), "--idempotency-key", key),
    )
    assert (first.code, second.code) == (0, 0)
    assert [line["run_id"] for line in first.lines] == [line["run_id"] for line in second.lines]
    assert len({line["run_id"] for line in first.lines}) == 12


@pytest.mark.parametrize("broken", ["[1]", "{", "\udcff"])
def test_a_batch_with_a_broken_line_submits_nothing(
    client: Client, own_tag: str, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-426"""
    monkeypatch.setattr("pyoco_server.doors.cli.client.batch._RUNS_MAX", 1)
    file = tmp_path / "runs.jsonl"
    good = {"flow_name": "f", "tag": own_tag}
    text = lines_of(good, good) + broken + "\n"
    file.write_bytes(text.encode(errors="surrogateescape"))
    ended = client("batch", str(file))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: line 3 of ")
    assert client("list", "--tag", own_tag).result == []


def test_a_broken_line_of_stdin_tells_what_was_submitted_before(
    client: Client, own_tag: str, stdin: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyoco_server.doors.cli.client.batch._RUNS_MAX", 1)
    stdin(lines_of({"flow_name": "f", "tag": own_tag}, {"flow_name": "f", "tag": own_tag}) + "{\n")
    ended = client("batch", "-")
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert "before that: accepted: 1, refused: 0" in ended.err


def test_many_runs_are_cancelled_by_filter(client: Client, site: Site, own_tag: str) -> None:
    ids = [site.submitted(flow, tag=own_tag) for flow in ("a", "a", "b")]
    asked = ["cancel", "--all-matching", "--tag", own_tag, "--flow", "a"]
    refused = client(*asked)  # there is no terminal to ask on, and no --yes
    assert (refused.code, refused.out) == (1, "")
    assert site.status(ids[0]) == "PENDING"
    answer = client(*asked, "--reason", "wrong tag", "--yes").result
    assert (answer["matched"], answer["asked"], answer["more"]) == (2, 2, False)
    assert [site.status(run_id) for run_id in ids] == ["CANCELLING", "CANCELLING", "PENDING"]
    assert client("get", ids[0]).result["cancel_reason"] == "wrong tag"


def test_a_limit_holds_for_many(client: Client, site: Site, own_tag: str) -> None:
    for _ in range(3):
        site.submitted("a", tag=own_tag)
    answer = client("cancel", "--all-matching", "--tag", own_tag, "--limit", "2", "--yes").result
    assert (answer["asked"], answer["more"]) == (2, True)
    assert len(client("list", "--tag", own_tag, "--status", "CANCELLING").result) == 2


def test_a_run_is_cancelled(client: Client, site: Site, own_tag: str) -> None:
    """FLOW-438, FLOW-450"""
    snapshot = client("cancel", site.submitted("hello", tag=own_tag), "--reason", "no longer").result
    assert (snapshot["status"], snapshot["cancel_reason"]) == ("CANCELLING", "no longer")
    over = site.ended("hello")
    assert client("cancel", "--run-id", over, "--wait").result["status"] == "COMPLETED"


# Lists


def test_a_table_has_the_columns_of_the_contract(client: Client, site: Site, own_tag: str) -> None:
    """FLOW-447"""
    run_id = site.submitted("日本 \x1b[31m", tag=own_tag)
    ended = client("list", "--tag", own_tag, "--output", "table")
    header, line = ended.out.splitlines()
    assert header.split() == ["run_id", "status", "flow_name", "tag", "updated_at"]
    cells = line.split("  ")
    assert (cells[0], cells[-1].strip()[-1]) == (run_id, "Z")
    assert "日本 \\x1b[31m" in line
    assert "\x1b" not in line
    assert header.index("tag") - line.index(own_tag) == 2  # two wide characters


def test_pages_are_walked(client: Client, site: Site, own_tag: str) -> None:
    """FLOW-436"""
    ids = [site.submitted("f", tag=own_tag) for _ in range(3)][::-1]
    first = client("list-vnext", "--tag", own_tag, "--limit", "2").result
    assert [run["run_id"] for run in first["items"]] == ids[:2]
    second = client("list-vnext", "--tag", own_tag, "--limit", "2", "--cursor", first["next_cursor"]).result
    assert ([run["run_id"] for run in second["items"]], second["next_cursor"]) == (ids[2:], None)
    since = str(second["items"][0]["updated_at"])
    newer = client("list-vnext", "--tag", own_tag, "--updated-after", since).result
    assert [run["run_id"] for run in newer["items"]] == ids[:2]
    table = client("list-vnext", "--tag", own_tag, "--limit", "1", "--output", "table")
    assert len(table.out.splitlines()) == 2
    assert table.err.startswith("there are more: --cursor ")


# Dead letters and workers


def test_dead_letters_are_listed_shown_redriven_and_deleted(client: Client, site: Site, own_tag: str) -> None:
    runs = [site.ended("broken", tags=[own_tag]) for _ in range(4)]

    def letters() -> list[Any]:
        found: list[Any] = client("dlq", "list", "--tag", own_tag).result["items"]
        return found

    asyncio.run(eventually(lambda: len(letters()) == 4))  # a list follows its stream
    ids = [letter["id"] for letter in letters()]
    assert [letter["run_id"] for letter in letters()] == runs[::-1]
    assert client("dlq", "show", ids[0]).result["redrivable"] is True
    assert client("dlq", "counts").result["total"] >= 4
    assert client("dlq", "counts", "--output", "table").out.startswith("count  reason")
    assert client("dlq", "list", "--run-id", runs[0], "--output", "table").out.count("\n") == 2
    redriven = client("dlq", "redrive", ids[0], "--param", "x=1").result
    assert redriven["rerun_of"] == runs[3]
    assert client("get", redriven["run_id"]).result["params"] == {"x": 1}
    assert client("dlq", "delete", "--letter-id", ids[1]).result == {"id": ids[1], "deleted": True}
    kept = client("dlq", "delete", "--all-matching", "--run-id", runs[1], "--up-to", ids[3], "--yes").result
    assert kept == {"matched": 0, "deleted": 0, "more": False}, "it came later"
    assert client("dlq", "delete", "--all-matching", "--tag", own_tag, "--up-to", "0", "--yes").code != 0
    many = client("dlq", "redrive", "--all-matching", "--run-id", runs[0], "--up-to", ids[3], "--yes").result
    assert (many["redriven"], many["failed"]) == (1, 0)
    gone = client("dlq", "delete", "--all-matching", "--tag", own_tag, "--yes").result
    assert gone["deleted"] >= 1
    assert client("dlq", "show", ids[0]).err == "HTTP 404 ERR-PYOCO-0027: The dead letter was not found.\n"


@pytest.mark.parametrize("deed", ["redrive", "delete"])
def test_who_was_shown_the_letters_agrees_to_those_alone(
    site: Site, client: Client, own_tag: str, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """A letter that comes in while the question stands is neither redriven nor deleted."""
    late: list[str] = []

    def found() -> list[str]:
        return [letter["run_id"] for letter in client("dlq", "list", "--tag", own_tag).result["items"]]

    def answer(*_: Any, **__: Any) -> bool:
        late.append(site.ended("broken", tags=[own_tag]))
        with PyocoHttpClient(site.url) as other:
            asyncio.run(eventually(lambda: len(other.list_letters(tag=own_tag)["items"]) == 2))
        return True

    site.ended("broken", tags=[own_tag])
    asyncio.run(eventually(lambda: len(found()) == 1))
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", answer)
    done = json.loads(client("dlq", deed, "--all-matching", "--tag", own_tag).out)
    assert (done["matched"], done["more"]) == (1, False)
    assert late[0] in found()


def test_workers_are_shown_and_hidden(client: Client) -> None:
    """FLOW-439"""
    assert [worker["worker_id"] for worker in client("workers", "--scope", "active").result] == ["anna"]
    assert len(client("workers", "--tag", "default").result) == 1
    assert client("workers", "--tag", "unheard").result == []
    table = client("workers", "--output", "table").out.splitlines()
    assert table[0].split()[:2] == ["worker_id", "state"]
    assert table[1].startswith("anna ")
    assert client("worker-hide", "anna").result["hidden"] is True
    assert client("workers").result == []
    assert len(client("workers", "--include-hidden").result) == 1
    assert client("worker-show", "--worker-id", "anna").result["hidden"] is True
    assert client("worker-unhide", "anna").result["hidden"] is False
    assert client("workers", "--state", "sleeping").err.startswith("HTTP 422 ERR-PYOCO-0019: ")


def test_health_and_metrics(client: Client) -> None:
    """FLOW-440"""
    assert client("health").result == {"status": "ok"}
    assert client("health", "--ready").result["nats"] is True
    metrics = client("metrics")
    assert "\npyoco_workers_alive_total 1" in metrics.out
    assert metrics.out.endswith("\n")
    assert not metrics.out.endswith("\n\n")
