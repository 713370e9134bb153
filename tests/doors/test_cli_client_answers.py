"""Another server is at the address, and returns JSON: one sentence from every command, and no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.doors.cli.client import COMMANDS
from pyoco_server.doors.cli.client.answers import misfit
from pyoco_server.doors.cli.client.groups import GROUPS
from pyoco_server.http_client import RunBatchAnswer, RunListResponse, RunSnapshot, RunTasks
from support.client_commands import Client
from support.strangers import response, somebody

#: With nothing but a server in the way of success; `{file}` is a wheel, a flow and a batch in one.
CALLS = {
    "submit-yaml": ["--workflow-file", "{file}", "--flow-name", "f", "--wait"],
    "submit": ["--flow-name", "f"],
    "batch": ["{file}"],
    "rerun": ["x"],
    "exec": ["x", "--file", "{file}"],
    "exec --wait": ["x"],
    "submit-exec": ["--exec", "x", "--wait"],
    "artifacts": ["x"],
    "get": ["x"],
    "tasks": ["x"],
    "watch": ["x"],
    "wait": ["x"],
    "why": ["x"],
    "logs": ["x"],
    "result": ["x"],
    "start": ["x"],
    "list": ["--output", "table"],
    "list-vnext": ["--output", "table"],
    "cancel": ["x", "--wait"],
    "cancel --all": ["--yes"],
    "dlq list": ["--output", "table"],
    "dlq show": ["1"],
    "dlq counts": ["--output", "table"],
    "dlq redrive": ["1"],
    "dlq requeue": ["1"],
    "dlq redrive --all": ["--yes"],
    "dlq delete": ["1"],
    "dlq delete --all": ["--yes"],
    "schedule list": ["--output", "table"],
    "schedule show": ["x"],
    "schedule pause": ["x"],
    "schedule resume": ["x"],
    "schedule trigger": ["x"],
    "schedule preview": ["x"],
    "schedule history": ["x"],
    "schedule delete": ["x", "--yes"],
    "price submit": ["decision", "--max-cost-usd", "0.2500"],
    "price get": ["x", "--output", "table"],
    "price wait": ["x"],
    "price upload": ["{file}"],
    "budget": ["--output", "table"],
    "budget --journal": [],
    "queues": ["--output", "table"],
    "attention": ["--output", "table"],
    "flows": ["--output", "table"],
    "flow show": ["x"],
    "workers": ["--output", "table"],
    "worker-show": ["x"],
    "worker-hide": ["x"],
    "worker-unhide": ["x"],
    "wheels": ["--output", "table"],
    "wheel-upload": ["{file}"],
    "wheel-history": ["--output", "table"],
    "wheel-delete": ["x.whl"],
    "health": [],
    "health --ready": [],
    "list --follow": [],
}
#: These print what they get, whatever it is, or make no call.
OTHERS = {"metrics", "wheel-download", "config", "completion"}
ANSWERS = [[1, 2], [[]], "hello", 17, None, {}, {"items": {}}, {"items": [1], "next_cursor": None}, {"run_id": 1}]


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


def test_no_command_is_left_out() -> None:
    assert {words.split()[0] for words in CALLS} | OTHERS | set(GROUPS) == set(COMMANDS)


@pytest.mark.parametrize("answer", ANSWERS, ids=json.dumps)
def test_json_of_another_shape_is_told_with_the_address(client: Client, answer: Any, tmp_path: Path) -> None:
    """FLOW-427, FLOW-429"""
    file = tmp_path / "x-1-py3-none-any.whl"
    file.write_text("{}\n")
    with somebody(response("200 OK", json.dumps(answer))) as url:
        for name, words in CALLS.items():
            ended = client("--server", url, *name.split(), *(word.format(file=file) for word in words))
            assert (ended.code, ended.out) == (1, ""), name
            assert ended.err.startswith(f"ERR-PYOCO-0001: {url} is not a pyoco gateway, or "), name
            assert ended.err.count("\n") == 1, name


SNAPSHOT = {
    "run_id": "x",
    "flow_name": "f",
    "status": "PENDING",
    "params": {},
    "tasks": {"a": "PENDING"},
    "heartbeat_at": 1,
    "updated_at": 1.5,
}
REFUSED = {"index": 0, "error": {"detail": [{"loc": ["a", 1], "msg": "m", "type": "t"}]}}


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (SNAPSHOT, RunSnapshot, None),
        ({**SNAPSHOT, "status": "PONDERING", "more": object()}, RunSnapshot, None),  # of a newer server
        ({**SNAPSHOT, "end_time": None, "worker_id": None}, RunSnapshot, None),
        ({**SNAPSHOT, "status": None}, RunSnapshot, "it.status has another type"),
        ({**SNAPSHOT, "updated_at": float("nan")}, RunSnapshot, "it.updated_at has another type"),
        ({**SNAPSHOT, "updated_at": 10**400}, RunSnapshot, "it.updated_at has another type"),
        ({**SNAPSHOT, "tasks": {"a": 1}}, RunSnapshot, "it.tasks.a has another type"),
        ({**SNAPSHOT, "waiting": {"reason": "busy"}}, RunSnapshot, "it.waiting has no message"),
        ({**SNAPSHOT, "task_records": []}, RunTasks, "it.task_records is not an object"),
        ({"items": [{"run_id": "x"}], "next_cursor": None}, RunListResponse, "it.items.0 has no status"),
        ({"items": [], "next_cursor": 1}, RunListResponse, "it.next_cursor has another type"),
        ([], RunListResponse, "it is not an object"),
        ({"accepted": 0, "refused": 1, "items": [REFUSED]}, RunBatchAnswer, "it.items.0.error has no err_id"),
        ([SNAPSHOT], list[RunSnapshot], None),
        ({}, list[RunSnapshot], "it is not a list"),
    ],
)
def test_an_answer_is_compared_with_its_type(value: Any, kind: Any, found: str | None) -> None:
    assert misfit(value, kind, "it") == found
