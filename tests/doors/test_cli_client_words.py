"""What people type: groups and old spellings, `key=value`, the first characters of a run id, durations and instants."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import click
import pytest

from pyoco_server.doors.cli.client import COMMANDS, cli
from pyoco_server.doors.cli.client.groups import GROUPS
from pyoco_server.doors.cli.client.times import DURATION, INSTANT, PAST
from pyoco_server.http_client import PyocoHttpClient
from support.client_commands import Client, terminal
from support.client_runs import client, own_tag
from support.sites import Site

__all__ = ["client", "own_tag"]

#: The table of CLI-15: the old spelling of a verb.
OLD = {
    "workers": "worker list",
    "worker-show": "worker show",
    "worker-hide": "worker hide",
    "worker-unhide": "worker unhide",
    "wheels": "wheel list",
    "wheel-upload": "wheel upload",
    "wheel-download": "wheel download",
    "wheel-history": "wheel history",
    "wheel-delete": "wheel delete",
    "exec": "program run",
    "submit-exec": "program submit",
    "artifacts": "program artifacts",
}
RUN = ["submit", "submit-yaml", "batch", "get", "tasks", "watch", "wait", "why", "list", "cancel", "rerun"]
RUN += ["logs", "result", "start"]


def command_at(words: str) -> click.Command:
    command: click.Command = cli
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_spelling_is_the_same_command_and_is_not_listed(old: str, new: str) -> None:
    """CLI-15"""
    assert command_at(old) is command_at(new)
    assert COMMANDS[old].hidden


def test_help_lists_the_groups_and_the_verbs_of_run(client: Client) -> None:
    """CLI-15"""
    shown = {line.split()[0] for line in client("--help").out.splitlines() if line.startswith("  ")}
    assert {"run", "dlq", "worker", "wheel", "program", "price", *RUN} <= shown
    assert not {*OLD, "list-vnext"} & shown
    for verb in RUN:
        assert command_at(f"run {verb}") is command_at(verb)
    assert set(GROUPS["worker"]) == {"list", "show", "hide", "unhide"}


def test_an_old_option_works_and_is_not_listed(client: Client) -> None:
    """CLI-8, CLI-15"""
    shown = client("wait", "--help").out
    assert "--timeout DURATION" in shown
    assert "--timeout-sec" not in shown
    assert "must be above 0 s" in client("wait", "x", "--timeout-sec", "0").err


# Submissions


@pytest.mark.parametrize(
    "words",
    [
        ["hello", "name=you", "n=3", "x=a=b", 'y={"z": [1]}'],
        ["--flow-name", "hello", "name=you", "n=3", "x=a=b", 'y={"z": [1]}'],
        ["hello", "--param", "name=me", "--param", "n=3", "name=you", "x=a=b", "--params", '{"y": {"z": [1]}}'],
    ],
)
def test_a_flow_is_named_by_a_word_and_each_pair_is_a_param(client: Client, own_tag: str, words: list[str]) -> None:
    """CLI-6"""
    run_id = client("run", "submit", "--tag", own_tag, *words).result["run_id"]
    run = client("run", "get", run_id).result
    assert (run["flow_name"], run["params"]) == ("hello", {"name": "you", "n": 3, "x": "a=b", "y": {"z": [1]}})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name of the flow is missing"),
        (["name=you"], "name of the flow is missing"),
        (["hello", "you"], "'you' must be KEY=VALUE"),
        (["hello", "=you"], "'=you' must be KEY=VALUE"),
        (["--flow-name", "hello", "hello"], "give one of them"),
    ],
)
def test_other_words_are_a_usage_error(client: Client, words: list[str], told: str) -> None:
    """CLI-6, CLI-14"""
    ended = client("submit", *words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: ")
    assert told in ended.err


# Run ids


def test_the_first_characters_of_a_run_id_name_the_run(site: Site, client: Client, own_tag: str) -> None:
    """CLI-7"""
    run_id = site.ended("hello")
    prefix = run_id[:13]
    for words in (["get"], ["why"], ["tasks"], ["run", "get"], ["get", "--run-id"], ["cancel"], ["wait"], ["watch"]):
        ended = client(*words, prefix)
        assert ended.code == 0, ended.err
        assert run_id in ended.out
    assert client("rerun", prefix, "--tag", own_tag).result["run_id"] != run_id
    assert client("dlq", "list", "--run-id", prefix).result["items"] == []


@pytest.mark.parametrize("unknown", ["0000-", "ffff0000-0000-4000-8000-00000000000", "abc", "nope", "x" * 40])
def test_an_unknown_beginning_is_an_unknown_run(client: Client, unknown: str) -> None:
    """CLI-7, CLI-14"""
    ended = client("get", unknown)
    assert (ended.code, ended.out) == (1, "")
    assert "ERR-PYOCO-0005" in ended.err


def test_a_beginning_of_several_ids_is_refused_with_at_most_ten_of_them(
    client: Client, own_tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-7"""
    ids = [f"abcd0000-0000-4000-8000-{number:012x}" for number in range(11)]
    page = {"items": [{"run_id": each, "status": "FAILED", "updated_at": 1.0} for each in ids], "next_cursor": None}
    asked: list[dict[str, Any]] = []

    def listed(self: PyocoHttpClient, **given: Any) -> dict[str, Any]:
        asked.append(given)
        return page

    monkeypatch.setattr(PyocoHttpClient, "list_runs_vnext", listed)
    ended = client("get", "abcd")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: ")
    assert [each for each in ids if each in ended.err] == ids[:10]
    assert asked == [{"run_id": "abcd", "limit": 11}]


