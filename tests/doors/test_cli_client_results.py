"""`pyoco-client result`, delayed submissions, and `run start`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from support.client_commands import Client
from support.client_runs import client, own_tag
from support.sites import Site

__all__ = ["client", "own_tag"]


def test_a_result_is_printed_and_saved(client: Client, site: Site, tmp_path: Path) -> None:
    """RES-26"""
    site.wake()
    run_id = site.ended("hello", params={"name": "Ada"})
    assert client("result", run_id).result == "Hello, Ada!"
    saved = client("run", "result", run_id[:8], "--save", str(tmp_path / "r.json")).result
    assert saved["bytes"] == len('"Hello, Ada!"')
    assert json.loads((tmp_path / "r.json").read_text()) == "Hello, Ada!"
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]
    assert client("result", run_id, "--output", "text").out == "Hello, Ada!\n"


@pytest.mark.parametrize(("flow", "said"), [("broken", "FAILED"), ("late", "PENDING")])
def test_a_run_without_a_result_ends_with_1(client: Client, site: Site, own_tag: str, flow: str, said: str) -> None:
    """CLI-14, RES-26"""
    site.wake()
    run_id = site.ended(flow) if flow == "broken" else site.submitted("hello", tag=own_tag)
    ended = client("result", run_id)
    assert (ended.code, ended.out) == (1, "")
    assert "ERR-PYOCO-0053" in ended.err
    assert said in ended.err


def test_a_submission_may_be_delayed_and_started_early(client: Client, site: Site, own_tag: str) -> None:
    """DELAY-6, DELAY-9"""
    run_id = client("submit", "hello", "--tag", own_tag, "--in", "10m").result["run_id"]
    run = client("get", run_id).result
    assert run["not_before"] - run["submitted_at"] == pytest.approx(600)
    assert client("run", "start", run_id[:8]).result["status"] == "PENDING"
    again = client("start", run_id)
    assert (again.code, "ERR-PYOCO-0058" in again.err) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "hello"],
        ["rerun", "RUN"],
        ["submit-yaml", "--flow-name", "main", "--workflow-file", "FILE"],
    ],
    ids=lambda words: words[0],
)
def test_every_submission_takes_an_instant(
    client: Client, own_tag: str, site: Site, tmp_path: Path, words: list[str]
) -> None:
    """DELAY-9"""
    (tmp_path / "flow.yaml").write_text("tasks: {a: {callable: 'json:dumps', inputs: {obj: 1}}}\nflow: {graph: a}\n")
    given = {"FILE": str(tmp_path / "flow.yaml")}
    if "RUN" in words:
        given["RUN"] = site.submitted("hello", tag=own_tag)
    at = int(time.time()) + 3600
    accepted = client(*(given.get(word, word) for word in words), "--tag", own_tag, "--at", str(at)).result
    assert client("get", accepted["run_id"]).result["not_before"] == at


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--in", "1h", "--at", "2026-12-01T09:00"], "--in and --at: give one of them"),
        (["--at", "2h"], "must be a time such as"),
        (["--in", "-1s"], "Invalid value for '--in'"),
    ],
)
def test_a_bad_time_is_a_usage_error(client: Client, words: list[str], said: str) -> None:
    """CLI-8, DELAY-9"""
    for command in (
        ["submit", "hello"],
        ["program", "run", "calcA"],
        ["price", "submit", "decision", "--max-cost-usd", "1"],
    ):
        ended = client(*command, *words)
        assert (ended.code, said in ended.err) == (1, True), command


def test_cancel_now_takes_the_time_to_stop_away(client: Client, own_tag: str, site: Site) -> None:
    """CLI-10"""
    run_id = site.submitted("hello", tag=own_tag)
    first = client("cancel", run_id).result
    assert first["cancel_deadline_at"] > first["cancel_requested_at"] + 20
    now = client("cancel", run_id, "--now").result
    assert now["cancel_deadline_at"] < first["cancel_deadline_at"] - 20
    ended = client("cancel", "--all-matching", "--tag", own_tag, "--now", "--yes")
    assert (ended.code, "--now is for one run" in ended.err) == (1, True)
