"""`pyoco-client schedule` (SCHED-32)."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from support.client_commands import Client
from support.servers import unique
from support.sites import Site

FILE = """
schedules:
  - name: {name}
    what: {{kind: flow, flow_name: hello, params: {{day: "{{{{ scheduled_time.date }}}}"}}, retry: "3 times"}}
    when: {{cron: "0 6 * * *"}}
    timezone: Asia/Tokyo
    start_at: 2026-12-01T00:00
    labels: [{name}]
"""


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


@pytest.fixture
def call(client: Client, site: Site) -> Any:
    return lambda *words: client("--server", site.url, "schedule", *words)


def test_a_schedule_through_its_life(call: Any) -> None:
    name = unique("life")
    made = call("create", name, "--every", "1h", "--flow", "hello", "name=you", "--timezone", "Asia/Tokyo").result
    assert (made["when"], made["what"]["params"]) == ({"every": 3600}, {"name": "you"})
    assert call("show", name).result["id"] == made["id"]
    assert name in [each["name"] for each in call("list").result["items"]]
    assert call("pause", name, "--reason", "moving").result["pause_reason"] == "moving"
    run = call("trigger", name, "--param", "name=me", "--idempotency-key", name).result
    assert call("trigger", name, "--param", "name=me", "--idempotency-key", name).result["run_id"] == run["run_id"]
    assert [each["run_id"] for each in call("history", name).result["items"]] == [run["run_id"]]
    assert len(call("preview", name, "-n", "3").result["items"]) == 3
    done = call("backfill", name, "--from", "2h", "--to", str(time.time() - 1), "--overlap", "allow").result
    assert (done["matched"], done["created"]) == (2, 2)
    assert call("resume", name).result["paused"] is False
    assert call("delete", name, "--yes").result == {"name": name, "deleted": True}
    assert call("show", name).code == 1


def test_programs_and_anything_else_can_be_scheduled(call: Any) -> None:
    name = unique("exec")
    made = call("create", name, "--cron", "@daily", "--exec", "tool", "--overlap", "queue_one", "--", "--n", "3").result
    assert made["what"] == {"kind": "exec", "exec_name": "tool", "args": ["--n", "3"]}
    refused = call("create", unique("x"), "--cron", "0 6 * * FRY", "--what", '{"kind": "flow", "flow_name": "f"}')
    assert refused.code == 1
    assert "FRY" in refused.err
    assert call("create", unique("x"), "--cron", "@daily").code == 1
    tried = ("--cron", "@daily", "--flow", "hello", "--retry", "3 times, fixed", "--run-timeout", "5m")
    what = call("create", unique("tried"), *tried).result["what"]
    assert (what["retry"]["tries"], what["retry"]["backoff"], what["timeout"]) == (3, "fixed", 300.0)
    assert call("create", unique("once"), *tried[:4], "--retry", "none").result["what"]["retry"] is None
    assert call("delete", name, "--yes").code == 0


def test_a_file_is_applied_with_its_difference_and_twice_changes_nothing(call: Any, tmp_path: Path) -> None:
    name, file = unique("applied"), tmp_path / "schedules.yaml"
    file.write_text(FILE.format(name=name))
    assert call("apply", "-f", str(file), "--dry-run").code == 1
    refused = call("apply", "-f", str(file))
    assert (refused.code, "--yes" in refused.err, f"+ {name}" in refused.err) == (1, True, True)
    first = call("apply", "-f", str(file), "--yes")
    assert json.loads(first.out)["created"] == [name]
    again = call("apply", "-f", str(file), "--yes")
    assert (again.code, again.result["unchanged"]) == (0, [name])
    assert call("apply", "-f", str(file), "--dry-run").code == 0
    call("pause", name)
    assert json.loads(call("apply", "-f", str(file), "--yes").out)["unchanged"] == [name]
    file.write_text(FILE.format(name=name).replace("0 6", "0 7"))
    changed = call("apply", "-f", str(file), "--yes")
    assert json.loads(changed.out)["replaced"] == [name]
    assert "0 6 * * *" in changed.err
    shown = call("show", name).result
    assert (shown["when"], shown["paused"]) == ({"cron": "0 7 * * *"}, True)
    other = unique("other")
    file.write_text(FILE.format(name=other))
    kept = json.loads(call("apply", "-f", str(file), "--yes").out)
    assert (kept["created"], kept["deleted"]) == ([other], [])
    pruned = json.loads(call("apply", "-f", str(file), "--yes", "--prune").out)
    assert name in pruned["deleted"]
    call("delete", other, "--yes")


def test_a_bad_file_is_refused_with_every_problem(call: Any, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    bad = {"schedules": [{"name": "a", "what": {"kind": "flow"}, "when": {"cron": "x"}}, {"name": "b"}]}
    file.write_text(json.dumps(bad))
    refused = call("apply", "-f", str(file), "--yes")
    assert refused.code == 1
    for place in ("schedules.0.what.flow_name", "schedules.0.when.cron", "schedules.1.what", "schedules.1.when"):
        assert place in refused.err
    for text in ("[", "[]", "schedules: 5", "{schedules: [], more: 1}"):
        file.write_text(text)
        assert call("apply", "-f", str(file), "--yes").code == 1


def test_people_get_tables(call: Any) -> None:
    """CLI-3"""
    name = unique("table")
    call("create", name, "--cron", "0 6 * * *", "--flow", "hello")
    call("trigger", name)
    for words in (("list",), ("history", name), ("preview", name), ("show", name)):
        shown = call(*words, "--output", "table")
        assert shown.code == 0
        assert not shown.out.startswith("{")
        assert re.search(r"\b\d{10}\b", shown.out) is None, "people read dates, not unix seconds"
    call("delete", name, "--yes")