# Durations, instants and money


def test_instants_are_durations_ago_dates_or_unix_seconds() -> None:
    """CLI-8"""
    now = time.time()
    assert PAST.convert("2h", None, None) == pytest.approx(now - 7200, abs=60)
    for kind in (PAST, INSTANT):
        assert kind.convert("1796101200", None, None) == 1796101200
        assert kind.convert("2026-12-01T09:00:00+09:00", None, None) == 1796083200
        for local in ("2026-12-01T09:00", "2026-12-01 09:00:00"):
            assert kind.convert(local, None, None) == datetime(2026, 12, 1, 9).astimezone().timestamp()
        assert kind.convert("2026-12-01", None, None) == datetime(2026, 12, 1).astimezone().timestamp()
        for wrong in ("soon", "-1", "", "1e12", "9" * 20, "2026-13-01T00:00"):
            with pytest.raises(click.BadParameter):
                kind.convert(wrong, None, None)
    with pytest.raises(click.BadParameter):
        INSTANT.convert("2h", None, None)
    assert DURATION.convert("1h30m", None, None) == 5400


def test_lists_take_instants(client: Client, own_tag: str) -> None:
    """CLI-8"""
    run_id = client("submit", "hello", "--tag", own_tag).result["run_id"]
    found = client("list", "--tag", own_tag, "--updated-after", "1h").result
    assert [run["run_id"] for run in found] == [run_id]
    assert client("list", "--tag", own_tag, "--updated-after", "2099-01-01T00:00:00Z").result == []
    assert (
        client("cancel", "--all-matching", "--tag", own_tag, "--submitted-before", "1h", "--yes").result["asked"] == 0
    )


@pytest.mark.parametrize(
    ("written", "sent"), [("5", "5.0000"), ("5.1", "5.1000"), ("5.0000", "5.0000"), ("0.0001", "0.0001")]
)
def test_an_amount_is_sent_with_four_decimals(
    client: Client, monkeypatch: pytest.MonkeyPatch, written: str, sent: str
) -> None:
    """CLI-9"""
    amounts: list[str] = []

    def submitted(self: PyocoHttpClient, pack: str, inputs: object, max_cost_usd: str, **given: Any) -> Any:
        amounts.append(max_cost_usd)
        raise TimeoutError("enough")

    monkeypatch.setattr(PyocoHttpClient, "submit_pack", submitted)
    client("price", "submit", "decision", "--max-cost-usd", written)
    assert amounts == [sent]


@pytest.mark.parametrize("written", ["5.00001", "-5", "+5", "5e1", "5.", ".5", "05", "$5", "5,0", "nan", ""])
def test_another_amount_is_a_usage_error(client: Client, written: str) -> None:
    """CLI-9"""
    ended = client("price", "submit", "decision", "--max-cost-usd", written)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0018: ")


# Output


def test_a_pipe_reads_json_and_a_terminal_readable_text(site: Site, client: Client) -> None:
    """CLI-3, CLI-4"""
    run_id = site.ended("broken")
    assert client("get", run_id).result["run_id"] == run_id
    with terminal(site.url, "get", run_id[:8], variables={"NO_COLOR": "1"}) as screen:
        assert screen.left() == 0
    assert screen.sent.startswith(f"FAILED  broken  {run_id}")
    assert "sites.py:" in screen.sent


READABLE = {
    "list": "run_id",
    "worker list": "worker_id",
    "wheel list": "name",
    "dlq list": "reason",
    "dlq counts": "count",
    "queues": "depth",
    "health": "status",
    "config": "server",
}


@pytest.mark.parametrize(("words", "shown"), READABLE.items())
@pytest.mark.parametrize("output", ["table", "text"])
def test_every_list_has_a_readable_view(client: Client, words: str, shown: str, output: str) -> None:
    """CLI-3"""
    ended = client(*words.split(), "--output", output)
    assert ended.code == 0
    assert shown in ended.out
    assert not ended.out.lstrip().startswith(("{", "["))


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_wait_that_fails_names_the_task_and_the_line(client: Client, output: str) -> None:
    """CLI-4: in a pipe it is the run as JSON."""
    ended = client("submit", "broken", "--wait", "--output", output)
    assert ended.code == 0
    if output == "json":
        assert json.loads(ended.out)["status"] == "FAILED"
    else:
        lines = ended.out.splitlines()
        assert lines[0].startswith("FAILED  broken  ")
        assert lines[1].startswith("error (execution_error): RuntimeError: ")
        assert ".py:" in lines[2]


def test_a_wait_in_a_pipe_writes_the_reason_once(client: Client, own_tag: str) -> None:
    """CLI-5, CLI-14"""
    ended = client("submit", "hello", "--tag", own_tag, "--timeout", "1500ms")
    assert (ended.code, ended.out) == (1, "")
    assert [line for line in ended.err.splitlines() if line.startswith("waiting: ")] == [
        f"waiting: no_worker: No worker serves tag {own_tag}. "
        f"Start one with: pyoco-worker --flow-resolver MODULE:CALLABLE --tags {own_tag}"
    ]


def test_without_arguments_it_says_how_to_start_a_server_or_how_to_go_on(
    client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-12"""
    piped = client()
    assert (piped.code, "Missing command." in piped.err) == (1, True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with_server = client()
    assert (with_server.code, "Usage: pyoco-client" in with_server.out) == (0, True)
    without = client("--server", "http://127.0.0.1:1")
    assert (without.code, without.out) == (1, "")
    assert "pyoco-server up --with-examples" in without.err
