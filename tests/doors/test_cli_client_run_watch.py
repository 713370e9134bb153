"""`pyoco-client watch`, `status` and `why` with a real gateway and a real worker."""

from __future__ import annotations

import uuid

import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.client_clocks import start_when_heard
from support.client_commands import Client
from support.client_runs import client, own_tag
from support.sites import Site

__all__ = ["client", "own_tag"]

# Watching


def test_a_watch_prints_a_line_for_each_event_and_ends_with_0_however_the_run_ends(client: Client, site: Site) -> None:
    """FLOW-437, FLOW-448, FLOW-449"""
    ended = client("watch", "--run-id", site.ended("broken"), "--include", "records")
    assert (ended.code, ended.err) == (0, "")
    (event,) = ended.lines
    assert set(event) == {"event", "run_id", "snapshot", "ts"}
    assert event["snapshot"]["task_records"]["stumble"]["state"] == "FAILED"
    run_id = site.ended("hello")
    assert client("watch", run_id, "--output", "status").out == "COMPLETED\n"


def test_a_status_is_printed_when_it_changes(client: Client, monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """FLOW-448"""
    run_id = site.ended("hello")
    words = ["PENDING", "PENDING", "RUNNING", "RUNNING", "PENDING", "COMPLETED"]
    events = [{"event": "snapshot", "run_id": run_id, "snapshot": {"status": word}, "ts": 1.0} for word in words]
    monkeypatch.setattr(PyocoHttpClient, "watch_run", lambda *_, **__: iter(events))
    assert client("watch", run_id, "--output", "status").out.split() == [words[0], words[2], words[4], words[5]]


def test_a_watch_ends_with_its_time(client: Client, site: Site, own_tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-449"""
    run_id = site.submitted("f", tag=own_tag)
    start_when_heard(monkeypatch.setattr)
    ended = client("watch", run_id, "--timeout-sec", "1", "--output", "status")
    assert (ended.code, ended.out, ended.err) == (0, "PENDING\n", "")


@pytest.mark.parametrize("output", ["status", "tree"])
def test_a_watch_may_end_before_a_second_is_over(
    client: Client, site: Site, own_tag: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-437, FLOW-449: the server counts whole seconds"""
    run_id = site.submitted("f", tag=own_tag)
    start_when_heard(monkeypatch.setattr)
    ended = client("watch", run_id, "--timeout-sec", "0.4", "--output", output)
    assert (ended.code, ended.err) == (0, "")
    assert "PENDING" in ended.out


@pytest.mark.parametrize("command", ["watch", "wait", "get", "tasks", "why", "cancel", "rerun"])
def test_a_run_that_is_not_there_is_told_as_the_server_says_it(client: Client, command: str) -> None:
    """FLOW-427"""
    ended = client(command, str(uuid.uuid4()))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "HTTP 404 ERR-PYOCO-0005: The run was not found.\n"


def test_what_is_wrong_is_told_with_its_place(client: Client) -> None:
    """FLOW-427"""
    ended = client("list", "--limit", "999")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines() == [
        "HTTP 422 ERR-PYOCO-0017: The list query is invalid.",
        "  query.limit: must be a whole number from 1 to 200",
    ]


def test_why_tells_what_each_run_is_about(client: Client, site: Site, own_tag: str) -> None:
    waiting = client("why", site.submitted("hello", tag=own_tag)).result
    assert (waiting["status"], waiting["waiting"]["reason"]) == ("PENDING", "no_worker")
    assert waiting["explanation"][0] == waiting["waiting"]["message"]
    assert waiting["explanation"][1].startswith("Last change: submitted ")
    assert waiting["last_change"]["by"] == {"kind": "caller", "id": None}
    failed = client("why", site.ended("broken"), "--output", "text").out
    assert "It failed (execution_error): RuntimeError: on \\x1b[31mpurpose" in failed
    assert "Task stumble failed: on \\x1b[31mpurpose" in failed
    with site.held() as run_id:
        running = client("why", run_id).result
    assert running["explanation"][0].startswith("anna runs it")
